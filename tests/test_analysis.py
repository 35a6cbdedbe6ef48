"""The comparison of arms: ratios, engine steps, texts, and what is said when something is missing."""

import json
import math
import runpy

import pandas as pd
import pytest

from kit import analysis


def cell(**changes):
    """A baseline cell of 6 requests of 101 tokens: 600 decoded tokens, 10 ms each."""
    return {**dict.fromkeys(analysis.POINTS), "run_id": "1", "experiment": "x", "arm": "baseline", "algorithm": "none",
            "drafts": 0, "prompt_set": "chat", "concurrency": 1, "requests": 6, "failed": 0, "output_tokens": 606,
            "tok_s": 100.0, "tpot_ms_p50": 10.0, "ttft_ms_p50": 50.0, "accept_by_position": (), **changes}


def eagle(**changes):
    """The same load with drafts of 3: 300 of the 600 decoded tokens were accepted drafts, in 300 steps."""
    return cell(**{"arm": "eagle3", "algorithm": "eagle3", "drafts": 3, "tok_s": 80.0, "tpot_ms_p50": 12.5,
                   "accept_length": 2.0, "accepted": 300.0, "drafted": 900.0, "steps": 300.0, **changes})


def compared(*cells, requests=None, **how):
    return analysis.compare(pd.DataFrame(cells, columns=list(analysis.POINTS)), requests, **how)


def row(frame, arm="eagle3", concurrency=1):
    return frame[(frame["arm"] == arm) & (frame["concurrency"] == concurrency)].iloc[0]


def texts(arm, run_id, *answers, concurrency=1, ok=True):
    return [{**dict.fromkeys(analysis.REQUESTS), "run_id": run_id, "experiment": "x", "arm": arm, "prompt_set": "chat",
             "concurrency": concurrency, "prompt_id": f"p{i}", "ok": ok, "text": text}
            for i, text in enumerate(answers)]


def test_speedup_and_the_cost_of_a_step():
    got = row(compared(cell(), eagle()))
    assert got["speedup"] == pytest.approx(0.8)
    assert got["tpot_speedup"] == pytest.approx(10 / 12.5)
    assert got["tokens_per_step"] == pytest.approx(2.0)        # 600 decoded in 600 - 300 steps
    assert got["step_ms"] == pytest.approx(25.0)
    assert got["step_cost"] == pytest.approx(2.5)
    assert got["break_even_length"] == pytest.approx(2.5)      # each step drafts: it must yield what it costs
    assert got["note"] == ""


def test_the_baseline_is_its_own_measure():
    got = row(compared(cell(), eagle()), "baseline")
    assert (got["speedup"], got["step_cost"], got["tokens_per_step"]) == (1, 1, 1)
    assert pd.isna(got["identical"]) and math.isnan(got["break_even_length"])


def test_steps_without_a_draft_count_as_steps():
    """n-gram: 500 steps, of which 100 had a draft and accepted one token each."""
    got = row(compared(cell(), eagle(arm="ngram", algorithm="ngram", accepted=100.0, steps=100.0, accept_length=2.0,
                                     tpot_ms_p50=10.0)), "ngram")
    assert got["tokens_per_step"] == pytest.approx(1.2)
    assert got["draft_share"] == pytest.approx(0.2)
    assert got["step_cost"] == pytest.approx(1.2)
    assert got["break_even_length"] == pytest.approx(2.0)      # at equal tpot it breaks even where it is


def test_text_is_compared_per_prompt_and_only_where_both_answered():
    cut_off = texts("eagle3", "1", "a", "b", "c", ok=False)[2:]
    requests = pd.DataFrame(texts("baseline", "1", "a", "b", "c") + texts("eagle3", "1", "a", "B") + cut_off,
                            columns=list(analysis.REQUESTS))
    got = row(compared(cell(), eagle(), requests=requests))
    assert (got["identical"], got["compared"]) == (1, 2)


def test_a_prompt_sent_twice_is_compared_twice():
    requests = pd.DataFrame(texts("baseline", "1", "a") + texts("baseline", "1", "a") + texts("eagle3", "1", "a")
                            + texts("eagle3", "1", "other"), columns=list(analysis.REQUESTS))
    got = row(compared(cell(), eagle(), requests=requests))
    assert (got["identical"], got["compared"]) == (1, 2)


def test_texts_of_other_runs_and_concurrencies_are_left_out():
    requests = pd.DataFrame(texts("baseline", "1", "a") + texts("eagle3", "0", "a")
                            + texts("eagle3", "1", "a", concurrency=2), columns=list(analysis.REQUESTS))
    assert row(compared(cell(), eagle(), requests=requests))["compared"] == 0


def test_the_newest_complete_run_counts_unless_told():
    cells = (cell(), eagle(run_id="1", tok_s=50.0), eagle(run_id="2", tok_s=150.0), eagle(run_id="3", tok_s=math.nan))
    assert row(compared(*cells))["speedup"] == pytest.approx(1.5)
    assert row(compared(*cells, runs={"eagle3": "1"}))["speedup"] == pytest.approx(0.5)


def test_experiments_are_not_mixed():
    got = compared(cell(), eagle(experiment="y"))
    assert math.isnan(row(got)["speedup"]) and "no baseline cell" in row(got)["note"]


