"""Bytes that one token of context takes in the KV cache of each GPU.

    grouped-query   2 × heads on the GPU × head width × layers × bytes     (heads are split down to one)
    latent (MLA)    (kv_lora_rank + rope width) × layers × bytes           (every GPU holds all of it)

Source: SGLang 0.5.12 model_executor/pool_configurator.py `DefaultPoolConfigurator._compute_cell_size`.
"""

from __future__ import annotations

from typing import NamedTuple

from kit.modelfacts import ModelFacts
from kit.modelfacts.hfconfig import Fields

BYTES = {"auto": 2, "": 2, "bf16": 2, "bfloat16": 2, "float16": 2, "half": 2, "fp8_e5m2": 1, "fp8_e4m3": 1}
INDEX_BLOCK = 128          # sparse attention keeps an index key per token: a byte each, and a 4-byte scale per block
MLA_IN = ("kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight")
# layers of which only some keep every token, or keep no tokens at all
MIXED = ("attention_chunk_size", "full_attention_interval", "full_attn_idxs", "linear_attn_config", "compress_ratios",
         "hybrid_override_pattern", "mamba_d_state", "sliding_window_pattern", "hybrid_layer_pattern")


class PerToken(NamedTuple):
    """bytes per token and GPU of `layers` layers; None: not known, `why` says what is missing."""

    bytes: int | None
    layers: int = 0
    why: str = ""


def element_bytes(kv_dtype: str | None, target: ModelFacts) -> int | None:
    """Of one cached number. "auto" is the model's 16 bits, or FP8 where its quantisation says so."""
    name = str(kv_dtype or "auto").lower()
    section = Fields(target.config).section("quantization_config")
    if name == "auto" and "FP8" in str(section.get("kv_cache_quant_algo")).upper():
        return 1
    return BYTES.get(name)


def per_token(facts: ModelFacts, tp: int, size: int, layers: int | None = None) -> PerToken:
    """layers: how many keep tokens; None: all of the model's.

    >>> per_token(read_model(LocalReader("data/models/micro-llama/target.q8_0.gguf")), 1, 2).bytes
    4096
    """
    f = Fields(facts.config)
    layers = layers or facts.num_layers
    if not layers:
        return PerToken(None, why="the number of layers is not said")
    kinds = f.get("layer_types")
    kinds = {str(k) for k in kinds[:4096]} if isinstance(kinds, list) else set()
    mixed = next((k for k in MIXED if f.get(k)), "layer_types" if kinds - {"full_attention", "attention"} else "")
    if mixed:
        return PerToken(None, layers, f"{mixed}: not every layer keeps every token, and that pool is not modelled")
    if facts.kv_lora_rank:
        rope = _rope_width(facts, f)
        if not rope:
            return PerToken(None, layers, "the width of MLA's rope part is not said")
        index = f.count("index_head_dim") or 0
        keys = index + index // INDEX_BLOCK * 4
        return PerToken(((facts.kv_lora_rank + rope) * size + keys) * layers, layers)
    if not facts.num_kv_heads or not facts.head_dim:
        return PerToken(None, layers, "the number or the width of key-value heads is not said")
    value = f.count("v_head_dim") or facts.head_dim
    return PerToken(max(1, facts.num_kv_heads // tp) * (facts.head_dim + value) * layers * size, layers)


def _rope_width(facts: ModelFacts, f: Fields) -> int | None:
    if named := f.count("qk_rope_head_dim"):
        return named
    rows = next((t.shape[0] for n, t in facts.tensors.items() if n.endswith(MLA_IN) and len(t.shape) == 2), 0)
    return rows - facts.kv_lora_rank if rows > facts.kv_lora_rank else None
