"""The unattended GPU run: its configs make commands that the release takes, and its recorder loses nothing."""

import importlib.util
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from kit import workload
from kit.engines import engine
from kit.lint import lint
from kit.spec import Experiment

HERE = Path(__file__).parent / "benchmarks" / "h200"


def module(name):
    spec = importlib.util.spec_from_file_location(f"h200_{name}", HERE / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return module("recorder").Recorder(tmp_path / "out", seconds=600)


def said(exp):
    unit = engine("sglang").service(exp, "/r")
    return lint("sglang", exp.engine.version, list(unit.argv), dict(unit.env), "9.0")


@pytest.mark.parametrize("config", ["micro", "ballast"])
def test_every_arm_is_a_command_that_the_release_takes(config):
    exp = Experiment.load(HERE / f"{config}.yaml")
    for arm in exp.arms:
        assert not [f for f in said(exp.arm(arm)) if f.verdict == "fail"], arm


def test_the_first_written_flags_are_refused_for_the_missing_steps():
    report = said(Experiment.load(HERE / "as-first-written.yaml"))
    assert ["--speculative-num-steps" in f.what for f in report if f.verdict == "fail"] == [True]


def test_every_arm_gets_the_same_requests_and_the_warm_up_fills_the_largest_batch():
    exp = Experiment.load(HERE / "ballast.yaml")
    jobs = [workload.job(exp.arm(arm), engine("sglang"), "") for arm in exp.arms]
    assert all(job == jobs[0] for job in jobs)
    assert len(jobs[0]["requests"]["python"]) >= max(exp.bench.concurrency)
    assert len(jobs[0]["warmup"]) >= max(exp.bench.concurrency)


def test_a_stage_that_fails_is_kept_and_the_next_one_runs(recorder):
    def breaks(notes):
        notes["seen"] = 1
        raise RuntimeError("no such luck")

    recorder.stage("first", breaks)
    recorder.stage("second", lambda notes: recorder.keep("second/a.txt", "b"))
    recorder.stage("third", lambda notes: None, need_s=10_000)
    assert recorder.close() == 1
    rows = json.loads((recorder.out / "stages.json").read_text())
    assert [(r["stage"], r["outcome"]) for r in rows] == [("first", "failed"), ("second", "ok"), ("third", "skipped")]
    assert "no such luck" in rows[0]["error"] and rows[0]["notes"] == {"seen": 1}
    with tarfile.open(recorder.out / "records.tar.gz") as archive:
        assert {"records/first/traceback.txt", "records/second/a.txt"} <= set(archive.getnames())


def test_accept_length_counts_no_first_token_and_positions_are_at_least_so_many():
    # two requests: 1, then 2 and 3 tokens of two steps; 1, then 1 token of one step
    answers = [{"completion_tokens": 6, "spec_verify_ct": 2, "spec_correct_drafts_histogram": [0, 1, 1]},
               {"completion_tokens": 2, "spec_verify_ct": 1, "spec_correct_drafts_histogram": [1, 0, 0]}]
    found = module("run").accept_length(answers)
    assert found["accept_length"] == 2.0                    # 6 tokens of 3 steps
    assert found["by_position"] == [0.667, 0.333]           # of 3 steps, 2 accepted the first draft, 1 the second too
