"""Engine versions: which tables apply, and which of them we have read.

Only some releases were read. A release between two that were read is judged by
both; one newer than all is judged by the newest, with less certainty.
"""

from __future__ import annotations

import re

Version = tuple[int, ...]


def parse(text: str) -> Version | None:
    """Release numbers without post, rc, dev or local parts; None where there are none.

    >>> parse("0.5.12.post1")
    (0, 5, 12)
    """
    match = re.match(r"v?(\d+(?:\.\d+){1,3})(?![\d.]*\d)", text.strip())
    if not match:
        return None
    return tuple(int(p) for p in match[1].split("."))[:3]


def neighbours(version: Version, known: list[Version]) -> tuple[Version | None, Version | None]:
    """The nearest known releases at or below, and at or above.

    >>> neighbours((0, 5, 4), [(0, 5, 3), (0, 5, 5)])
    ((0, 5, 3), (0, 5, 5))
    """
    below = [k for k in known if k <= version]
    above = [k for k in known if k >= version]
    return (max(below) if below else None), (min(above) if above else None)


def show(version: Version) -> str:
    return ".".join(map(str, version))
