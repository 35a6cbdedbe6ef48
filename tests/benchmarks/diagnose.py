"""Seconds and peak memory to diagnose a generated log of 2 GB (nothing is written to disk).

    python tests/benchmarks/diagnose.py [GIGABYTES] [serving | journal | text]

serving: decode, prefill and access lines of an SGLang server, each with numbers of its own.
journal: the same as journalctl -o json prints it. text: lines of words, no two alike.
"""

from __future__ import annotations

import io
import json
import random
import resource
import sys
import time

from kit.diagnose import diagnose

PART = 16 << 20     # bytes generated once and repeated: made before the clock starts


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 2) * 1e9)
    kind = sys.argv[2] if len(sys.argv) > 2 else "serving"
    part = {"serving": _serving, "journal": _journal, "text": _text}[kind]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, worked = time.perf_counter(), time.process_time()
    said = diagnose(Repeated(part, size))
    took, cpu = time.perf_counter() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{kind}: {size / 1e9:.2f} GB, {said.lines} lines: {took:.1f} s ({cpu:.1f} s of CPU), "
          f"peak RSS {peak / 1024:.0f} MiB ({before / 1024:.0f} before), {said.state}")


class Repeated(io.RawIOBase):
    """`size` bytes that repeat `part`."""

    def __init__(self, part: bytes, size: int):
        self.part, self.size, self.at = part, size, 0

    def read(self, size: int = -1) -> bytes:
        start = self.at % len(self.part)
        got = self.part[start:start + min(size, self.size - self.at)]
        self.at += len(got)
        return got


def _lines() -> list[str]:
    rng, lines, length = random.Random(1), [], 0
    while length < PART:
        at = f"2026-05-01 10:{rng.randrange(60):02}:{rng.randrange(60):02}"
        tokens, share = rng.randrange(99999), rng.random()
        lines.append(rng.choice((
            f"[{at} TP0] Decode batch, #running-req: {rng.randrange(1, 64)}, #token: {tokens}, "
            f"token usage: {share:.2f}, accept len: {1 + 3 * rng.random():.2f}, accept rate: {share:.2f}, "
            f"cuda graph: True, gen throughput (token/s): {share * 5000:.2f}, #queue-req: {rng.randrange(9)}",
            f"[{at} TP0] Prefill batch, #new-seq: {rng.randrange(1, 9)}, #new-token: {tokens}, #cached-token: "
            f"{rng.randrange(999)}, token usage: {share:.2f}, #running-req: {rng.randrange(1, 64)}, #queue-req: 0, "
            f"#pending-token: 0, cuda graph: False, input throughput (token/s): {share * 5000:.2f}",
            f'[{at}] INFO:     127.0.0.1:{rng.randrange(30000, 60000)} - "POST /generate HTTP/1.1" 200 OK')))
        length += len(lines[-1])
    return lines


def _serving() -> bytes:
    return "\n".join(_lines()).encode() + b"\n"


def _journal() -> bytes:
    lines = (json.dumps({"__CURSOR": f"s=0;i={n:x}", "__REALTIME_TIMESTAMP": str(1_770_000_000_000_000 + n),
                         "PRIORITY": "6", "_SYSTEMD_UNIT": "sglang.service", "_PID": "4242", "MESSAGE": line})
             for n, line in enumerate(_lines()))
    return "\n".join(lines).encode() + b"\n"


def _text() -> bytes:
    rng = random.Random(1)
    words = "the model answers a question with words that nobody counted before lunch over rivers and hills".split()
    return b"".join(" ".join(rng.choices(words, k=24)).encode() + b"\n" for _ in range(PART // 140))


if __name__ == "__main__":
    main()
