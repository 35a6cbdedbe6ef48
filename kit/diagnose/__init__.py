"""Reads a server's log as an expert would: how far it came, where and why it stopped, what it was not.

    from kit.diagnose import diagnose
    diagnose(open("server.log", "rb"))

Pure: bytes or lines in, findings out. Patterns are tables, one file per engine;
a log of gigabytes is read once, in bounded memory.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kit.diagnose import common, llamacpp, sglang, vllm
from kit.diagnose.judge import Summary, findings, summary
from kit.diagnose.marks import Mark
from kit.diagnose.reader import Batch, batches, grouped
from kit.diagnose.records import Line, Phase
from kit.diagnose.shapes import BORING, ZEROS, Shapes, stamped
from kit.diagnose.start import Start, arguments
from kit.findings import Finding, Report
from kit.lint.flags import known_versions
from kit.lint.versions import parse, show

TABLES = {"sglang": sglang, "vllm": vllm, "llamacpp": llamacpp}
# What tells the engines apart, in the order in which to ask.
PRINTS = (("sglang", re.compile(rb"server_args=ServerArgs|sglang|SGLang|Load weight (?:begin|end)|Decode batch"
                                rb"|KV Cache is all|Capture [\w ]*(?:cuda|CUDA) graph (?:begin|end)| TP\d+\] ")),
          ("vllm", re.compile(rb"vLLM|vllm|EngineCore|SpecDecoding metrics|Avg generation throughput")),
          ("llamacpp", re.compile(rb"xllamacpp|llamacpp|srv  |llama_model|main: error: draft model")))
NEW = 1000          # lines of new shapes in one batch, and a quarter of it: most of what follows will be new as well
CONTROL = bytes({*range(32)} - {*b"\t\n\r\x1b"})


@dataclass(frozen=True)
class Diagnosis:
    """What a log says.

    state    "serving", "starting", "stopped" (ended from outside), "failed", or "unreadable" (no server's log)
    phases   of the last start, in order
    cause    id of the cause, "" where it is not known or nothing failed
    """

    state: str
    engine: str
    report: Report
    phases: tuple[Phase, ...] = ()
    cause: str = ""
    starts: int = 1
    lines: int = 0

    @property
    def exit_status(self) -> int:
        """1: something failed; 2: it could not be judged; 0: nothing failed (unknown findings are listed)."""
        if not self.report.ok:
            return 1
        return 2 if self.state in ("failed", "unreadable") else 0

    def __repr__(self) -> str:
        return repr(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def diagnose(log: Any, engine: str = "", command: str = "", silent_s: float | None = None,
             title: str = "") -> Diagnosis:
    """The diagnosis of one log.

    log       a binary stream, or lines: bytes, text, or `kit.seams.LogLine`s as `kit.following.recent` gives them
    engine    "sglang", "vllm", "llamacpp", with a release or without ("sglang==0.5.12"); "" finds it out
    command   the command line of the server, where it is known
    silent_s  how long a live service has written nothing

    >>> diagnose(["RuntimeError: selected index k out of range"], "sglang").cause
    'spec-tree-too-wide'
    """
    name, _, version = engine.partition("==")
    if name and name not in TABLES:
        return _unjudged(title, Finding("engine", "unknown", f"no tables for the engine {name[:40]!r}",
                                        fix=f"known: {', '.join(TABLES)}"))
    release, odd = _release(name, version)
    if odd and odd.id == "engine":
        return _unjudged(title, odd)
    source = batches(log) if hasattr(log, "read") else grouped(log)
    reading = Reading(name, arguments(command))
    for batch in source:
        reading.feed(batch)
    return reading.result(release, odd, silent_s, title)


def _unjudged(title: str, finding: Finding) -> Diagnosis:
    return Diagnosis("unreadable", "", Report((finding,), title))


def _release(name: str, version: str) -> tuple[tuple[int, ...] | None, Finding | None]:
    if not version:
        return None, None
    release = parse(version)
    if release is None:
        return None, Finding("engine", "unknown", f"{version[:40]!r} is no release", fix="name==0.5.12.post1")
    known = list(known_versions(name)) if name in ("sglang", "vllm") else []
    if known and release > max(known):
        return release, Finding("engine-version", "unknown", f"{name} {version} is newer than all releases read",
                                "its lines may be worded in another way", f"the newest read is {show(max(known))}")
    return release, None


class Reading:
    """The state of reading one log."""

    def __init__(self, engine: str, args: dict[str, str]):
        self.engine, self.given_args = engine, args
        self.looks = ""                     # the engine that the first lines show
        self.shapes: Shapes | None = None
        self.sieve: Any = None              # before the shapes, once most lines have one of their own
        self.start = self._fresh(0)
        self.past: deque[Summary] = deque(maxlen=100)
        self.last_failed: Start | None = None
        self.restarts = 0
        self.starts = 1
        self.lines = self.binary = 0
        self.last: Line | None = None       # the last line that bears a time

    def _fresh(self, restarts: int) -> Start:
        start = Start(restarts)
        start.args |= self.given_args
        return start

    def feed(self, batch: Batch) -> None:
        if not batch.lines:
            return
        if self.shapes is None:
            self.looks = guess(batch.lines)
            self.engine = self.engine or self.looks
            self.shapes = Shapes(table(self.engine))
        known, learn, serving = self.shapes.known.get, self.shapes.learn, self.start.serving
        if _binary(batch.text):
            self.binary += 1
            self.lines = batch.numbers[-1]
            return
        lines, numbers, decode, prefill = batch.lines, batch.numbers, serving.decode, serving.prefill
        before, zeroed = self.shapes.learned, batch.text.translate(ZEROS)
        if self.sieve:      # its words have zeros for digits, too
            keys = ((i, lines[i].translate(ZEROS)) for i in self.sieve.lines(zeroed))
        else:
            keys = enumerate(zeroed.split(b"\n"))
        for i, key in keys:
            shape = known(key)
            if shape is None:
                shape = learn(key)
            if shape is BORING:
                continue
            if shape.work is not None:
                kind, spans = shape.work
                (decode if kind == "decode" else prefill)(numbers[i], lines[i], spans)
            if shape.seen:
                self._take(batch, i, shape)
                decode, prefill = self.start.serving.decode, self.start.serving.prefill
        self.lines = batch.numbers[-1]
        self._remember_time(batch)
        if not self.sieve and self.shapes.learned - before > NEW + len(lines) // 4:
            from kit.diagnose.sieve import Sieve  # numpy is loaded for such a log only
            self.sieve = Sieve(self.shapes.words)

    def _take(self, batch: Batch, i: int, shape) -> None:
        raw = batch.lines[i]
        line = Line(batch.numbers[i], raw, shape, batch.time_s(i))
        for mark, spans, exact in shape.seen:
            if exact is not None and not exact.search(raw[shape.start:]):
                continue
            groups = [raw[a:b] for a, b in spans]
            if mark.kind == "restart":
                self.restarts = int(groups[0])
                self._next()
                continue
            if mark.id == "args" and line.source in self.start.sources and self.start.phases:
                self._next()
            self.start.take(mark, line, groups)

    def _next(self) -> None:
        """Another start begins."""
        if not self.start.marks and not self.start.serving.first:
            return
        done = summary(self.start)
        self.past.append(done)
        if done.state == "failed":
            self.last_failed = self.start
        self.starts += 1
        self.start = self._fresh(self.restarts)

    def _remember_time(self, batch: Batch) -> None:
        for i in range(len(batch.lines) - 1, max(-1, len(batch.lines) - 50), -1):
            shape = stamped(batch.lines[i].translate(ZEROS))
            transport_s = batch.time_s(i)
            if shape.clock or transport_s is not None:
                self.last = Line(batch.numbers[i], batch.lines[i], shape, transport_s)
                return

    def result(self, release, odd: Finding | None, silent_s: float | None, title: str) -> Diagnosis:
        if not self.lines:
            return _unjudged(title, Finding("input", "unknown", "the log is empty", fix="is it the right file?"))
        now = summary(self.start)
        start, state = self.start, now.state
        if self.last_failed and state in ("starting", "unreadable"):
            start, state = self.last_failed, "failed"
        elif state == "unreadable" and self.past:
            state = self.past[-1].state
        found = findings(start, state, self.last, silent_s, self.starts, self.restarts, list(self.past))
        if state == "unreadable":
            kind = "binary data" if self.binary else "no line that a known engine writes"
            found.append(Finding("input", "unknown", f"{kind} in {self.lines} lines", fix="is it the server's log?"))
        if odd:
            found.append(odd)
        if self.looks and self.looks != self.engine:
            found.append(Finding("engine-other", "warn", f"this looks like a log of {self.looks}, not {self.engine}"))
        cause = next((f.id for f in found if f.verdict == "fail"), "")
        return Diagnosis(state, self.engine, Report(tuple(found), title), tuple(start.phases.values()), cause,
                         self.starts, self.lines)


def _binary(data: bytes) -> bool:
    """More than one byte in twenty of the beginning is a control character that no log holds."""
    data = data[:1 << 14]
    return (len(data) - len(data.translate(None, CONTROL))) * 20 > len(data)


def table(engine: str) -> list[Mark]:
    """All marks for one engine, or for any ("")."""
    tables = [TABLES[engine]] if engine else list(TABLES.values())
    return [m for table in (*tables, common) for m in table.MARKS] + \
        [c for table in (*tables, common) for c in table.CAUSES]


def guess(lines: Iterable[bytes]) -> str:
    """The engine that wrote these lines; "" where they do not show it."""
    text = b"\n".join(lines)
    return next((name for name, pattern in PRINTS if pattern.search(text)), "")
