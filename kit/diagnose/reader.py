"""Reads a log of any size in bounded memory: blocks of bytes in, numbered lines out.

Takes off what a transport adds: journal JSON, Docker's JSON files, carriage
returns of progress bars, ANSI escapes. What a launcher writes in front of a
line (containers, Ray, journals) is left to `kit.diagnose.shapes`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

BLOCK = 1 << 20         # bytes read at once
LONGEST = 1 << 16       # bytes kept of one line; the rest of it is dropped
ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

KERNEL = b'"kernel"'
# A record of the journal, or of Docker, whose message is one line of text without other escapes than \\".
_TEXT = re.compile(rb'"MESSAGE" ?: ?"([^"\\\n]*(?:\\"[^"\\\n]*)*)"[^\n]*')
_DOCKER = re.compile(rb'\{"log" ?: ?"([^"\\\n]*(?:\\"[^"\\\n]*)*)(?:\\n)?", ?"stream" ?: ?"std[^\n]*')
_STAMP = re.compile(rb'"__REALTIME_TIMESTAMP" ?: ?"(\d{1,19})"')


@dataclass(frozen=True)
class Batch:
    """Lines of one block. `numbers` count newlines, as an editor does. `times_s`: the transport's own clock, or the
    record that holds it; read through `time_s`."""

    numbers: Sequence[int]
    lines: list[bytes]
    text: bytes         # the lines, joined by newlines
    times_s: Sequence[float | bytes | None] | None = None

    def time_s(self, i: int) -> float | None:
        """Of a line, seconds since the epoch."""
        time_s = self.times_s[i] if self.times_s else None
        if not isinstance(time_s, bytes):
            return time_s
        stamp = _STAMP.search(time_s)
        return int(stamp[1]) / 1e6 if stamp else None


def batches(stream: BinaryIO) -> Iterator[Batch]:
    """The stream's lines, block by block.

    >>> import io
    >>> [b.lines for b in batches(io.BytesIO(b"0%\\r100%\\nready\\n"))]
    [[b'0%', b'100%', b'ready']]
    """
    number, rest, skipping = 1, b"", False
    while block := stream.read(BLOCK):
        data = rest + block
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole, rest = data[:cut], data[cut:]
        if skipping and cut:    # the end of a line whose beginning was given out already
            gone = min(i for i in (whole.find(b"\n"), whole.find(b"\r")) if i >= 0) + 1
            number += whole[:gone].count(b"\n")
            whole, skipping = whole[gone:], False
        elif skipping:
            rest = b""
        if whole:
            yield _batch(whole, number)
            number += whole.count(b"\n")
        if len(rest) > BLOCK:
            yield _batch(rest[:LONGEST], number)
            rest, skipping = b"", True
    if rest and not skipping:
        yield _batch(rest, number)


def grouped(lines: Iterable[Any], size: int = 2000) -> Iterator[Batch]:
    """Batches of lines that are there already: text, bytes, or `kit.seams.LogLine`s (text with a time)."""
    taken, times, numbers, number = [], [], [], 0
    for line in lines:
        text, time_s = (line, None) if isinstance(line, str | bytes) else (line.text, line.time_s)
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        number += 1
        for piece in _records(raw.rstrip(b"\n"), time_s):
            taken.append(piece[1]), times.append(piece[0]), numbers.append(number)
        if len(taken) >= size:
            yield Batch(numbers, taken, b"\n".join(taken), times)
            taken, times, numbers = [], [], []
    yield Batch(numbers, taken, b"\n".join(taken), times)


def _batch(whole: bytes, first: int) -> Batch:
    if b"\x1b" in whole:
        whole = ANSI.sub(b"", whole)
    whole = whole.removesuffix(b"\n")
    lines = whole.split(b"\n")
    if b"\r" not in whole and b"\n{" not in whole and whole[:1] != b"{":
        return Batch(range(first, first + len(lines)), lines, whole)
    if (texts := _messages(whole, len(lines))) is not None:
        return Batch(range(first, first + len(lines)), texts.split(b"\n"), texts, lines)
    taken, times, numbers = [], [], []
    for number, line in enumerate(lines, first):
        if line[:1] == b"{" and KERNEL not in line and (found := _kind(line).search(line)):
            taken.append(found[1].replace(b'\\"', b'"'))
            times.append(line)
            numbers.append(number)
            continue
        for time_s, piece in _records(line, None):
            taken.append(piece)
            times.append(time_s)
            numbers.append(number)
    return Batch(numbers, taken, b"\n".join(taken), times)


def _kind(text: bytes) -> re.Pattern[bytes]:
    return _DOCKER if text[:6] == b'{"log"' else _TEXT


def _messages(whole: bytes, count: int) -> bytes | None:
    """The messages of `count` records, joined by newlines, where each is one line of text and no record is the
    kernel's; None leaves the block to be read record by record. Inside a text every quote has a backslash before it, so
    what looks like the name of a field is one; a match goes on to the end of its line, so each line has one."""
    if whole[:1] != b"{" or whole.count(b"\n{") != count - 1 or KERNEL in whole or b"\r" in whole:
        return None
    texts = _kind(whole).findall(whole)
    return b"\n".join(texts).replace(b'\\"', b'"') if len(texts) == count else None


def _records(line: bytes, time_s: float | None) -> Iterator[tuple[float | None, bytes]]:
    """One raw line as what was written: a record of JSON unwrapped, a progress bar taken apart."""
    record = _json(line) if line[:1] == b"{" else None
    if record is not None:
        time_s, line = record
    for piece in (line.splitlines() if b"\n" in line or b"\r" in line else [line]):
        yield time_s, ANSI.sub(b"", piece) if b"\x1b" in piece else piece


def _json(line: bytes) -> tuple[float | None, bytes] | None:
    """(seconds since the epoch, message) of a record by journalctl -o json or by Docker; None for any other text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("log"), str) and "stream" in record:
        return None, record["log"].encode("utf-8", "replace").rstrip(b"\n")
    if "MESSAGE" not in record and "__CURSOR" not in record and "_BOOT_ID" not in record:
        return None
    micros = record.get("__REALTIME_TIMESTAMP")
    time_s = int(micros) / 1e6 if isinstance(micros, str) and micros.isdecimal() and len(micros) < 20 else None
    who = record.get("SYSLOG_IDENTIFIER")
    front = b"kernel: " if who == "kernel" else b""     # its lines are read as evidence of another kind
    return time_s, front + _message(record.get("MESSAGE"))


def _message(value: Any) -> bytes:
    """journald writes text, a list of byte numbers for text that is not printable, or null for what is too long."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, list) and all(isinstance(n, int) and 0 <= n < 256 for n in value):
        return bytes(value)
    if isinstance(value, list):     # a field that was given several times
        return b"\n".join(_message(part) for part in value if isinstance(part, str | list))
    return b""
