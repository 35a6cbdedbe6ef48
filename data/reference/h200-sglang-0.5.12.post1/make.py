"""records.tar.xz (what came back from the machine, unchanged) → points.json and card.json, by the kit's own functions.

    python data/reference/h200-sglang-0.5.12.post1/make.py
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from kit import analysis, metrics, store

HERE = Path(__file__).parent
STAGE = {"baseline": "baseline", "eagle3": "eagle3", "tree": "tree"}       # arm → folder of its stage
FLAWS = (
    "The target is a 7M-parameter model widened to the cost of an 8B one: real memory traffic and real acceptance of a "
    "small model on Python source text, not an 8B model's answers.",
    "One GPU, one start of each arm, the arms one after the other. Baseline and 3/1/4 were measured twice in a row "
    "(the second is shown), 4/4/8 once: no interval. First run against first run, 4/4/8 is 2.02x, 1.40x, 0.69x and "
    "0.62x at 1, 4, 16 and 64 requests.",
    "At 64 requests, which is all 64 prompts in a single batch, the verdict on 3/1/4 turns with the run: 1.03x first "
    "against first, 0.86x second against second. The first baseline run stood still before its first tokens there (495 "
    "against 105 ms): 64 short requests of warm-up did not warm everything.",
    "The prefix cache was not emptied: from the second concurrency on, in the first runs too, nearly all prompt tokens "
    "were found in it. Times to first token at 4 and more requests are not those of fresh prompts.",
    "The client ran on the machine of the server (16 cores, load below 2).",
    "The baseline itself repeats its own text on 51 to 61 of 64 prompts only: texts that differ prove no fault.",
    "With 4/4/8 the accept length falls with concurrency on the very same prompts, with 3/1/4 it does not: that is not "
    "the mix of prompts. Numerics and a fault in verifying a tree at batch sizes above one are both still possible.",
    "SGLang 0.5.12 has no counters of verify steps: the accept length is from the streamed chunks. Per-request counts "
    "of the same prompts, asked beside the benchmark, agree.",
)


def runs(records: Path) -> list[store.Run]:
    return [r for r in store.runs(records / "runs") if r.meta["experiment"]["name"] == "h200-ballast"]


def points(records: Path) -> list[dict[str, Any]]:
    """One row per cell of every run of the ballast, newest run first; NaN is null."""
    frame = metrics.points(runs(records))[list(analysis.POINTS)]
    return json.loads(frame.to_json(orient="records"))


def greedy(records: Path, arm: str, concurrency: int) -> list[dict[str, Any]]:
    """The answers of /generate, with the server's own counts, asked with so many at a time."""
    return json.loads((records / STAGE[arm] / f"greedy-{concurrency}.json").read_text())


def own_counts(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The server's own acceptance: `spec_verify_ct`, and how many steps accepted 0, 1, 2 … drafts.

    The length is of tokens that were sent: drafts accepted beyond the last token are in the histogram alone.
    """
    metas = [a["meta_info"] for a in answers]
    histogram = [sum(h) for h in zip(*(padded(m["spec_correct_drafts_histogram"]) for m in metas), strict=True)]
    steps = sum(m["spec_verify_ct"] for m in metas)
    while not histogram[-1]:
        histogram.pop()
    return {"steps": steps, "accept_length": sum(m["completion_tokens"] - 1 for m in metas) / steps,
            "by_position": [sum(histogram[i + 1:]) / sum(histogram) for i in range(len(histogram) - 1)]}


def padded(counts: list[int]) -> list[int]:
    return counts + [0] * (16 - len(counts))


def equal_texts(records: Path) -> dict[str, dict[str, list[int]]]:
    """{arm: {concurrency: [texts equal to the newest baseline run's, of]}}; "baseline again" is its own first run."""
    found = runs(records)
    frame = analysis.compare(metrics.points(found), metrics.requests(found))
    same = {arm: rows for arm, rows in frame[frame["arm"] != "baseline"].groupby("arm")}
    first, *_ = sorted(r.id for r in found if r.arm == "baseline")
    texts = metrics.requests([r for r in found if r.arm == "baseline"])
    ours, again = (texts[mine].set_index(["concurrency", "prompt_id"])["text"]
                   for mine in (texts["run_id"] == first, texts["run_id"] != first))
    equal = (ours == again.reindex(ours.index)).groupby("concurrency").agg(["sum", "count"])
    counts = {arm: {str(r["concurrency"]): [int(r["identical"]), int(r["compared"])] for r in rows.to_dict("records")}
              for arm, rows in same.items()}
    return {"baseline again": {str(c): [int(s), int(n)] for c, s, n in equal.itertuples()}} | counts


def phases(records: Path, arm: str) -> str:
    table = pd.read_csv(records / STAGE[arm] / "phases.csv")
    return ", ".join(f"{name} {after:.0f} s" for name, after in zip(table["phase"], table["after_s"], strict=True))


def card(records: Path) -> dict[str, Any]:
    speculative = ("eagle3", "tree")
    counts = {arm: {str(c): own_counts(greedy(records, arm, c)) for c in (1, 4, 16, 64)} for arm in speculative}
    newest = {r.arm: r.meta for r in reversed(runs(records))}
    return {
        "title": "Recorded: EAGLE-3 in SGLang on one H200", "flaws": FLAWS, "identical": equal_texts(records),
        "by_position": {arm: counts[arm]["1"]["by_position"] for arm in speculative},
        "by_position_steps": {arm: counts[arm]["1"]["steps"] for arm in speculative},
        "server_counts": {arm: {c: round(n["accept_length"], 3) for c, n in of.items()} for arm, of in counts.items()},
        "provenance": {
            "engine": "sglang 0.5.12.post1", "GPU": "NVIDIA H200, 143771 MiB, driver 580.159.04",
            "recorded": newest["baseline"]["created"][:10],
            "flags": {arm: " ".join(newest[arm]["unit"]["argv"]) for arm in newest},
            "start": {arm: phases(records, arm) for arm in newest},
            "runs": [r.id for r in runs(records)]}}


def unpacked(folder: str) -> Path:
    with tarfile.open(HERE / "records.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)      # Python before 3.11.4 has none
        archive.extractall(folder)
    return Path(folder) / "records"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        records = unpacked(folder)
        for name, made in (("points.json", points(records)), ("card.json", card(records))):
            (HERE / name).write_text(json.dumps(made, indent=1) + "\n")
