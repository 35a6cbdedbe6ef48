"""What a fact is, and the small parsers that several share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fact:
    """A few lines of shell, and the parser of what they print.

    reads   name of the fact whose output this one parses too, instead of a script of its own
    """

    name: str
    script: str
    parse: Callable[[str], Any]
    reads: str = ""


def words(text: str) -> str:
    return " ".join(text.split())


def yes(text: str) -> bool:
    return text.strip() == "yes"


def number(text: str) -> int | None:
    return int(text.strip()) if text.strip().isdigit() else None


def json_object(text: str) -> dict | None:
    """A JSON object; None where it is none: cut short by a full disk, it is as good as absent."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
