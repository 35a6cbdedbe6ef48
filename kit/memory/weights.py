"""Bytes of weights on each GPU under tensor parallelism: from the headers, else estimated from the config.

What is split and what every GPU holds whole follows SGLang's layer classes (0.5.12: models/llama.py,
models/deepseek_v2.py, models/llama_eagle3.py): Column-, Row- and VocabParallel layers and experts are split,
ReplicatedLinear, torch.nn.Linear and norms are copied, key and value heads are split down to one head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kit.memory.estimate import Part, parts_of_config
from kit.modelfacts import ModelFacts, Tensor

# bits per weight. GGUF: bytes of a block × 8 / weights in it (ggml-common.h); typeN are numbers of ggml.h
BITS: Mapping[str, float] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F4_E2M1": 4, "I16": 16, "U16": 16,
    "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5,
    "Q5_K": 5.5, "Q6_K": 6.5625, "Q8_K": 9.125, "type16": 2.0625, "type17": 2.3125, "type18": 3.0625, "type19": 1.5625,
    "type20": 4.5, "type21": 3.4375, "type22": 2.5625, "type23": 4.25, "type29": 1.75, "type39": 4.25}

NOT_LOADED = re.compile(r"(^|\.)(t2d|rotary_emb|inv_freq|masked_bias)(\.|$)|^rope_freqs")
# on every GPU: norms, MLA's down-projections, routers, a head's fusing projection, vision (some engines split it)
COPIED = re.compile(r"norm|q_a_proj|kv_a_proj|qkv_a_proj|attn_q_a\b|attn_kv_a_mqa|mlp\.gate\.|router|ffn_gate_inp|"
                    r"e_score_correction|exp_probs_b|(^|\.)(fc|d2t)(\.|$)|weight_shape|(^|\.)(vision|visual|mm_proj|multi_modal)")
BY_KV_HEAD = re.compile(r"\b(k_proj|v_proj|attn_k|attn_v)\b")
EMBED, HEAD = re.compile(r"(^|\.)(embed_tokens|wte|tok_embeddings)\."), re.compile(r"(^|\.)lm_head\.")
SCALE = re.compile(r"scale|zero|norm|bias|e_score")
EXPERT = re.compile(r"\.experts\.\d+\.")
LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h)\.(\d+)\.")
WHOLE = 0.98                # of the files' bytes: headers and padding are the rest


@dataclass(frozen=True)
class Weights:
    """One checkpoint's weights. Bytes, of the whole checkpoint, in the dtype they have on the GPU.

    basis    "headers" (of every tensor), "file sizes" (split as the config says) or "estimate" (config alone);
             "" when nothing is known
    note     what the estimate leaves out, or why nothing is known
    """

    parts: tuple[Part, ...] = ()
    basis: str = ""
    note: str = ""
    kv_heads: int | None = None

    @property
    def known(self) -> bool:
        return bool(self.parts)

    @property
    def total_bytes(self) -> float:
        return sum(p.bytes for p in self.parts)

    def on_gpu(self, tp: int) -> float:
        """Bytes on each of `tp` GPUs."""
        return sum(p.bytes * share(p.name, tp, self.kv_heads) for p in self.parts)

    def only(self, pattern: re.Pattern) -> Weights:
        return self._with(p for p in self.parts if pattern.search(p.name))

    def without(self, *patterns: re.Pattern) -> Weights:
        return self._with(p for p in self.parts if not any(x.search(p.name) for x in patterns))

    def _with(self, parts: Iterable[Part]) -> Weights:
        return Weights(tuple(parts), self.basis, self.note, self.kv_heads)


def share(name: str, tp: int, kv_heads: int | None) -> float:
    """Part of a tensor that each GPU holds.

    >>> share("model.layers.0.self_attn.k_proj.weight", 8, 2), share("model.norm.weight", 8, 2)
    (0.5, 1.0)
    """
    if COPIED.search(name):
        return 1.0
    if BY_KV_HEAD.search(name) and kv_heads:
        return max(1, kv_heads // tp) / kv_heads
    return 1 / tp


def weights_of(facts: ModelFacts) -> Weights:
    """All that the checkpoint would put on GPUs, its extra layers (MTP) too: `main_layers` leaves those out."""
    estimate, left_out = parts_of_config(facts)
    if facts.tensors and not (odd := _odd_types(facts)):
        parts = tuple(_from_headers(facts))
        if _complete(facts):
            return Weights(parts, "headers", kv_heads=facts.num_kv_heads)
        odd = "not every header was read"
    else:
        odd = f"no size is known of tensors of type {', '.join(odd)}" if facts.tensors else "no headers"
    if facts.weight_bytes and not _gaps(facts):
        scale = facts.weight_bytes / sum(p.bytes for p in estimate) if estimate else 1.0
        parts = tuple(Part(p.name, p.bytes * scale) for p in estimate) or (Part("weights", float(facts.weight_bytes)),)
        return Weights(parts, "file sizes", odd, facts.num_kv_heads)
    if estimate:
        return Weights(tuple(estimate), "estimate", "; ".join(filter(None, (odd, left_out))), facts.num_kv_heads)
    return Weights(note=f"{odd}, and {left_out}")


def main_layers(weights: Weights, num_layers: int | None) -> Weights:
    """Without the layers past the last one: an engine loads them only to draft with."""
    return weights._with(p for p in weights.parts if not _is_extra(p.name, num_layers))


def extra_layers(weights: Weights, num_layers: int | None) -> Weights:
    return weights._with(p for p in weights.parts if _is_extra(p.name, num_layers))


def _is_extra(name: str, num_layers: int | None) -> bool:
    layer = LAYER.search(name)
    return bool(num_layers and layer and int(layer[1][:9]) >= num_layers) or ".mtp." in f".{name}"


def _from_headers(facts: ModelFacts) -> Iterable[Part]:
    """The experts of a layer make one part: they are alike, and a large model has 200,000 tensors of them."""
    sums: dict[str, float] = {}
    for name, tensor in facts.tensors.items():
        kind = EXPERT.sub(".experts.", name)
        sums[kind] = sums.get(kind, 0.0) + _loaded_bytes(name, tensor, facts.format)
    tied = facts.tie_embeddings is True
    return (Part(n, b) for n, b in sums.items() if not NOT_LOADED.search(n) and not (tied and HEAD.search(n)))


def _loaded_bytes(name: str, tensor: Tensor, form: str) -> float:
    """On the GPU. A matrix saved in F32 is loaded in 16 bits (SGLang's `--dtype auto`), scales are not."""
    bits = BITS[tensor.dtype]
    if form == "hf" and tensor.dtype in ("F32", "F64") and len(tensor.shape) > 1 and not SCALE.search(name):
        bits = 16
    return math.prod(tensor.shape) * bits / 8


def _odd_types(facts: ModelFacts) -> list[str]:
    return sorted({t.dtype[:20] for t in facts.tensors.values()} - BITS.keys())[:3]


def _complete(facts: ModelFacts) -> bool:
    """Were the headers of all tensors read? Without file sizes the last layer must be among them."""
    if _gaps(facts):
        return False
    stored = sum(math.prod(t.shape) * BITS[t.dtype] / 8 for t in facts.tensors.values())
    if facts.weight_bytes is not None:
        return stored >= WHOLE * facts.weight_bytes
    deepest = max((int(m[1][:9]) for n in facts.tensors if (m := LAYER.search(n))), default=0)
    return deepest + 1 >= (facts.num_layers or 1)


def _gaps(facts: ModelFacts) -> bool:
    return any(p.file.endswith((".safetensors", ".index.json", ".header.json")) for p in facts.problems)
