"""`python -m kit diagnose`: read a server's log and say how far it came, and why it stopped.

    python -m kit diagnose server.log --engine sglang==0.5.12.post1
    journalctl -u sglang -o json | python -m kit diagnose - --json
    python -m kit diagnose --service configs/k26-eagle3.yaml

Exit status: 1 when something failed, 2 when it could not be judged (unknown
engine, nothing to read, a log whose cause it cannot tell), else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from kit.diagnose import Diagnosis, diagnose
from kit.errors import KitError
from kit.findings import Finding, Report


def main(argv: list[str]) -> int:
    """Runs the command on its own arguments (without the word `diagnose`); returns the exit status."""
    parser = argparse.ArgumentParser("kit diagnose", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("log", metavar="LOG", nargs="?",
                        help="file (.gz too), or - for standard input; text or journal JSON")
    parser.add_argument("--service", default="", metavar="CONFIG", help="instead of LOG: what this config runs, or "
                        "ran, on its host")
    parser.add_argument("--arm", default="", help="of the config; else the one that runs there")
    parser.add_argument("--host", default="", help="another host's ssh name, instead of the config's")
    parser.add_argument("--engine", default="", metavar="NAME[==VERSION]", help="found out where it is left out")
    parser.add_argument("--command", default="", help="the server's command line, where the log does not show it")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    args = parser.parse_args(argv)
    if bool(args.log) == bool(args.service):
        parser.error("give a LOG, or --service CONFIG")
    try:
        if args.service:
            found = _live(args.service, args.arm, args.host)
        else:
            with _opened(args.log) as stream:
                found = diagnose(stream, args.engine, args.command, title=args.log)
        report, status = found.report, found.exit_status
    except KitError as e:
        report, status = Report((Finding("input", "unknown", e.what, e.where, e.next),), args.service), 2
    except (OSError, EOFError, zlib.error) as e:     # the last two: an archive that was cut, or is none
        said = getattr(e, "strerror", None) or e
        report = Report((Finding("input", "unknown", f"cannot read it: {said}", fix="correct the path"),), args.log)
        status = 2
    print(report.to_json() if args.json else shown(report))
    return status


def _live(config: str, arm: str, host: str) -> Diagnosis:
    from kit import reading, verbs  # SSH and frames: a file needs neither
    from kit.spec import Experiment

    exp = Experiment.load(config, host)
    there = verbs.connect(exp)
    try:
        return reading.diagnosis(exp.arm(arm) if arm else reading.running(exp, there), there)
    finally:
        there.close()


def shown(report: Report) -> str:
    """The report with its evidence: of a log, the lines are half of the answer."""
    lines = [report.title]
    for f in report:
        lines.append(f"{f.verdict:7} {f.id}: {f.what}")
        said = (("why", f.why), ("fix", f.fix)) if f.verdict != "pass" or f.id == "ruled-out" else ()
        lines += [f"{'':8}{label}: {text}" for label, text in said if text]
        lines += [f"{'':8}| {line}" for line in f.evidence.splitlines() if f.verdict != "pass"]
    return "\n".join(lines)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        if plain.seekable():
            plain.seek(0)
        if not packed:
            yield plain
            return
        with gzip.open(plain) as unpacked:
            yield unpacked