def test_a_cell_that_an_arm_lacks_is_named():
    got = row(compared(cell(), cell(concurrency=2), eagle()), concurrency=2)
    assert math.isnan(got["speedup"]) and got["note"] == "this arm has no such cell"


@pytest.mark.parametrize(("change", "missing", "said"), [
    ({"tok_s": 0.0, "failed": 6}, "speedup", "no request succeeded"),
    ({"tok_s": None}, "speedup", "no throughput: tokens were not counted"),
    ({"accepted": None, "accept_length": None}, "step_cost", "acceptance unknown: no counters"),
    ({"accepted": None, "accept_length": None, "accept_source": "counters reset"}, "step_cost",
     "acceptance unknown: counters reset"),
    ({"accepted": 700.0}, "step_cost", "accept more tokens than were received"),
])
def test_what_cannot_be_computed_is_nan_with_a_reason(change, missing, said):
    got = row(compared(cell(), eagle(**change)))
    assert not got[missing] > 0 and said in got["note"]


def test_failed_requests_and_unequal_loads_are_noted():
    assert "2 of 6 requests failed" in row(compared(cell(), eagle(failed=2)))["note"]
    assert "baseline had 6 requests, this arm 4" in row(compared(cell(), eagle(requests=4)))["note"]


def test_zero_counters_mean_that_nothing_was_drafted():
    got = row(compared(cell(), eagle(accepted=0.0, steps=0.0, drafted=0.0, accept_length=None)))
    assert (got["tokens_per_step"], got["draft_share"], got["note"]) == (1, 0, "nothing was drafted")


def test_without_token_times_both_sides_are_estimated_from_throughput():
    got = row(compared(cell(concurrency=2), eagle(concurrency=2, tpot_ms_p50=None)), concurrency=2)
    assert (got["baseline_tpot_ms"], got["tpot_ms"]) == (20, 25)
    assert analysis.ESTIMATED in got["note"]


def test_nothing_measured_gives_an_empty_frame_with_all_columns():
    assert list(compared().columns) == list(analysis.COMPARE) and compared().empty
    assert row(compared(eagle()))["note"].startswith("no baseline cell")


# ------------------------------------------------------------ recorded runs

def test_recorded_runs_agree_with_the_published_table():
    """tok/s, accept length and speed-up as the people who recorded them wrote them down."""
    points, _ = analysis.reference()
    frame = analysis.compare(points)
    table = {("baseline", 1): (213, None), ("baseline", 4): (603, None), ("baseline", 16): (2637, None),
             ("baseline", 64): (8142, None), ("3/1/4", 1): (371, 2.84), ("3/1/4", 4): (349, 2.80),
             ("3/1/4", 16): (1354, 2.91), ("3/1/4", 64): (3600, 2.94), ("4/4/8", 1): (350, 3.43),
             ("4/4/8", 4): (368, 3.02), ("4/4/8", 16): (1088, 2.42), ("4/4/8", 64): (2266, 2.19)}
    assert {(r["arm"], r["concurrency"]) for r in frame.to_dict("records")} == set(table)
    for (arm, concurrency), (tok_s, length) in table.items():
        got = row(frame, arm, concurrency)
        assert got["tok_s"] == pytest.approx(tok_s, abs=0.51)
        assert length is None or got["accept_length"] == pytest.approx(length, abs=0.0051)
    assert row(frame, "3/1/4")["speedup"] == pytest.approx(1.74, abs=0.005)
    assert row(frame, "4/4/8")["speedup"] == pytest.approx(1.64, abs=0.005)


def test_recorded_points_follow_from_the_extract():
    points, card = analysis.reference()
    extract = json.loads((analysis.REFERENCE / "extract.json").read_text())
    for arm, record in extract["arms"].items():
        for said in record["sweep"]:
            got = row(points, arm, said["concurrency"])
            assert got["tok_s"] == pytest.approx(said["requests"] * 96 / said["wall"])
            assert got["output_tokens"] == said["requests"] * 96
            assert got["ttft_ms_p50"] == pytest.approx(said["ttft_med"] * 1000)
    texts = {arm: record["texts"] for arm, record in extract["arms"].items()}
    for arm, differ in (("3/1/4", 1), ("4/4/8", 3)):
        assert sum(a != b for a, b in zip(texts[arm], texts["baseline"], strict=True)) == differ
        assert card["identical"][arm] == [6 - differ, 6]


def test_recorded_acceptance_by_position_sums_to_the_accepted_drafts():
    _, card = analysis.reference()
    extract = json.loads((analysis.REFERENCE / "extract.json").read_text())
    for arm, shares in card["by_position"].items():
        histograms = extract["arms"][arm]["accepted_histograms"]
        accepted = sum(n * times for h in histograms for n, times in enumerate(h))
        assert sum(shares) * sum(map(sum, histograms)) == pytest.approx(accepted)
        assert shares == sorted(shares, reverse=True)


def test_recorded_files_are_what_their_script_makes():
    made = runpy.run_path(str(analysis.REFERENCE / "make.py"))
    extract = json.loads((analysis.REFERENCE / "extract.json").read_text())
    assert json.loads((analysis.REFERENCE / "points.json").read_text()) == made["points"](extract)
    assert json.loads((analysis.REFERENCE / "card.json").read_text()) == made["card"](extract)
