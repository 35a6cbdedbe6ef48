"""Run folders: every benchmark leaves one, and nothing rewrites it.

    data/runs/20250131T120000Z-laptop-eagle3-1f3a/
        run.json        what was run, where and with what: id, experiment, arm, engine, host, …
        job.json        the requests, as they were sent
        records.jsonl   one raw record per request, warm-up and failed ones too
        cells.jsonl     per (prompt set, concurrency): metrics pages before and after, client CPU
        done.json       only in a complete run
        unit.txt, server.json, server.log   of the service that was measured, where they could be read (kit.evidence)

A folder appears under its name only when everything is in it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kit.command import sh
from kit.errors import KitError, ParseError
from kit.project import resolve
from kit.seams import Host
from kit.spec import Experiment

SCHEMA = 1
FOLDER = "data/runs"
FILES = ("job.json", "records.jsonl", "cells.jsonl", "done.json")
META = ("id", "experiment", "arm", "engine")
RECORD = frozenset(("id", "set", "concurrency", "phase", "error", "t_send", "t_end", "chunks", "usage", "text"))
CELL = frozenset(("set", "concurrency"))
ID = re.compile(r"^\d{8}T\d{6}Z-[a-z0-9-]+-[0-9a-f]{4}$")


@dataclass(frozen=True)
class Run:
    """One run as it lies on disk. `problem` says why it is not complete, "" when it is.

    records   one dict per request (kit/remote/load.py says what is in it)
    cells     one dict per cell
    done      the client's last words, {} when it did not come to its end
    """

    id: str
    folder: Path
    meta: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...] = ()
    cells: tuple[Mapping[str, Any], ...] = ()
    done: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def complete(self) -> bool:
        return not self.problem

    @property
    def arm(self) -> str:
        return self.meta.get("arm", "")

    def __repr__(self) -> str:
        failed = sum(1 for r in self.records if r.get("error") and r.get("phase") == "measure")
        return f"<Run {self.id}: {len(self.cells)} cells, {len(self.records)} requests" + \
            (f", {failed} failed" if failed else "") + (f" ({self.problem})" if self.problem else "") + ">"


def new_id(exp: Experiment, now: datetime | None = None) -> str:
    """YYYYmmddTHHMMSSZ-experiment-arm-xxxx: sorts by time, and never twice the same."""
    now = now or datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{exp.name}-{exp.arm_name}-{secrets.token_hex(2)}"


def collect(host: Host, remote_dir: str, meta: Mapping[str, Any], folder: str | Path = FOLDER,
            beside: Mapping[str, bytes] = MappingProxyType({})) -> Run:
    """Bring a run home, complete or not. A complete one that is here already is left alone.

    meta     the facts for run.json; it needs id, experiment (as `model_dump`), arm and engine {"name": …}
    beside   further files of the run: {name: content}

    Raises a `HostError` when the link breaks; then nothing appears here and nothing is lost there.
    """
    folder = resolve(folder)
    final = folder / _checked(meta["id"])
    if (there := _read(final)) and there.complete:
        return there
    names = host.run(sh('cd "$1" && ls', remote_dir)).check(
        f"the run {meta['id']} is not on the host", "benchmark again").text.split("\n")
    fresh = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{meta['id']}-", dir=folder))
        for name in FILES:
            if name in names:
                host.get(f"{remote_dir}/{name}", str(fresh / name))
        facts = {"schema": SCHEMA, "created": datetime.now(UTC).isoformat(timespec="seconds"), **meta}
        (fresh / "run.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        for name, content in beside.items():
            (fresh / name).write_bytes(content)
        fresh.chmod(0o755)
        if final.exists():              # an incomplete one, brought home earlier
            final.rename(fresh / "replaced")
        fresh.rename(final)
        shutil.rmtree(final / "replaced", ignore_errors=True)
    except OSError as e:
        if isinstance(e, KitError):
            raise
        raise KitError(f"cannot keep the run: {e.strerror}", where=str(final),
                       next=f"make it writable, with room; on the host the run still lies in {remote_dir}") from None
    finally:
        if fresh:
            shutil.rmtree(fresh, ignore_errors=True)
    return load(meta["id"], folder)


def runs(folder: str | Path = FOLDER) -> list[Run]:
    """All runs, newest first; what cannot be read is listed with its problem."""
    folder = resolve(folder)
    names = sorted((n for n in os.listdir(folder) if ID.match(n)), reverse=True) if folder.is_dir() else []
    return [run for name in names if (run := _read(folder / name))]


def load(run_id: str, folder: str | Path = FOLDER) -> Run:
    """One run. `KitError` when there is none of that id."""
    folder = resolve(folder)
    run = _read(folder / _checked(run_id))
    if run is None:
        newest = ", ".join(r.id for r in runs(folder)[:3]) or "none"
        raise KitError(f"no run {run_id}", where=str(folder), next=f"newest ones: {newest}")
    return run


def _checked(run_id: str) -> str:
    if not ID.match(run_id):
        raise KitError(f"not a run id: {run_id!r}", next="one reads 20250131T120000Z-laptop-eagle3-1f3a")
    return run_id


def _read(path: Path) -> Run | None:
    if not path.is_dir():
        return None
    problems: list[str] = []

    def part(parse, name: str, default):
        try:
            return parse(path / name)
        except FileNotFoundError:
            problems.append(f"{name} is missing" if name != "done.json" else "did not come to its end")
        except OSError as e:
            problems.append(f"{name}: {e.strerror}")
        except ValueError as e:
            problems.append(f"{name}: {e.what if isinstance(e, KitError) else 'not JSON'}")
        return default

    meta = part(_meta, "run.json", {})
    records = part(lambda p: _lines(p, RECORD), "records.jsonl", ())
    cells = part(lambda p: _lines(p, CELL), "cells.jsonl", ())
    done = part(_object, "done.json", {})
    return Run(path.name, path, meta, records, cells, done, "; ".join(problems))


def _meta(path: Path) -> dict[str, Any]:
    meta = _object(path)
    if meta.get("schema") != SCHEMA:
        raise ParseError(f"schema {meta.get('schema')!r}, this kit reads {SCHEMA}")
    if missing := [k for k in META if k not in meta]:
        raise ParseError(f"no {missing[0]}")
    Experiment._checked(meta["experiment"], str(path))
    return meta


def _object(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ParseError("not an object")
    return data


def _lines(path: Path, keys: frozenset[str]) -> tuple[dict[str, Any], ...]:
    """All lines; a last one without its newline was cut while being written, and is left out."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise ParseError(f"line {number} is not JSON") from None
        if not isinstance(row, dict) or keys - row.keys():
            raise ParseError(f"line {number} is not what load.py writes")
        rows.append(row)
    return tuple(rows)
