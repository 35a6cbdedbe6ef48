"""What a running server says of itself → flags, and what differs from those it was started with. Pure.

SGLang's /server_info holds its arguments *as resolved*: with what it chose and changed itself. llama.cpp's /props
holds little; vLLM has nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Taken over where nothing else tells the command; the rest of /server_info are defaults.
SGLANG = ("model_path", "served_model_name", "host", "port", "tp_size", "context_length", "max_running_requests",
          "mem_fraction_static", "revision", "dtype", "kv_cache_dtype", "quantization", "dp_size", "ep_size", "pp_size",
          "trust_remote_code", "attention_backend", "grammar_backend", "chunked_prefill_size", "page_size",
          "disable_cuda_graph", "disable_radix_cache", "disable_overlap_schedule", "enable_dp_attention",
          "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
          "speculative_num_draft_tokens")
DEFAULTS = {"dtype": "auto", "kv_cache_dtype": "auto", "dp_size": 1, "ep_size": 1, "pp_size": 1, "page_size": 1}
CHECKED = ("tp_size", "context_length", "max_running_requests", "mem_fraction_static", "speculative_algorithm",
           "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "attention_backend")


def engine_of(info: Mapping[str, Any]) -> str:
    """Whose answer it is; "" where it is nobody's we know."""
    if "mem_fraction_static" in info:
        return "sglang"
    return "llamacpp" if "default_generation_settings" in info else ""


def argv_of(info: Mapping[str, Any]) -> list[str]:
    """Flags that give the same server."""
    if engine_of(info) == "llamacpp":
        settings = info.get("default_generation_settings") or {}
        slots, context = info.get("total_slots") or 1, settings.get("n_ctx") or 0
        return ["--model", str(info.get("model_path", "")), "--parallel", str(slots),
                *(["--ctx-size", str(context * slots)] if context else [])]
    words: list[str] = []
    for name in SGLANG:
        value = info.get(name)
        if value in (None, False, "") or DEFAULTS.get(name) == value:
            continue
        words += [flag(name)] if value is True else [flag(name), str(value)]
    return words


def resolved(info: Mapping[str, Any], given: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(flag, as given, as the server runs) of what the server changed."""
    out = []
    for name in CHECKED if engine_of(info) == "sglang" else ():
        asked, runs = given.get(flag(name)), info.get(name)
        if asked is not None and runs is not None and not same(asked, str(runs)):
            out.append((flag(name), asked, str(runs)))
    return out


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def same(a: str, b: str) -> bool:
    """The same value, however it is written: 0.880 and 0.88, EAGLE3 and eagle3."""
    try:
        return float(a) == float(b)
    except ValueError:
        return a.casefold() == b.casefold()
