"""What the load is: experiment + prompts + engine → the job file for `remote/load.py`. Pure.

Every arm gets the same requests in the same order, and so does every concurrency: only then a difference is the
arm's own. Warm-up prompts come from a file of their own, and where the engine keeps a prefix cache it is emptied
before each measured cell: else the second concurrency would hardly compute a prompt.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kit.errors import SpecError
from kit.project import resolve
from kit.seams import Engine, Unit
from kit.shipping import path as shipped
from kit.spec import Experiment
from kit.supervisors import supervisor

FOLDER = "data/prompts"
WARMUP = "warmup"
FIELDS = ("id", "category", "prompt")
WARMUP_TOKENS = 16      # enough to pass through every kind of step; its own numbers are not used
SETTLE_S = 0.2          # engines publish counters a moment after the last chunk
GIVE_UP_AFTER = 5       # refused connections in a row


def prompts(name: str, folder: str | Path = FOLDER) -> list[dict[str, str]]:
    """The prompts of one set, in file order: [{"id", "category", "prompt"}, …].

    >>> prompts("chat")[0]["id"]
    'chat-000'
    """
    folder = resolve(folder)
    path = folder / f"{name}.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as e:
        known = ", ".join(sorted(p.stem for p in folder.glob("*.jsonl")))
        raise SpecError(f"no prompt set {name!r}: {e.strerror}", where=str(folder), next=f"known: {known}") from None
    except ValueError as e:
        raise SpecError(f"not JSON lines: {e}", where=str(path), next="mend that line") from None
    bad = [n for n, r in enumerate(rows, 1)
           if not isinstance(r, dict) or not all(isinstance(r.get(k), str) and r[k] for k in FIELDS)]
    if bad:
        raise SpecError("a prompt needs the texts id, category and prompt", where=f"{path} line {bad[0]}",
                        next="mend that line")
    if len({r["id"] for r in rows}) < len(rows):
        raise SpecError("two prompts have the same id", where=str(path), next="give each its own")
    return rows


def job(exp: Experiment, engine: Engine, run_id: str, folder: str | Path = FOLDER) -> dict[str, Any]:
    """The job file as a dict. `SpecError` where a cell could not mean what it says."""
    bench = exp.bench
    lonely = [c for c in bench.concurrency if c > bench.prompts]
    if lonely:
        raise SpecError(f"bench.concurrency: {bench.prompts} prompts never make {lonely[0]} requests in flight",
                        where=exp.name, next=f"set bench.prompts to {lonely[0]} or more")
    requests = {}
    for name in bench.prompt_sets:
        rows = prompts(name, folder)
        if len(rows) < bench.prompts:
            raise SpecError(f"bench.prompts: {bench.prompts} wanted, the set {name!r} has {len(rows)}", where=exp.name,
                            next="set fewer, or add prompts to the file: a repeated one would be answered from a cache")
        requests[name] = [_request(row, exp, engine) for row in rows[:bench.prompts]]
    warm = prompts(WARMUP, folder) if bench.warmup else []
    return {
        "schema": 1, "run_id": run_id,
        "url": f"http://127.0.0.1:{exp.serve.port}", "metrics_path": engine.metrics_path(),
        "flush_path": engine.flush_path() if supervisor(exp.host.supervisor).ours else "",     # others use it, too
        "cells": [{"prompt_set": s, "concurrency": c} for s in bench.prompt_sets for c in bench.concurrency],
        "requests": requests,
        "warmup": [_request(warm[n % len(warm)], exp, engine, WARMUP_TOKENS) for n in range(bench.warmup)],
        "limit_s": bench.request_limit_s, "settle_s": SETTLE_S, "give_up_after": GIVE_UP_AFTER,
    }


def _request(row: dict[str, str], exp: Experiment, engine: Engine, at_most: int | None = None) -> dict[str, Any]:
    tokens = min(exp.bench.output_tokens, at_most or exp.bench.output_tokens)
    path, body = engine.generation(row["prompt"], tokens, stream=True)
    return {"id": row["id"], "path": path, "body": body}


def encode(job: dict[str, Any]) -> tuple[bytes, str]:
    """(content of the job file, its sha256)."""
    data = json.dumps(job, sort_keys=True, ensure_ascii=False).encode()
    return data, hashlib.sha256(data).hexdigest()


def remote_dir(root: str, run_id: str) -> str:
    """The run's folder on the host; its job file is `job.json` in there."""
    return f"{root}/runs/{run_id}"


def unit(exp: Experiment, root: str, python: str, run_id: str, job_sha: str) -> Unit:
    """The supervised job. `load.py` refuses a job file whose sha256 is another one."""
    out = remote_dir(root, run_id)
    return Unit(f"bench-{exp.unit}", (python, shipped("load.py", root), f"{out}/job.json", out),
                env={"SPECBOOK_JOB_SHA256": job_sha}, kind="job",
                about={"experiment": exp.name, "arm": exp.arm_name, "run_id": run_id})
