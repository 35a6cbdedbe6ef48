"""extract.json (what was recorded, unchanged) → points.json and card.json. Run it after changing extract.json."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
FLAWS = [
    "The prompt mix differs from row to row: 4, 8, 32 and 128 requests were sent at concurrency 1, 4, 16 and 64, "
    "taken in order from one list of prompts.",
    "Nothing was warmed up beyond the server's own start; the row at concurrency 4 is probably compilation.",
    "One run each: no interval.",
    "The server's prefix cache was on, and some prompts had been sent before the sweep.",
    "Every answer was forced to 96 tokens (ignore_eos), which may flatter acceptance.",
    "The target is a 7M-parameter model widened to the cost of an 8B one: real memory traffic and real acceptance of a "
    "small model on Python source text, not an 8B model's answers.",
    "With 4/4/8 the accept length falls with concurrency, with 3/1/4 on the same mixes it does not; and greedy text "
    "differs from the baseline's on 3 of 6 prompts (3/1/4: 1 of 6). Prompt mix, numerics and a fault in verifying a "
    "tree at batch sizes above one are all still possible.",
    "Time per token was not kept; it is estimated from the throughput, which counts the prompt phase too.",
]


def flag(args: list[str], name: str) -> str | None:
    return args[args.index(name) + 1] if name in args else None


def points(extract: dict) -> list[dict]:
    rows = []
    for arm, record in extract["arms"].items():
        verified = int(flag(record["args"], "--speculative-num-draft-tokens") or 1)
        for cell in record["sweep"]:
            tokens = cell["requests"] * extract["tokens_per_request"]
            length = cell["accept_len"]
            rows.append({
                "run_id": f"recorded-{arm}", "experiment": "h200-sglang-0.5.12", "arm": arm,
                "algorithm": "eagle3" if length else "none", "drafts": verified - 1, "prompt_set": "python",
                "concurrency": cell["concurrency"], "requests": cell["requests"], "failed": 0, "wall_s": cell["wall"],
                "output_tokens": tokens, "tok_s": cell["tok_s"], "ttft_ms_p50": cell["ttft_med"] * 1000,
                "accept_length": length, "steps": round(tokens / length) if length else None,
                "accept_source": "completion tokens / spec_verify_ct of the requests" if length else None})
    return rows


def by_position(histograms: list[list[int]], depth: int) -> list[float]:
    """P(draft position i accepted) = part of the steps with more than i accepted drafts."""
    counts = [sum(h[n] for h in histograms if n < len(h)) for n in range(depth + 1)]
    return [sum(counts[i + 1:]) / sum(counts) for i in range(depth)]


def card(extract: dict) -> dict:
    arms = extract["arms"]
    speculative = {a: r for a, r in arms.items() if r["accepted_histograms"]}
    base = arms["baseline"]["texts"]
    return {
        "title": "Recorded: EAGLE-3 in SGLang on one H200", "flaws": FLAWS,
        "identical": {a: [sum(map(str.__eq__, r["texts"], base)), len(base)] for a, r in speculative.items()},
        "by_position": {a: by_position(r["accepted_histograms"], int(flag(r["args"], "--speculative-num-steps")))
                        for a, r in speculative.items()},
        "by_position_steps": {a: sum(map(sum, r["accepted_histograms"])) for a, r in speculative.items()},
        "provenance": {
            "engine": extract["engine"], "GPU": extract["gpu"], "recorded": extract["date"],
            "flags": {a: " ".join(r["args"]) for a, r in arms.items()},
            "sha256 of the records": {a: r["sha256_of_the_record"] for a, r in arms.items()}}}


if __name__ == "__main__":
    extract = json.loads((HERE / "extract.json").read_text())
    for name, made in (("points.json", points(extract)), ("card.json", card(extract))):
        (HERE / name).write_text(json.dumps(made, indent=1) + "\n")
