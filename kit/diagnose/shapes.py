"""Lines that differ only in their digits have one shape, and each shape is read once.

A server writes a few dozen kinds of lines, millions of times. A line with its
digits made 0 is the key of a cache that tells which marks it bears and where
its numbers stand, so a line known by shape costs one look-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from kit.diagnose.literals import needed
from kit.diagnose.marks import Mark

ZEROS = bytes.maketrans(b"123456789", b"000000000")
HEX = bytes.maketrans(b"123456789abcdef", b"0" * 15)
MOST = 16 << 20         # bytes of keys kept at once
HEAD = 4                # bytes by which words are looked up
READ = 4096             # bytes of a line in which marks are looked for

WORK = ("decode", "prefill")

Span = tuple[int, int]

_SGLANG = re.compile(rb"\[(0000-00-00 00:00:00(?:\.0+)?)((?: [A-Z_]{2,9}0+)*)\] ?")
_VLLM = re.compile(rb"[GORL] (00-00 00:00:00) \[[^\]\n]{1,80}\] ?")
_LLAMA = re.compile(rb"^(0+\.00\.000\.000) [A-Z] ")
_ISO = re.compile(rb"^\[?(0000-00-00[T ]00:00:00(?:[.,]0+)?)(?:Z|[+-]00:?00)?\]? ?")
_SYSLOG = re.compile(rb"^([A-Z][a-z]{2} [ 0]0 00:00:00) [\w.-]+ ")
_CLOCK = re.compile(rb"^(00:00:00) ")
_FRONT = re.compile(rb"^\s*(?:[\w.-]+ +\| |[\w.-]+ >> |[\w.@-]+\[0+\]: ?|(?:stdout|stderr) [FP] |\[rank0+\]: ?"
                    rb"|\((?P<actor>\w+)[^()\n]{0,40}pid=0+[^()\n]{0,40}\) )")
_REQUEST = re.compile(rb"(?:\[\w+\] )?(?:Receive: |Finish: |Received request |Added request )")


class Seen(NamedTuple):
    """A mark on a line, and where its groups stand."""

    mark: Mark
    spans: tuple[Span, ...]
    exact: re.Pattern[bytes] | None


@dataclass(frozen=True, slots=True)
class Shape:
    """start: where the message begins; clock: what kind of time it bears; who: rank or actor that wrote it.

    work: (kind, spans of who and of the groups in one tuple) of a line that a working server writes by the million.
    """

    seen: tuple[Seen, ...] = ()
    start: int = 0
    clock: str = ""
    stamp: Span = (0, 0)
    who: Span = (0, 0)
    front: int = 0          # end of what a launcher put in front
    work: tuple[str, tuple[int, ...]] | None = None


BORING = Shape()


class Shapes:
    """The cache. `of(line, key)` with key = line.translate(ZEROS)."""

    def __init__(self, marks: Iterable[Mark]):
        self._marks = [(mark, mark.relaxed, mark.exact) for mark in marks]
        self.words: dict[bytes, list[int]] = {}     # every line that a mark can match holds one: the marks to try then
        for i, (_, relaxed, _) in enumerate(self._marks):
            for word in needed(relaxed.pattern.decode()):
                self.words.setdefault(word.encode(), []).append(i)
        self._heads: dict[bytes, list[bytes]] = {}
        for word in self.words:
            self._heads.setdefault(word[:HEAD], []).append(word)
        self._short = [head for head in self._heads if len(head) < HEAD]
        self.known: dict[bytes, Shape] = {}
        self.learned = 0        # how often a key was not in `known`
        self._boring: dict[bytes, Shape] = {}
        self._held = 0

    def learn(self, key: bytes) -> Shape:
        """The shape of a key that is not in `known`; puts it there."""
        self.learned += 1
        coarse = key[:READ].translate(HEX)      # identifiers in hexadecimal are not news either
        if (shape := self._boring.get(coarse)) is not None:
            return shape
        shape = self._read(key[:READ])
        self._held += len(key) + len(coarse)
        if self._held > MOST:
            self.known.clear()
            self._boring.clear()
            self._held = 0
        self.known[key] = shape
        if shape is BORING:
            self._boring[coarse] = shape
        return shape

    def _read(self, text: bytes) -> Shape:
        heads = {text[i:i + HEAD] for i in range(len(text) - HEAD + 1)} & self._heads.keys()
        heads.update(head for head in self._short if head in text)
        tried = {i for head in heads for word in self._heads[head] if word in text for i in self.words[word]}
        if not tried:
            return BORING
        clock, stamp, who, start, front = prefix(text)
        body = text[start:]
        if _REQUEST.match(body):
            return BORING
        seen = []
        for mark, relaxed, exact in (self._marks[i] for i in sorted(tried)):
            if m := relaxed.search(body):
                spans = tuple((a + start, b + start) if a >= 0 else (0, 0) for a, b in m.regs[1:])
                seen.append(Seen(mark, spans, exact))
        work = next(((one.mark.kind, tuple(n for span in (who, *one.spans) for n in span)) for one in seen
                     if one.mark.kind in WORK), None)
        seen = [one for one in seen if one.mark.kind not in WORK]
        if not seen and not work:
            return BORING
        return Shape(tuple(seen), start, clock, stamp, who, front, work)


def stamped(key: bytes) -> Shape:
    """The prefix alone, of a line that need not be news."""
    clock, stamp, who, start, front = prefix(key[:READ])
    return Shape((), start, clock, stamp, who, front)


def prefix(text: bytes) -> tuple[str, Span, Span, int, int]:
    """(kind of clock, its span, who's span, where the message starts, where the launcher's part ends)."""
    for clock, pattern in (("sglang", _SGLANG), ("vllm", _VLLM), ("llama", _LLAMA)):
        if m := pattern.search(text):
            actor = _actor(text[:m.start()]) if clock == "vllm" else m.span(2) if clock == "sglang" else (0, 0)
            front = m.start()
            while clock == "vllm" and front and text[front - 1:front].isalpha():    # the whole word, ERROR
                front -= 1
            return clock, m.span(1), actor, m.end(), front
    clock, stamp, who, start = "", (0, 0), (0, 0), 0
    for _ in range(8):
        rest = text[start:]
        for name, pattern in (("iso", _ISO), ("syslog", _SYSLOG), ("clock", _CLOCK), ("", _FRONT)):
            if m := pattern.match(rest):
                if name and not clock:
                    clock, stamp = name, (m.start(1) + start, m.end(1) + start)
                elif not name and m.start("actor") >= 0:
                    who = (m.start("actor") + start, m.end("actor") + start)
                start += m.end()
                break
        else:
            break
    return clock, stamp, who, start, start


def _actor(text: bytes) -> Span:
    found = list(re.finditer(rb"\((\w+)[^()]{0,40}pid=0+\)", text))
    return found[-1].span(1) if found else (0, 0)


def seconds(clock: str, stamp: bytes) -> float | None:
    """A stamp as seconds; only differences between two of the same clock mean anything.

    >>> seconds("llama", b"0.01.469.702")
    1.469702
    """
    text = stamp.decode("ascii", "replace").replace(",", ".")
    try:
        if clock == "llama":
            minutes, secs, milli, micro = map(int, text.split("."))
            return minutes * 60 + secs + milli / 1e3 + micro / 1e6
        if clock == "vllm":
            text = "2000-" + text       # without a year; 2000 has a 29th of February
        elif clock == "clock":
            text = "2000-01-01 " + text
        elif clock == "syslog":
            return datetime.strptime("2000 " + text, "%Y %b %d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
