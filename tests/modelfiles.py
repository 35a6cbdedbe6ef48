"""Writes tiny model files, right and wrong ones: what the header readers are tested with."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

SIZES = {"U8": 1, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "BOOL": 1}


def safetensors(tensors: dict[str, tuple[str, list[int]]], data: dict[str, bytes] | None = None) -> bytes:
    """{name: (dtype, shape)} → a file; bytes are zero unless `data` has them."""
    header, body = {}, b""
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + size]}
        body += (data or {}).get(name, bytes(size))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """Type tag and value, in GGUF's coding."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    kind = struct.unpack("<I", _value(value[0])[:4])[0]
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(_value(v)[4:] for v in value)


def gguf(metadata: dict[str, Any], tensors: dict[str, tuple[int, list[int]]] | None = None) -> bytes:
    """metadata: int (uint32), float, bool, str or a list of one of them. tensors: {name: (ggml type, shape)}, F32 0."""
    tensors, infos, offset = tensors or {}, b"", 0
    for name, (kind, shape) in tensors.items():
        size = {0: 4, 27: 8}[kind]
        for n in shape:
            size *= n
        infos += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset)
        offset += -(-size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(k) + _value(v) for k, v in metadata.items()) + infos
    return head + bytes(-len(head) % 32) + bytes(offset)


def folder(path: Path, config: dict | str | None = None, **files: bytes | str) -> Path:
    """A checkpoint folder; keys of `files` have `__` for a dot."""
    path.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 8,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
         "vocab_size": 100, "max_position_embeddings": 4096, "tie_word_embeddings": False,
         "rope_theta": 10000.0, "torch_dtype": "bfloat16"}
HEAD = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 40,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
HEAD_TENSORS = {"d2t": ("I64", [40]), "t2d": ("BOOL", [100]), "fc.weight": ("BF16", [64, 192]),
                "lm_head.weight": ("BF16", [40, 64]), "midlayer.self_attn.q_proj.weight": ("BF16", [64, 128])}
TARGET_TENSORS = {"model.embed_tokens.weight": ("BF16", [100, 64]), "lm_head.weight": ("BF16", [100, 64]),
                  "model.layers.0.self_attn.q_proj.weight": ("BF16", [64, 64])}
