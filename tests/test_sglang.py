"""SGLang as an engine: what is launched, and how recorded starts, failures, answers and counters of it are read."""

import json
import re
from pathlib import Path

import pytest
import yaml

from kit import health
from kit.engines import engine
from kit.engines.sglang import ENGINE, FAILURES, PHASES, TYPES
from kit.errors import SpecError
from kit.lint import lint
from kit.spec import Experiment, Spec

FIXTURES = Path(__file__).parent / "fixtures" / "sglang"
LINES = yaml.safe_load((FIXTURES / "failures.yaml").read_text())
RELEASES = ("0.5.12.post1", "0.5.16", "0.5.23")


def recorded(name):
    return (FIXTURES / name).read_text().splitlines()


@pytest.fixture
def exp():
    return Experiment.load("configs/k26-eagle3.yaml")


def flags(unit):
    """The words after the program, as {flag: value}."""
    words = unit.argv[3:]
    return {w: "" if i + 1 == len(words) or words[i + 1].startswith("--") else words[i + 1]
            for i, w in enumerate(words) if w.startswith("--")}


# -- what is launched

def test_the_motivating_deployment_is_rendered_with_all_three_speculative_numbers(exp):
    unit = engine("sglang").service(exp, "/data/specbook")
    assert unit.argv[:3] == ("/opt/sglang/bin/python", "-m", "sglang.launch_server")
    drafter = flags(unit).pop("--speculative-draft-model-path")
    assert drafter.startswith("/data/specbook/models/kimi-k2.6-eagle3-main-")
    assert flags(unit) == {
        "--model-path": "/models/Kimi-K2.6", "--served-model-name": "k26", "--host": "127.0.0.1", "--port": "30001",
        "--tp-size": "8", "--context-length": "32768", "--max-running-requests": "64", "--mem-fraction-static": "0.88",
        "--speculative-algorithm": "EAGLE3", "--speculative-draft-model-path": drafter,
        "--speculative-num-steps": "3", "--speculative-eagle-topk": "1", "--speculative-num-draft-tokens": "4",
        "--enable-metrics": "", "--attention-backend": "triton", "--trust-remote-code": ""}
    assert unit.port == 30001 and unit.env["OMP_NUM_THREADS"] == "8" and unit.env["NCCL_PROTO"] == "LL"


def test_the_baseline_is_the_same_command_without_the_speculative_flags(exp):
    with_head, without = ENGINE.service(exp, "/r"), ENGINE.service(Experiment.load("configs/k26-baseline.yaml"), "/r")
    assert {f: v for f, v in flags(with_head).items() if not f.startswith("--speculative")} == flags(without)
    assert with_head.env == without.env and with_head.name != without.name


def test_without_an_interpreter_of_the_user_there_is_no_command(exp):
    with pytest.raises(SpecError, match="engine.python"):
        ENGINE.service(exp.with_(**{"engine.python": None}), "/r")


@pytest.mark.parametrize(("spec", "numbers"), [
    (Spec(algorithm="eagle3", steps=3), ("3", "1", "4")),
    (Spec(algorithm="eagle", steps=5, topk=4, draft_tokens=7), ("5", "4", "8")),
    (Spec(algorithm="draft", steps=1), ("1", "1", "2")),
    (Spec(algorithm="mtp", steps=2), ("2", "1", "3")),
])
def test_sglang_counts_what_is_verified_one_more_than_is_drafted(spec, numbers):
    terms = ENGINE.terms(spec)
    assert tuple(terms[f"--speculative-{n}"] for n in ("num-steps", "eagle-topk", "num-draft-tokens")) == numbers
    assert int(numbers[2]) == spec.drafts + 1


def test_ngram_and_dflash_choose_their_own_depth():
    assert ENGINE.terms(Spec(algorithm="ngram")) == {"--speculative-algorithm": "NGRAM"}
    assert ENGINE.terms(Spec(algorithm="dflash", draft_tokens=15))["--speculative-num-draft-tokens"] == "16"
    assert ENGINE.terms(Spec()) == {}


@pytest.mark.parametrize(("spec", "says"), [
    (Spec(algorithm="suffix"), "does not have it"),
    (Spec(algorithm="eagle3", steps=3, draft_tokens=2), "would verify 4"),
])
def test_what_sglang_lacks_or_would_change_is_refused(spec, says):
    with pytest.raises(SpecError, match=says):
        ENGINE.terms(spec)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("algorithm", sorted(TYPES))
def test_every_rendered_command_passes_the_rules_of_its_release(exp, release, algorithm):
    arm = exp.with_(**{"spec.algorithm": algorithm})
    report = lint("sglang", release, list(ENGINE.service(arm, "/r").argv))
    assert report.ok, report


