"""Makes a big pair out of a small one that computes the same: the cost of an 8B model, the tokens of a small one.

    python tests/benchmarks/h200/ballast.py data/models/micro-llama OUT [--hidden 4096 --layers 32 …]

A speculative pair must agree with its target to be worth measuring, and a big one cannot be trained for a test. So a
trained small pair (a Llama and its EAGLE-3 head) is widened and deepened without changing a logit:

- new channels are zero, in weights that read and in weights that write them;
- RMSNorm averages over more channels, all zero: its weight is scaled by sqrt(H/H'), its epsilon by H/H';
- new heads and MLP rows have random weights, and what they say is multiplied by zero: real work without effect;
- new layers are copies whose two writing projections are zero.

Memory traffic and arithmetic are those of the big size; acceptance is real. 14 GB and half a minute on a GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
WRITES = ("self_attn.o_proj.weight", "mlp.down_proj.weight")     # into the residual stream


@dataclass(frozen=True)
class Size:
    hidden: int
    intermediate: int
    heads: int
    kv: int


@dataclass(frozen=True)
class Widening:
    """From one size to another, on one device; heads keep their width."""

    old: Size
    new: Size
    head: int
    device: str
    dtype: torch.dtype = torch.bfloat16

    @property
    def query_rows(self) -> torch.Tensor:
        """Where each old query head's rows go: it stays with its key-value head, whose group has grown."""
        group, wide = self.old.heads // self.old.kv, self.new.heads // self.new.kv
        places = [h // group * wide + h % group for h in range(self.old.heads)]
        return torch.cat([torch.arange(p * self.head, (p + 1) * self.head) for p in places]).to(self.device)

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, device=self.device, dtype=self.dtype)

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=self.dtype) * 0.02

    def norm(self, weight: torch.Tensor) -> torch.Tensor:
        wide = torch.ones(self.new.hidden, device=self.device, dtype=self.dtype)
        wide[:self.old.hidden] = (weight.float() * (self.old.hidden / self.new.hidden) ** 0.5).to(self.dtype)
        return wide

    def reads(self, weight: torch.Tensor, parts: int = 1) -> torch.Tensor:
        """Input channels; `parts` hidden states lie side by side in what is read."""
        wide = self.zeros(weight.shape[0], parts * self.new.hidden)
        for part in range(parts):
            wide[:, part * self.new.hidden:][:, :self.old.hidden] = \
                weight[:, part * self.old.hidden:(part + 1) * self.old.hidden]
        return wide

    def heads(self, weight: torch.Tensor, rows: torch.Tensor, count: int, parts: int) -> torch.Tensor:
        wide = self.noise(count * self.head, parts * self.new.hidden)
        wide[rows] = self.reads(weight, parts)
        return wide

    def layer(self, old: Tensors, parts: int = 1) -> Tensors:
        """One decoder layer, by names below its prefix; an EAGLE-3 head's attention reads two hidden states."""
        take = lambda name: old[name].to(self.device, self.dtype)  # noqa: E731
        kv_rows = torch.arange(self.old.kv * self.head, device=self.device)
        out = {"self_attn.q_proj.weight": self.heads(take("self_attn.q_proj.weight"), self.query_rows, self.new.heads,
                                                     parts)}
        for name in ("self_attn.k_proj.weight", "self_attn.v_proj.weight"):
            out[name] = self.heads(take(name), kv_rows, self.new.kv, parts)
        out["self_attn.o_proj.weight"] = self.zeros(self.new.hidden, self.new.heads * self.head)
        out["self_attn.o_proj.weight"][:self.old.hidden, self.query_rows] = take("self_attn.o_proj.weight")
        for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
            out[name] = self.noise(self.new.intermediate, self.new.hidden)
            out[name][:self.old.intermediate] = self.reads(take(name))
        out["mlp.down_proj.weight"] = self.zeros(self.new.hidden, self.new.intermediate)
        out["mlp.down_proj.weight"][:self.old.hidden, :self.old.intermediate] = take("mlp.down_proj.weight")
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            out[name] = self.norm(take(name))
        return out


def below(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def write(path: Path, tensors: Tensors) -> dict[str, str]:
    """Saves a file; {tensor: file name} for the index."""
    save_file({name: t.contiguous().cpu() for name, t in tensors.items()}, path, metadata={"format": "pt"})
    return {name: path.name for name in tensors}


def target(source: Path, out: Path, wide: Widening, layers: int, config: dict) -> None:
    """One file a layer: never more than one of them is in memory."""
    old, index = load_file(source / "model.safetensors"), {}
    for i in range(layers):
        there = min(i, config["num_hidden_layers"] - 1)
        new = wide.layer(below(old, f"model.layers.{there}."))
        if i > there:
            for name in WRITES:
                new[name].zero_()
        index |= write(out / f"model-{i:03d}.safetensors", {f"model.layers.{i}.{n}": t for n, t in new.items()})
    take = lambda name: old[name].to(wide.device, wide.dtype)  # noqa: E731
    index |= write(out / "model-ends.safetensors", {
        "model.embed_tokens.weight": wide.reads(take("model.embed_tokens.weight")),
        "model.norm.weight": wide.norm(take("model.norm.weight")),
        "lm_head.weight": wide.reads(take("lm_head.weight"))})
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for file in source.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, out)


def drafter(source: Path, out: Path, wide: Widening) -> None:
    """The EAGLE-3 head: fc reads three hidden states of the target, the layer's attention two."""
    old = load_file(source / "model.safetensors")
    take = lambda name: old[name].to(wide.device, wide.dtype)  # noqa: E731
    new = {name: old[name] for name in ("d2t", "t2d")}
    new |= {name: wide.norm(take(name)) for name in ("norm.weight", "midlayer.hidden_norm.weight")}
    new["lm_head.weight"] = wide.reads(take("lm_head.weight"))
    new["fc.weight"] = wide.zeros(wide.new.hidden, 3 * wide.new.hidden)
    new["fc.weight"][:wide.old.hidden] = wide.reads(take("fc.weight"), parts=3)
    new |= {f"midlayer.{n}": t for n, t in wide.layer(below(old, "midlayer."), parts=2).items()}
    write(out / "model.safetensors", new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pair", type=Path, help="folder with target/ and eagle3/")
    parser.add_argument("out", type=Path)
    for name, default in (("hidden", 4096), ("intermediate", 14336), ("layers", 32), ("kv", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    configs = {part: json.loads((args.pair / part / "config.json").read_text()) for part in ("target", "eagle3")}
    small, head = configs["target"], configs["target"]["head_dim"]
    wide = Widening(
        Size(small["hidden_size"], small["intermediate_size"], small["num_attention_heads"],
             small["num_key_value_heads"]),
        Size(args.hidden, args.intermediate, args.hidden // head, args.kv),
        head, "cuda" if torch.cuda.is_available() else "cpu")
    sizes = {"hidden_size": args.hidden, "intermediate_size": args.intermediate, "num_attention_heads": wide.new.heads,
             "num_key_value_heads": args.kv, "head_dim": head,
             "rms_norm_eps": small["rms_norm_eps"] * wide.old.hidden / args.hidden}
    for part, config in configs.items():
        (args.out / part).mkdir(parents=True, exist_ok=True)
        deeper = {"num_hidden_layers": args.layers} if part == "target" else {}
        (args.out / part / "config.json").write_text(json.dumps(config | sizes | deeper, indent=1))
    target(args.pair / "target", args.out / "target", wide, args.layers, small)
    drafter(args.pair / "eagle3", args.out / "eagle3", wide)
    print("ballast written:", args.out)


if __name__ == "__main__":
    main()
