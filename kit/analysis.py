"""Measured cells → a comparison with the baseline, arm by arm. Pure pandas.

    points    one row per (run, prompt set, concurrency)
    requests  one row per measured request
    compare   one row per (arm, prompt set, concurrency): speed-up, and what explains it

What cannot be computed is NaN, and `note` says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from kit.seams import STREAMED

POINTS = ("run_id", "experiment", "arm", "algorithm", "drafts", "prompt_set", "concurrency", "requests", "failed",
          "wall_s", "output_tokens", "tok_s", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95", "e2e_ms_p50",
          "accept_length", "accepted", "drafted", "steps", "accept_by_position", "accept_source")
REQUESTS = ("run_id", "experiment", "arm", "algorithm", "prompt_set", "concurrency", "prompt_id", "ok", "error",
            "ttft_ms", "tpot_ms", "e2e_ms", "output_tokens", "chunks", "text")
COMPARE = ("experiment", "arm", "algorithm", "drafts", "prompt_set", "concurrency", "run_id", "requests", "failed",
           "tok_s", "baseline_tok_s", "speedup", "tpot_ms", "baseline_tpot_ms", "tpot_speedup", "ttft_ms",
           "accept_length", "tokens_per_step", "draft_share", "step_ms", "step_cost", "break_even_length",
           "identical", "compared", "note")
ESTIMATED = "time per token estimated from throughput"
REFERENCE = Path(__file__).resolve().parent.parent / "data" / "reference" / "h200-sglang-0.5.12.post1"


def newest(points: pd.DataFrame, runs: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One run per (experiment, arm): the one named in `runs`, else the newest complete one.

    Run ids sort by time. A run is complete when each of its cells has a throughput; without
    such a run the newest one is kept.
    """
    if points.empty:
        return points
    keep = []
    for (_, arm), of_arm in points.groupby(["experiment", "arm"], sort=False):
        cells = of_arm.groupby("run_id")["tok_s"].agg(["size", "count"])
        complete = cells[cells["count"] == cells["size"]]
        run = (runs or {}).get(arm, max(complete.index if len(complete) else cells.index))
        keep.append(of_arm[of_arm["run_id"] == run])
    return pd.concat(keep).drop_duplicates(["experiment", "arm", "prompt_set", "concurrency"], keep="last")


