"""How long starts took, so that the next one can say what to expect. One JSON line per launch in data/."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from kit import project
from kit.spec import Experiment


def _file() -> Path:
    return project.root() / "data" / "launches.jsonl"


def record(exp: Experiment, host: str, healthy_s: float) -> None:
    """Remember one launch: when, where, which arm, seconds from start to healthy."""
    row = {"time_s": round(time.time(), 1), "host": host, "unit": exp.unit, "engine": exp.engine.name,
           "algorithm": exp.spec.algorithm, "target": exp.target.source, "healthy_s": round(healthy_s, 2)}
    _file().parent.mkdir(parents=True, exist_ok=True)
    with _file().open("a") as f:
        f.write(json.dumps(row) + "\n")


def history() -> list[dict]:
    """All launches, oldest first; a line cut by a crash is passed over."""
    rows = []
    for line in _file().read_text().splitlines() if _file().exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def expected_s(exp: Experiment, host: str) -> float | None:
    """Median seconds of earlier launches of this target and algorithm there; None when there was none."""
    same = [r["healthy_s"] for r in history()
            if (r["host"], r["target"], r["algorithm"]) == (host, exp.target.source, exp.spec.algorithm)]
    return statistics.median(same) if same else None
