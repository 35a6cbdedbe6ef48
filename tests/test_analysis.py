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

@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The archive, unpacked, and what makes the reference of it."""
    make = runpy.run_path(str(analysis.REFERENCE / "make.py"))
    return make["unpacked"](str(tmp_path_factory.mktemp("records"))), make


def test_recorded_files_are_what_their_script_makes(records):
    folder, make = records
    for name, made in (("points.json", make["points"](folder)), ("card.json", make["card"](folder))):
        assert json.loads((analysis.REFERENCE / name).read_text()) == json.loads(json.dumps(made))


def test_recorded_throughput_is_what_the_client_counted(records):
    """Its own sum of tokens and its own wall time, less the start of its threads, in each cell of each run."""
    points, _ = analysis.reference()
    runs = {p.parent.name: p for p in (records[0] / "runs").glob("*ballast*/cells.jsonl")}
    assert set(points["run_id"]) == set(runs) and len(points) == 20
    for run_id, path in runs.items():
        for said in map(json.loads, path.read_text().splitlines()):
            got = points[(points["run_id"] == run_id) & (points["concurrency"] == said["concurrency"])].iloc[0]
            assert got["output_tokens"] == said["measure"]["output_tokens"] and got["failed"] == 0
            assert got["output_tokens"] / got["tok_s"] == pytest.approx(said["measure"]["wall_s"], abs=0.05)


def test_recorded_acceptance_from_the_stream_is_the_servers_own(records):
    """`completion_tokens` and `spec_verify_ct` of the same prompts: a chain within 1 %, a tree, whose acceptance moves
    with who shares the batch, within 3 %. A baseline streams one token a chunk."""
    points, _ = analysis.reference()
    for arm, within in (("eagle3", 0.01), ("tree", 0.03)):
        for c in (1, 4, 16, 64):
            metas = [a["meta_info"] for a in json.loads((records[0] / arm / f"greedy-{c}.json").read_text())]
            own = sum(m["completion_tokens"] - 1 for m in metas) / sum(m["spec_verify_ct"] for m in metas)
            for length in points[(points["arm"] == arm) & (points["concurrency"] == c)]["accept_length"]:
                assert length == pytest.approx(own, rel=within)
    for path in (records[0] / "runs").glob("*ballast-baseline*/records.jsonl"):
        for record in map(json.loads, path.read_text().splitlines()):
            assert len(record["chunks"]["t_s"]) in (record["usage"]["completion_tokens"],
                                                    record["usage"]["completion_tokens"] - 1)


def test_recorded_acceptance_by_position_sums_to_the_accepted_drafts(records):
    _, card = analysis.reference()
    for arm, shares in card["by_position"].items():
        metas = [a["meta_info"] for a in json.loads((records[0] / arm / "greedy-1.json").read_text())]
        accepted, steps = (sum(m[key] for m in metas) for key in ("spec_num_correct_drafts", "spec_verify_ct"))
        assert sum(shares) == pytest.approx(accepted / steps) and card["by_position_steps"][arm] == steps
        assert shares == sorted(shares, reverse=True)


def test_recorded_texts_are_compared_with_the_same_prompt_at_the_same_concurrency(records):
    _, card = analysis.reference()
    texts = {}
    for path in (records[0] / "runs").glob("*ballast*/records.jsonl"):
        said = [r for r in map(json.loads, path.read_text().splitlines()) if r["phase"] == "measure"]
        texts[path.parent.name] = {(r["concurrency"], r["id"]): r["text"] for r in said}
    base = {c: texts[max(n for n in texts if "baseline" in n)] for c in (1, 4, 16, 64)}
    for arm in ("eagle3", "tree"):
        mine = texts[max(n for n in texts if arm in n)]
        for c, (same, of) in card["identical"][arm].items():
            keys = [k for k in mine if k[0] == int(c)]
            assert (sum(mine[k] == base[k[0]][k] for k in keys), len(keys)) == (same, of)
