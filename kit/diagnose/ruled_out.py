"""What it was not: each entry needs a reason that stands in the log."""

from __future__ import annotations

import re

from kit.diagnose.start import Start
from kit.findings import Finding

MEMORY = re.compile("memory")


def ruled_out(start: Start, state: str) -> list[Finding]:
    said = [(name, why) for name, why in _all(start, state) if why]
    if not said:
        return []
    return [Finding("ruled-out", "pass", "not " + ", not ".join(name for name, _ in said),
                    "; ".join(f"{name}: {why}" for name, why in said))]


def _all(start: Start, state: str) -> list[tuple[str, str]]:
    ids = {h.cause.id for h in start.hits.values()}
    done = {id for id, p in start.phases.items() if p.ended and not p.open}
    return [
        ("a crash", "no exception and no exit of a process" if state == "starting" else ""),
        ("the flags", "the server printed its arguments, so it took them"
         if start.printed and not ids & {"flag", "spec-steps-missing", "spec-topk-missing"} else ""),
        ("NCCL's start", "the processes found each other" if "distributed" in done and "nccl-error" not in ids else ""),
        ("the target's weights", "they were loaded" if "load-target" in done else ""),
        ("the drafter's weights", "they were loaded" if "load-drafter" in done else ""),
        ("GPU memory", "weights and cache were allocated, no line tells of want" if {"load-target", "kv-cache"} <= done
         and not any(MEMORY.search(i) for i in ids) else ""),
        ("the port", "it was opened" if {"warmup", "listening"} & set(start.phases) else ""),
        ("the kernel's OOM killer", "an exception came before the SIGKILL: a server so ends its own processes when "
         "one of them failed" if start.killed and start.told and "host-memory" not in ids else ""),
    ]
