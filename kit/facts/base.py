"""What a fact is, and the small parsers that several share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECRET = re.compile(r"(?i)([\w-]*(?:api[-_]?key|token|password|passwd|secret)(?:\s*=\s*|\s+)|\bbearer\s+)(\S+)")


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


def masked(command: str) -> str:
    """A command line of somebody's, without what follows --api-key, HF_TOKEN= and the like.

    >>> masked("serve --api-key abc --port 1")
    'serve --api-key *** --port 1'
    """
    return SECRET.sub(r"\1***", words(command))