def test_as_first_written_lacks_the_number_of_steps():
    first = Experiment.load("configs/k26-as-first-written.yaml")
    said = lint("sglang", first.engine.version, list(ENGINE.service(first, "/r").argv))
    assert [f.id for f in said if f.verdict == "fail"] == ["spec-steps-missing"]
    assert "--speculative-num-steps is missing" in next(iter(said)).what


# -- how it starts, and how it fails

def test_a_start_with_a_drafter_goes_through_the_phases_in_order():
    seen = [name for name, _, _ in health.phases(PHASES, [(None, line) for line in recorded("start-eagle3.log")])]
    assert seen == ["arguments", "distributed", "load-target", "kv-cache", "graphs", "load-drafter", "sized",
                    "listening", "ready"]


def test_a_start_without_one_loads_once():
    seen = [name for name, _, _ in health.phases(PHASES, [(None, line) for line in recorded("start-baseline.log")])]
    assert seen == ["arguments", "distributed", "load-target", "kv-cache", "graphs", "sized", "listening", "ready"]


@pytest.mark.parametrize("name", ["start-eagle3.log", "start-baseline.log"])
def test_the_ready_path_answers_503_until_the_server_says_it_is_ready(name):
    lines = recorded(name)
    answers = [re.search(r'" (\d+) ', line)[1] for line in lines if f"GET {ENGINE.ready_path()} " in line]
    assert len(answers) > 5 and set(answers) == {"503"}
    assert re.search(PHASES[-1].pattern, lines[-1])


@pytest.mark.parametrize("name", ["start-eagle3.log", "start-baseline.log"])
def test_a_healthy_start_is_no_failure(name):
    assert health.explain(FAILURES, recorded(name)) is None


def test_the_motivating_failure_is_explained_though_its_assertion_has_no_text():
    lines = recorded("fail-spec-steps-missing.log")
    assert lines[-1] == "AssertionError"
    assert health.explain(FAILURES, lines)[0].id == "spec-steps-missing"


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f.id)
def test_each_failure_is_told_from_the_others(failure):
    assert health.explain(FAILURES, [LINES[failure.id]]) == (failure, LINES[failure.id])
    assert "Fix: " in failure.meaning or failure.id == "scheduler"


def test_a_cause_is_preferred_to_the_scheduler_s_end():
    assert health.explain(FAILURES, [LINES["scheduler"], LINES["kv-memory"]])[0].id == "kv-memory"


# -- what it answers

def test_a_generation_is_greedy_and_its_stream_carries_the_counts():
    path, body = ENGINE.generation("Hello", 7, stream=True)
    assert path == "/v1/chat/completions" and body["temperature"] == 0 and body["max_tokens"] == 7
    assert body["stream_options"] == {"include_usage": True}
    assert "stream_options" not in ENGINE.generation("Hello", 7, stream=False)[1]


def test_tokens_are_counted_in_a_recorded_answer_and_in_nothing_else():
    assert ENGINE.generated(json.loads((FIXTURES / "chat.json").read_text())) == 16
    for other in ({}, [], {"usage": None}, {"usage": {"completion_tokens": "16"}}, {"error": {"message": "no"}}):
        assert ENGINE.generated(other) == 0


@pytest.mark.parametrize("name", ["metrics-eagle3.txt", "metrics-baseline.txt"])
def test_a_release_without_counters_gives_no_acceptance(name):
    """0.5.12 has gauges alone: the accept length of its last 40 steps, and 0 for a baseline."""
    page = (FIXTURES / name).read_text()
    assert "sglang:spec_accept_length{" in page and ENGINE.acceptance(page) is None


def page(steps, generated, requests, rank=0):
    """As a release from 0.5.13 on writes them: request counters without ranks, scheduler ones with."""
    of = f'engine_type="unified",model_name="m",tp_rank="{rank}"'
    return (f'sglang:spec_verify_calls_total{{{of}}} {steps}\nsglang:spec_num_draft_tokens{{{of}}} 4.0\n'
            f'sglang:generation_tokens_total{{model_name="m"}} {generated}\n'
            f'sglang:num_requests_total{{model_name="m"}} {requests}\n')


def test_acceptance_counts_neither_the_bonus_token_nor_the_prefill_s():
    """2 requests of 25 tokens: each 1 from its prefill and 24 from 8 verify steps, 3 a step."""
    before, after = ENGINE.acceptance(page(0, 0, 0)), ENGINE.acceptance(page(16.0, 50.0, 2.0))
    window = after - before
    assert (window.steps, window.drafted, window.accepted) == (16, 48, 32)
    assert window.accept_length == 3


def test_the_other_ranks_of_a_tensor_parallel_group_are_not_counted_again():
    twice = page(16.0, 50.0, 2.0) + 'sglang:spec_verify_calls_total{tp_rank="1"} 16.0\n'
    assert ENGINE.acceptance(twice).steps == 16