def compare(points: pd.DataFrame, requests: pd.DataFrame | None = None, baseline: str = "baseline",
            runs: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Every cell beside the baseline's cell of the same prompts and concurrency.

    speedup            ratio of output tokens per second, arm / baseline
    tpot_speedup       ratio of median time per output token, baseline / arm
    tokens_per_step    decoded tokens / engine steps of one request. A step gives one token and the accepted
                       drafts, and the first token comes from the prompt, so with n answered requests
                       steps = output_tokens − n − accepted. Without that counter: the accept length.
    draft_share        part of the steps that had a draft (1 for a drafter model, less for n-gram)
    step_ms            tpot × tokens_per_step: mean time of one step, drafting included
    step_cost          step_ms / the baseline's tpot: "a step costs x single steps"
    break_even_length  accept length at which the arm would just equal the baseline's tpot, steps
                       costing what they cost here: 1 + (step_cost − 1) / draft_share
    identical/compared prompts whose text equals the baseline's, of those answered in both arms

    Where an arm or its baseline has no tpot, both are taken from the throughput
    (concurrency / tok_s), which counts the prompt phase too; `note` says so.

    >>> compare(pd.DataFrame(columns=POINTS)).empty
    True
    """
    points = newest(points, runs)
    texts = _texts(points, requests)
    rows = []
    for _, of_experiment in points.groupby("experiment", sort=False):
        base = {(c["prompt_set"], c["concurrency"]): c
                for c in of_experiment[of_experiment["arm"] == baseline].to_dict("records")}
        for cell in of_experiment.to_dict("records"):
            other = base.get((cell["prompt_set"], cell["concurrency"]))
            rows.append(_row(cell, other, baseline) | _identical(texts, cell, other, baseline))
        rows += _missing(of_experiment, baseline)
    frame = pd.DataFrame(rows, columns=list(COMPARE))
    return frame.astype({"identical": "Int64", "compared": "Int64"})


def _row(cell: dict, other: dict | None, baseline: str) -> dict:
    notes, plain = [], cell["algorithm"] == "none"
    tok_s, requests, failed = _number(cell["tok_s"]), _number(cell["requests"]), _number(cell["failed"])
    if not tok_s > 0:
        notes.append("no throughput: " + ("no request succeeded" if failed >= requests else "tokens were not counted"))
    if failed > 0:
        notes.append(f"{failed:.0f} of {requests:.0f} requests failed")
    if other is None:
        notes.append(f"no {baseline} cell with these prompts at this concurrency")
        other = {}
    elif _number(other["requests"]) != requests:
        notes.append(f"{baseline} had {_number(other['requests']):.0f} requests, this arm {requests:.0f}")
    tpot, base_tpot, note = _tpots(cell, other)
    notes += note
    per_step, share, note = (1.0, 0.0, []) if plain else _steps(cell)
    notes += note
    step_ms = tpot * per_step
    step_cost = _ratio(step_ms, base_tpot)
    base_tok_s = _number(other.get("tok_s"))
    return {name: cell[name] for name in COMPARE[:7]} | {
        "requests": requests, "failed": failed, "tok_s": tok_s, "baseline_tok_s": base_tok_s,
        "speedup": _ratio(tok_s, base_tok_s), "tpot_ms": tpot, "baseline_tpot_ms": base_tpot,
        "tpot_speedup": _ratio(base_tpot, tpot), "ttft_ms": _number(cell["ttft_ms_p50"]),
        "accept_length": math.nan if plain else _number(cell["accept_length"]),
        "tokens_per_step": per_step, "draft_share": share, "step_ms": step_ms, "step_cost": step_cost,
        "break_even_length": 1 + _ratio(step_cost - 1, share),
        "note": "; ".join(notes)}


def _tpots(cell: dict, other: dict) -> tuple[float, float, list[str]]:
    """Median time per output token of the arm and of the baseline, ms, from the same kind of source."""
    pair = _number(cell["tpot_ms_p50"]), _number(other.get("tpot_ms_p50"))
    if all(t > 0 for t in pair) or (pair[0] > 0 and not other):
        return *pair, []
    n = _number(cell["concurrency"]) * 1000
    pair = _ratio(n, _number(cell["tok_s"])), _ratio(n, _number(other.get("tok_s")))
    return *pair, [ESTIMATED] if pair[0] > 0 else []


def _steps(cell: dict) -> tuple[float, float, list[str]]:
    """(tokens per step, part of the steps with a draft, notes) of a speculative arm's cell."""
    decoded = _number(cell["output_tokens"]) - (_number(cell["requests"]) - _number(cell["failed"]))
    accepted, drafted_steps = _number(cell["accepted"]), _number(cell["steps"])
    length = _number(cell["accept_length"])
    if math.isnan(accepted) and length >= 1:
        return length, 1.0, ["tokens per step taken from the accept length"]
    if math.isnan(accepted) or math.isnan(drafted_steps):
        return math.nan, math.nan, [f"acceptance unknown: {cell['accept_source'] or 'no counters'}"]
    if drafted_steps == 0:
        return 1.0, 0.0, ["nothing was drafted"]
    steps = decoded - accepted
    if not steps > 0:
        return math.nan, math.nan, ["the counters accept more tokens than were received"]
    streamed = cell["accept_source"] == STREAMED
    return decoded / steps, min(1.0, drafted_steps / steps), [f"accept length from {STREAMED}"] if streamed else []


def _missing(points: pd.DataFrame, baseline: str) -> list[dict]:
    """Cells that the baseline has and an arm has not."""
    cells = points[points["arm"] == baseline][["prompt_set", "concurrency"]].itertuples(index=False, name=None)
    wanted, rows = list(cells), []
    for _, of_arm in points.groupby("arm", sort=False):
        have = set(of_arm[["prompt_set", "concurrency"]].itertuples(index=False, name=None))
        about = of_arm.iloc[0]
        rows += [{**{name: about[name] for name in ("experiment", "arm", "algorithm", "drafts", "run_id")},
                  "prompt_set": prompt_set, "concurrency": concurrency, "note": "this arm has no such cell"}
                 for prompt_set, concurrency in wanted if (prompt_set, concurrency) not in have]
    return rows


def _texts(points: pd.DataFrame, requests: pd.DataFrame | None) -> dict[tuple, dict]:
    """{(run, arm, prompt set, concurrency): {(prompt, nth time): text}} of the answered requests."""
    if requests is None or requests.empty or points.empty:
        return {}
    answered = requests[requests["ok"].astype(bool) & requests["text"].notna()
                        & requests["run_id"].isin(points["run_id"])]
    keys = ["run_id", "arm", "prompt_set", "concurrency"]
    answered = answered.assign(nth=answered.groupby([*keys, "prompt_id"]).cumcount())
    return {key: cell.set_index(["prompt_id", "nth"])["text"].to_dict()
            for key, cell in answered.groupby(keys, sort=False)}


def _identical(texts: dict, cell: dict, other: dict | None, baseline: str) -> dict:
    if other is None or cell["arm"] == baseline:
        return {"identical": None, "compared": None}
    here, there = (texts.get((c["run_id"], c["arm"], c["prompt_set"], c["concurrency"]), {}) for c in (cell, other))
    both = here.keys() & there.keys()
    return {"identical": sum(here[k] == there[k] for k in both), "compared": len(both)}


def _number(value: Any) -> float:
    """A finite float, else NaN (None, NA, text, infinities)."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


def reference(folder: Path = REFERENCE) -> tuple[pd.DataFrame, dict]:
    """The recorded H200 runs as `points`, and their card: title, flaws, provenance, acceptance by position."""
    points = pd.DataFrame(json.loads((folder / "points.json").read_text()), columns=list(POINTS))
    return points, json.loads((folder / "card.json").read_text())
