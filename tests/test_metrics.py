"""Raw records → numbers: by hand where arithmetic decides, and from servers whose truth is known."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from servers import DemoEngine, Script, Server

from kit import metrics, workload
from kit.analysis import POINTS, REQUESTS
from kit.errors import SpecError
from kit.spec import Experiment
from kit.store import Run

ROOT = Path(__file__).parent.parent
EXP = Experiment.load(ROOT / "configs" / "micro.yaml")
PAGE = "demo:drafts_total {0}\ndemo:draft_tokens_total {1}\ndemo:accepted_tokens_total {2}\n"


@dataclass
class Recorded:
    records: list = field(default_factory=list)
    cells: list = field(default_factory=list)
    arm: str = "eagle3"
    id: str = "r"

    @property
    def meta(self):
        return {"experiment": EXP.arm(self.arm).model_dump(mode="json"), "arm": self.arm, "engine": {"name": "demo"}}


def record(t_send=0.0, times=(0.1,), n=None, tokens=None, **changes):
    usage = {} if n is None else {"completion_tokens": n}
    return {"id": "p", "set": "chat", "concurrency": 1, "phase": "measure", "text": "x", "error": None, "usage": usage,
            "chunks": {"t_s": list(times), "tokens": list(tokens or [None] * len(times))}, "finish_reason": "stop",
            "t_send": t_send, "t_end": times[-1] if times else t_send, **changes}


def cell(before=None, after=None):
    return {"set": "chat", "concurrency": 1, "metrics_before": before, "metrics_after": after,
            "measure": {"wall_s": 2.0, "client_cpu_s": 0.1}}


def engine(_):
    return DemoEngine()


def point(records, cells=(), arm="eagle3"):
    return metrics.points([Recorded(records, list(cells), arm)], engine).iloc[0]


def test_time_per_token_counts_tokens_not_chunks():
    row = metrics.requests([Recorded([record(1.0, (1.2, 1.5, 1.8), n=13)])]).iloc[0]
    assert (row.ttft_ms, row.e2e_ms) == (pytest.approx(200), pytest.approx(800))
    assert row.tpot_ms == pytest.approx(600 / 12) and row.chunks == 3


def test_several_tokens_in_the_first_chunk_are_left_out_where_the_server_says_so():
    row = metrics.requests([Recorded([record(0, (1.0, 2.0), n=9, tokens=(5, 9))])]).iloc[0]
    assert row.tpot_ms == pytest.approx(1000 / 4)


@pytest.mark.parametrize("n", [None, 0, 1])
def test_there_is_no_time_per_token_without_a_second_token(n):
    assert math.isnan(metrics.requests([Recorded([record(n=n)])]).iloc[0].tpot_ms)


def test_throughput_is_tokens_over_the_time_from_the_first_send_to_the_last_text():
    row = point([record(0.5, (1.0, 2.0), n=10, t_end=2.4), record(1.0, (1.5, 4.5), n=30, t_end=4.9)])
    assert row.wall_s == 4.0 and row.output_tokens == 40 and row.tok_s == 10


def test_failures_are_counted_and_have_no_latency_but_take_their_time():
    row = point([record(0, (1.0, 2.0), n=10), record(2.0, (3.0,), error="timeout", t_end=10.0),
                 record(None, (), error="not-sent", t_end=None)])
    assert (row.requests, row.failed) == (3, 2)
    assert row.wall_s == 10 and row.tok_s == 1 and row.ttft_ms_p95 == 1000


def test_a_cell_where_everything_failed_has_no_throughput():
    row = point([record(None, (), error="not-sent", t_end=None)])
    assert row.failed == 1 and all(math.isnan(row[c]) for c in ("tok_s", "wall_s", "ttft_ms_p50", "tpot_ms_p50"))


def test_tokens_nobody_counted_leave_no_throughput():
    assert math.isnan(point([record(0, (1.0,), n=4), record(0, (1.0,))]).tok_s)


def test_the_warm_up_is_not_counted():
    row = point([record(0, (100.0,), n=500, phase="warmup"), record(0, (1.0, 2.0), n=4)])
    assert row.requests == 1 and row.output_tokens == 4


def test_percentiles_are_interpolated():
    row = point([record(0, (t, 9.0), n=2) for t in (1.0, 2.0, 3.0, 4.0)])
    assert row.ttft_ms_p50 == 2500 and row.ttft_ms_p95 == pytest.approx(3850)


def test_acceptance_is_the_difference_of_the_counters():
    before = PAGE.format(10, 30, 20) + 'demo:accepted_per_pos_total{position="0"} 9\n'
    after = PAGE.format(30, 90, 50) + 'demo:accepted_per_pos_total{position="0"} 19\n' \
        'demo:accepted_per_pos_total{position="1"} 5\n'
    row = point([record(n=4)], [cell(before, after)])
    assert (row.steps, row.drafted, row.accepted) == (20, 60, 30) and row.accept_length == 2.5
    assert row.accept_by_position == (0.5, 0.25) and row.accept_source == "server counters"
    assert row.client_cpu_share == 0.05


def test_counters_that_first_appear_with_the_first_draft_began_at_zero():
    assert point([record(n=4)], [cell("demo:requests_total 0\n", PAGE.format(10, 30, 15))]).accept_length == 2.5


@pytest.mark.parametrize("before, after, arm, why", [
    (PAGE.format(10, 30, 20), PAGE.format(4, 12, 8), "eagle3", "counters reset"),
    (PAGE.format(1, 3, 2), PAGE.format(1, 3, 2), "eagle3", "no drafts"),
    ("", "", "eagle3", "no counters"),
    (None, "", "eagle3", "no metrics page"),
    (PAGE.format(1, 3, 2), PAGE.format(2, 6, 4), "baseline", "not speculating"),
])
def test_acceptance_that_cannot_be_told_says_why(before, after, arm, why):
    row = point([record(n=4)], [cell(before, after)], arm)
    assert math.isnan(row.accept_length) and row.accept_by_position == () and row.accept_source == why


def test_an_engine_this_kit_does_not_know_costs_the_acceptance_only():
    def unknown(name):
        raise SpecError(f"no engine named {name!r}")
    row = metrics.points([Recorded([record(0, (1.0,), n=4)], [cell("", "")])], unknown).iloc[0]
    assert row.accept_source == "no engine named 'demo'" and row.tok_s == 4


def test_a_cell_cut_in_the_middle_is_still_a_point():
    row = point([record(0, (1.0, 2.0), n=4)])
    assert row.tok_s == 2 and row.accept_source == "no metrics page"


def test_frames_have_all_columns_even_without_rows():
    for frame, wanted in ((metrics.requests([]), REQUESTS), (metrics.points([]), POINTS)):
        assert frame.empty and set(wanted) <= set(frame.columns)
    unreadable = Run("x", Path("x"), {}, problem="run.json is missing")
    assert metrics.points([unreadable]).empty and metrics.requests([unreadable]).empty


# ------------------------------------------------------------------ end to end

def measured(tmp_path, script, prompts=3, arm=None):
    """A run of the real client against a server that keeps to a script; and when the server sent what."""
    exp = EXP.arm(arm or ("eagle3" if script.drafts else "baseline"))
    with Server(script) as server:
        exp = exp.with_(**{"serve.port": server.port, "bench.prompts": prompts, "bench.concurrency": (1,),
                           "bench.prompt_sets": ("chat",)})
        job = workload.job(exp, DemoEngine(), "r")
        (tmp_path / "job.json").write_bytes(workload.encode(job)[0])
        subprocess.run([sys.executable, "-S", str(ROOT / "kit/remote/load.py"), tmp_path / "job.json", tmp_path],
                       check=True, stdout=subprocess.DEVNULL)
    records, cells = ([json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
                      for name in ("records.jsonl", "cells.jsonl"))
    sent = [server.sent[row["prompt"]] for row in workload.prompts("chat")[:prompts]]
    return Recorded(records, cells, exp.arm_name), sent


@pytest.mark.parametrize("script", [
    Script(steps=20, tokens_per_step=3, drafts=3),                              # a verify step per chunk
    Script(steps=21, tokens_per_step=2, drafts=4, coalesce=7),                  # several steps per chunk
    Script(steps=20, first_tokens=4, usage_per_chunk=True, tokens_per_step=2, drafts=3),
], ids=["step per chunk", "coalesced", "wide first chunk"])
def test_a_server_of_known_truth_is_measured_as_it_is(tmp_path, script):
    run, sent = measured(tmp_path, script)
    row = metrics.points([run], engine).iloc[0]
    assert row.failed == 0 and row.output_tokens == 3 * script.tokens
    assert row.accept_length == script.tokens_per_step and row.drafted == 3 * script.steps * script.drafts
    accepted = script.tokens_per_step - 1
    assert row.accept_by_position == (1.0,) * accepted + (0.0,) * (script.drafts - accepted)
    known = sorted((s[-1] - s[0]) / (script.tokens - script.first_tokens) * 1e3 for s in sent)
    frame = metrics.requests([run])
    assert sorted(frame["tpot_ms"]) == pytest.approx(known, rel=0.8)   # chunk gaps would be 2 to 14 times as long
    assert frame["ttft_ms"].min() >= script.ttft_s * 1e3
    assert row.tok_s <= script.tokens / (script.ttft_s + script.steps * script.step_s)


def test_without_usage_nothing_is_guessed(tmp_path):
    run, _ = measured(tmp_path, Script(usage=False))
    row = metrics.points([run], engine).iloc[0]
    assert row.failed == 0 and math.isnan(row.tok_s) and math.isnan(row.tpot_ms_p50) and row.ttft_ms_p50 > 0


class StepByStep(DemoEngine):
    def chunk_is_step(self, exp):
        return True


def test_a_server_without_counters_that_streams_step_by_step_tells_its_acceptance_so(tmp_path):
    run, _ = measured(tmp_path, Script(steps=20, tokens_per_step=3), arm="eagle3")
    row = metrics.points([run], lambda _: StepByStep()).iloc[0]
    assert (row.accept_length, row.steps, row.accepted) == (3, 60, 120) and row.accept_source == "streamed chunks"
    assert row.drafted == 60 * run_drafts(run) and row.accept_by_position == ()
    assert metrics.points([run], engine).iloc[0].accept_source == "no counters"


def run_drafts(run):
    return Experiment.model_validate(run.meta["experiment"]).spec.drafts


def test_chunks_tell_no_acceptance_where_tokens_were_not_counted_or_are_fewer():
    for records in ([record(0, (1.0, 2.0))], [record(0, (1.0, 2.0, 3.0, 4.0), n=3)], [record(error="stall")]):
        row = metrics.points([Recorded(records, [cell("", "")])], lambda _: StepByStep()).iloc[0]
        assert row.accept_source == "no counters"
