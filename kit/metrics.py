"""Raw records → tidy frames. Pure pandas; nothing is measured here.

    requests  one row per measured request
    points    one row per (run, prompt set, concurrency)

| name              | formula                                          | as in                                        |
|-------------------|--------------------------------------------------|----------------------------------------------|
| ttft_ms           | first chunk with text − send                     | AIPerf time_to_first_token, vLLM ttft        |
| e2e_ms            | last chunk with text − send (not `[DONE]`)       | AIPerf request_latency, vLLM e2el            |
| tpot_ms           | (e2e − ttft) / (n − n_first)                     | AIPerf inter_token_latency, vLLM/SGLang tpot |
| output_tokens (n) | completion tokens that the server counted        | vLLM usage.completion_tokens                 |
| n_first           | tokens in the first chunk where the server says  | AIPerf --per-chunk-usage; else 1             |
|                   | so chunk by chunk, else 1                        |                                              |
| wall_s            | last end − first send of the measured phase      | AIPerf benchmark_duration                    |
| tok_s             | output tokens of answered requests / wall_s      | vLLM, SGLang output_throughput               |
| accept_length     | 1 + accepted / steps, steps that had a draft     | vLLM 1 + accepted/num_drafts                 |
| accept_by_position| accepted at position i / steps                   | vLLM per-position acceptance                 |
| …_p50, …_p95      | percentiles over answered requests, interpolated | numpy "linear"                               |

tpot counts tokens, not chunks: a verify step may bring several tokens in one chunk
(or one token in several), so the mean gap between chunks is a different quantity.
It is a mean per request; the time of a verify step is tpot × accept length where every
step had a draft. Failed requests are counted and have no latencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import pandas as pd

from kit.engines import engine as engine_named
from kit.errors import SpecError
from kit.seams import COUNTED, STREAMED, Acceptance, Engine
from kit.spec import Experiment

REQUESTS = ("run_id", "experiment", "arm", "algorithm", "prompt_set", "concurrency", "prompt_id", "ok", "error",
            "ttft_ms", "tpot_ms", "e2e_ms", "output_tokens", "prompt_tokens", "cached_tokens", "chunks",
            "finish_reason", "text")
POINTS = ("run_id", "experiment", "arm", "algorithm", "drafts", "prompt_set", "concurrency", "requests", "failed",
          "wall_s", "output_tokens", "tok_s", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95", "e2e_ms_p50",
          "cached_tokens", "accept_length", "accepted", "drafted", "steps", "accept_by_position", "accept_source",
          "client_cpu_share")
NAN = math.nan


class Recorded(Protocol):
    """What is needed of a run (a `kit.store.Run`)."""

    id: str
    meta: Mapping[str, Any]
    records: Iterable[Mapping[str, Any]]
    cells: Iterable[Mapping[str, Any]]


def requests(runs: Iterable[Recorded]) -> pd.DataFrame:
    """One row per measured request, in the order they ended; latencies in ms, NaN where there is none."""
    rows = [label | _request(record) for run in runs if (label := _label(run))
            for record in run.records if record["phase"] == "measure"]
    return pd.DataFrame(rows, columns=list(REQUESTS))


def points(runs: Iterable[Recorded], engine: Callable[[str], Engine] = engine_named) -> pd.DataFrame:
    """One row per cell that was begun. `accept_source` says where the acceptance is from, or why there is none."""
    rows = []
    for run in runs:
        if not (label := _label(run)):
            continue
        measured = [r for r in run.records if r["phase"] == "measure"]
        cells = {(c["set"], c["concurrency"]): c for c in run.cells}
        drafts = _experiment(run).spec.drafts
        for prompt_set, concurrency in dict.fromkeys((r["set"], r["concurrency"]) for r in measured):
            records = [r for r in measured if (r["set"], r["concurrency"]) == (prompt_set, concurrency)]
            cell = cells.get((prompt_set, concurrency), {})
            rows.append(label | {"drafts": drafts, "prompt_set": prompt_set, "concurrency": concurrency}
                        | _point(records, cell) | _acceptance(run, records, cell, drafts, engine))
    return pd.DataFrame(rows, columns=list(POINTS))


def _experiment(run: Recorded) -> Experiment:
    return Experiment.model_validate(run.meta["experiment"])


def _label(run: Recorded) -> dict[str, Any]:
    """{} for a run whose run.json could not be read: there is nothing to compare it by."""
    if not run.meta:
        return {}
    exp = _experiment(run)
    return {"run_id": run.id, "experiment": exp.name, "arm": exp.arm_name, "algorithm": exp.spec.algorithm}


def _request(record: Mapping[str, Any]) -> dict[str, Any]:
    ok, usage, times = not record["error"], record["usage"], record["chunks"]["t_s"]
    tokens = usage.get("completion_tokens", NAN)
    ttft = e2e = tpot = NAN
    if ok:
        ttft, e2e = times[0] - record["t_send"], times[-1] - record["t_send"]
        later = tokens - (record["chunks"]["tokens"][0] or 1)
        tpot = (e2e - ttft) / later if later > 0 else NAN
    return {"prompt_set": record["set"], "concurrency": record["concurrency"], "prompt_id": record["id"], "ok": ok,
            "error": record["error"] or "", "ttft_ms": 1e3 * ttft, "tpot_ms": 1e3 * tpot, "e2e_ms": 1e3 * e2e,
            "output_tokens": tokens, "prompt_tokens": usage.get("prompt_tokens", NAN),
            "cached_tokens": usage.get("cached_tokens", NAN), "chunks": len(times),
            "finish_reason": record["finish_reason"] or "", "text": record["text"]}


def _point(records: list[Mapping[str, Any]], cell: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens are NaN when the server counted those of some answered request not: then there is no honest rate."""
    frame = pd.DataFrame([_request(r) for r in records])
    good = frame[frame["ok"]]
    sent = [r for r in records if r["t_send"] is not None]
    wall = max((_end(r) for r in sent), default=NAN) - min((r["t_send"] for r in sent), default=NAN)
    tokens = good["output_tokens"].sum(skipna=False) if len(good) else NAN
    measured = cell.get("measure", {})
    return {"requests": len(frame), "failed": len(frame) - len(good), "wall_s": wall, "output_tokens": tokens,
            "tok_s": tokens / wall if wall else NAN,
            **{f"{name}_p{q}": good[name].astype(float).quantile(q / 100)
               for name, q in (("ttft_ms", 50), ("ttft_ms", 95), ("tpot_ms", 50), ("tpot_ms", 95), ("e2e_ms", 50))},
            "cached_tokens": good["cached_tokens"].astype(float).sum(min_count=1),
            "client_cpu_share": measured["client_cpu_s"] / measured["wall_s"] if measured.get("wall_s") else NAN}


