"""How long `compat` takes, and how many round trips.

    python tests/benchmarks/compat.py

A 60-shard target with an index of 207,000 tensors and a vocabulary of 164,000, on this machine; a header of 200,000
tensors behind the Host seam.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from kit.command import Command, Result
from kit.compat_cli import main as compat
from kit.modelfacts import HostReader, LocalReader, read_model

TARGET = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "hidden_size": 7168,
          "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512,
          "vocab_size": 163840, "max_position_embeddings": 262144, "n_routed_experts": 384}
DRAFTER = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 7168, "num_hidden_layers": 1,
           "vocab_size": 163840, "num_attention_heads": 64, "draft_vocab_size": 163840,
           "max_position_embeddings": 262144}


def shard(names: list[str]) -> bytes:
    text = json.dumps({n: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]}
                       for i, n in enumerate(names)}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(2 * len(names))


def target(path: Path, shards: int = 60, experts: int = 384) -> None:
    placed = {}
    for s in range(shards):
        name = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        names = [f"language_model.model.layers.{s + 1}.mlp.experts.{e}.{p}_proj.{part}" for e in range(experts)
                 for p in ("gate", "up", "down") for part in ("weight_packed", "weight_scale", "weight_shape")]
        names += ["language_model.model.embed_tokens.weight"] if s == 0 else []
        names += ["language_model.lm_head.weight"] if s == shards - 1 else []
        (path / name).write_bytes(shard(names))
        placed |= dict.fromkeys(names, name)
    (path / "config.json").write_text(json.dumps(TARGET))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {f"t{i}": i for i in range(163840)}}}))


class ThisMachine:
    """As much of a Host as a reader needs; counts its round trips."""

    name, root, trips = "this machine", "/", 0

    def run(self, command: Command) -> Result:
        self.trips += 1
        done = subprocess.run(["sh", "-c", command.shell()], input=command.stdin, capture_output=True)
        return Result(command, done.returncode, done.stdout, done.stderr)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        self.trips += 1
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read(size)


def timed(what: str, run) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    note = run()
    print(f"{what}: {time.perf_counter() - wall:.2f} s wall, {time.process_time() - cpu:.2f} s CPU {note or ''}")


def main() -> None:
    with tempfile.TemporaryDirectory() as base:
        t, d, long = (Path(base) / n for n in ("target", "drafter", "long"))
        for path in (t, d, long):
            path.mkdir()
        target(t)
        (d / "config.json").write_text(json.dumps(DRAFTER))
        (long / "config.json").write_text(json.dumps(TARGET))
        (long / "model.safetensors").write_bytes(shard([f"model.layers.{i}.w" for i in range(200_000)]))
        words = ["--target", str(t), "--drafter", str(d), "--engine", "sglang==0.5.12", "--tp", "8"]
        for _ in range(3):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                wall, cpu = time.perf_counter(), time.process_time()
                compat(words)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"compat, 60 shards: {wall:.2f} s wall, {cpu:.2f} s CPU, {len(out.getvalue().splitlines())} lines")
        timed("every header of it", lambda: f"({len(read_model(LocalReader(t), every_header=True).tensors)} tensors)")
        host = ThisMachine()
        timed("a remote header of 200,000 tensors",
              lambda: f"({len(read_model(HostReader(host, str(long))).tensors)} tensors, {host.trips} round trips)")


if __name__ == "__main__":
    main()
