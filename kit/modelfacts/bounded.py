"""Values out of files that nobody vouches for: bounded, typed, never a surprise."""

from __future__ import annotations

import json
import math
from typing import Any

HUGE = 1 << 48          # no count or width of a model is above this


class Malformed(Exception):
    """A file is not what its format says. Stays inside this package; the message is for the user."""


def parse_json(data: bytes) -> Any:
    """JSON of any shape. NaN and Infinity pass (real configs have them); fields are checked where they are read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except UnicodeDecodeError:
        raise Malformed("not text") from None
    except ValueError as e:      # JSONDecodeError, and integers of thousands of digits
        raise Malformed(f"not JSON: {str(e)[:120]}") from None


def parse_object(data: bytes) -> dict:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise Malformed(f"a JSON {type(value).__name__} where an object belongs")
    return value


def count(value: Any) -> int | None:
    """A count, width or id; None for anything else (bool, NaN, negative, absurdly large)."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < HUGE else None


def number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e30:
        return None
    return float(value) if math.isfinite(value) else None


def ids(value: Any, least: int = 0) -> tuple[int, ...] | None:
    """A list of ids (or one id); None when it is not that. At most 4096 of them."""
    if type(value) is int:
        value = [value]
    if not isinstance(value, (list, tuple)) or len(value) > 4096:
        return None
    good = all(type(v) is int and least <= v < HUGE for v in value)
    return tuple(value) if good else None


def text(value: Any, most: int = 200) -> str:
    return value[:most] if isinstance(value, str) else ""