def _end(record: Mapping[str, Any]) -> float:
    """Last text of an answered request; a failed one holds its place until it is given up."""
    return record["t_end"] if record["error"] else record["chunks"]["t_s"][-1]


def _acceptance(run: Recorded, records: list[Mapping[str, Any]], cell: Mapping[str, Any], drafts: int,
                engine: Callable[[str], Engine]) -> dict[str, Any]:
    """Counters after − before the measured phase, so the warm-up is not in them; without them, from the stream."""
    none = {"accept_length": NAN, "accepted": NAN, "drafted": NAN, "steps": NAN, "accept_by_position": ()}
    if not drafts:
        return none | {"accept_source": "not speculating"}
    before, after = cell.get("metrics_before"), cell.get("metrics_after")
    if before is None or after is None:
        return none | {"accept_source": "no metrics page"}
    try:
        eng = engine(run.meta["engine"]["name"])
    except SpecError as e:
        return none | {"accept_source": e.what}
    first, window, source = eng.acceptance(before) or Acceptance(0, 0, 0), eng.acceptance(after), COUNTED
    if window is not None:
        window -= first
    elif eng.chunk_is_step(_experiment(run)):
        window, source = _streamed(records, drafts), STREAMED
    if window is None:
        return none | {"accept_source": "no counters"}
    if min(window.steps, window.drafted, window.accepted, *window.per_position) < 0:
        return none | {"accept_source": "counters reset"}
    return {"accept_length": window.accept_length if window.steps else NAN, "accepted": window.accepted,
            "drafted": window.drafted, "steps": window.steps,
            "accept_by_position": tuple(n / window.steps for n in window.per_position) if window.steps else (),
            "accept_source": source if window.steps else "no drafts"}


def _streamed(records: list[Mapping[str, Any]], drafts: int) -> Acceptance | None:
    """A server that sends each step's tokens as a chunk tells its steps so. The first chunk is the prefill's token."""
    good = [(r["usage"].get("completion_tokens", NAN), len(r["chunks"]["t_s"])) for r in records if not r["error"]]
    tokens, steps = (sum(n - 1 for n in column) for column in zip(*good, strict=True)) if good else (NAN, 0)
    return Acceptance(steps, steps * drafts, tokens - steps) if tokens >= steps else None
