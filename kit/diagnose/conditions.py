"""What else a log must say before a line is taken for a cause. Each gets the start and the hit."""

from __future__ import annotations

from math import gcd
from typing import Any

NO_VERIFY = {"torch_native", "flex_attention"}


def speculating(start: Any, hit: Any) -> bool:
    """A drafter is in play: by the arguments, or because a second model was loaded."""
    return start.args.get("speculative_algorithm", "None") != "None" or "load-drafter" in start.phases


def mtp_without_verify(start: Any, hit: Any) -> bool:
    backends = {start.args.get(f"{part}attention_backend") for part in ("", "decode_", "prefill_")}
    return speculating(start, hit) and bool(backends & NO_VERIFY)


def draft_head_on_mla_backend(start: Any, hit: Any) -> bool:
    return start.args.get("attention_backend") == "trtllm_mla" \
        and start.args.get("speculative_draft_attention_backend", "None") == "None"


def prefix_hit_while_speculating(start: Any, hit: Any) -> bool:
    return start.serving.prefix_hit and (speculating(start, hit) or start.serving.accepting)


def aux_widths_apart(start: Any, hit: Any) -> bool:
    """Two small multiples of one width of at least 512: 3 × 2880 against 2 × 2880."""
    a, b = (int(g) for g in hit.groups[:2])
    width = gcd(a, b)
    return a != b and width >= 512 and max(a, b) // width <= 8

