"""SGLang as an engine: what is launched, and how recorded starts, failures, answers and counters of it are read."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kit import stages
from kit.engines import engine
from kit.engines.sglang import ENGINE
from kit.engines.sglang.flags import known, rendered
from kit.engines.sglang.log import FAILURES, PHASES
from kit.errors import SpecError
from kit.launch import Launch
from kit.lint import lint
from kit.lint.flags import known_versions, table
from kit.lint.versions import show
from kit.spec import Experiment, Spec

FIXTURES = Path(__file__).parent / "fixtures" / "sglang"
LINES = yaml.safe_load((FIXTURES / "failures.yaml").read_text())
ANSWERS = {name: json.loads((FIXTURES.parent / "sglang-0.5.12" / f"{name}.json").read_text())
           for name in ("base", "eagle3")}
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


@pytest.mark.parametrize(("release", "algorithm"), [(r, a) for r in RELEASES for a in known(r)])
def test_every_rendered_command_passes_the_rules_of_its_release(exp, release, algorithm):
    arm = exp.with_(**{"spec.algorithm": algorithm, "engine.version": release})
    report = lint("sglang", release, list(ENGINE.service(arm, "/r").argv))
    assert report.ok, report


@pytest.mark.parametrize(("algorithm", "release", "since"), [
    ("draft", "0.5.1", "0.5.3"), ("ngram", "0.4.9.post6", "0.5.3"), ("dflash", "0.5.10.post1", "0.5.11"),
    ("dspark", "0.5.15.post1", "0.5.16")])
def test_an_algorithm_that_a_release_has_not_yet_is_refused_with_the_first_that_has(exp, algorithm, release, since):
    with pytest.raises(SpecError, match=f"from {since} on, engine.version is {release}"):
        ENGINE.service(exp.with_(**{"spec.algorithm": algorithm, "engine.version": release}), "/r")


def test_a_config_that_names_no_release_may_use_every_algorithm(exp):
    unit = ENGINE.service(exp.with_(**{"spec.algorithm": "dspark", "engine.version": None}), "/r")
    assert flags(unit)["--speculative-algorithm"] == "DSPARK" and "--speculative-num-steps" not in flags(unit)


@pytest.mark.parametrize("version", known_versions("sglang"), ids=show)
def test_what_was_renamed_is_written_under_a_name_that_the_release_has(version):
    """Held against the flag tables of all 23 releases."""
    known_flags = table("sglang", version).by_name
    for old, new in (("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
                     ("--cuda-graph-bs", "--cuda-graph-bs-decode"),
                     ("--nsa-prefill-backend", "--dsa-prefill-backend"),
                     ("--speculative-dflash-draft-window-size", "--speculative-draft-window-size")):
        if old not in known_flags and new not in known_flags:
            continue                            # the release is older than both
        for written in (old, new):
            (word, value) = rendered((written, "8"), show(version))
            assert word in known_flags and value == "8", (written, word)
            assert not known_flags[word].message, f"{word} is deprecated, and {new} is there"


def test_a_renamed_flag_keeps_its_value_behind_an_equals_sign():
    assert rendered(("--cuda-graph-max-bs=8", "--tp", "2"), "0.5.23") == ("--cuda-graph-max-bs-decode=8", "--tp", "2")
    assert rendered(("--cuda-graph-max-bs=8",), None) == ("--cuda-graph-max-bs=8",)


@pytest.mark.parametrize("args", [("--api-key", "sk-1"), ("--api-key=sk-1",), ("--admin-api-key", "sk-1"),
                                  ("--ssl-keyfile-password", "sk-1"), ("--api-k", "sk-1"), ("--api", "sk-1"),
                                  ("--admin", "sk-1"), ("--ssl-keyfile-p=x",)])
def test_a_secret_in_the_flags_is_refused_and_never_repeated(exp, args):
    with pytest.raises(SpecError, match="where every user of the host reads it") as raised:
        ENGINE.service(exp.with_(**{"engine.args": args}), "/r")
    assert "sk-1" not in str(raised.value) and "--config FILE" in raised.value.next


def test_the_environment_s_programs_come_first_and_caches_lie_where_undo_finds_them(exp):
    env = ENGINE.service(exp.with_(**{"engine.env": {}}), "/data/kit").env
    assert env["PATH"].startswith("/opt/sglang/bin:") and "/usr/bin" in env["PATH"].split(":")
    assert {env[k].split("/compiled")[0] for k in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")} \
        == {"/data/kit"}
    own = ENGINE.service(exp.with_(**{"engine.env": {"PATH": "/mine", "XDG_CACHE_HOME": "/big"}}), "/data/kit").env
    assert (own["PATH"], own["XDG_CACHE_HOME"]) == ("/mine", "/big")


# -- what goes before the command

@pytest.mark.parametrize(("launch", "prefix"), [
    ({}, ()), ({"numactl": {}}, ()),
    ({"numactl": {"cpunodebind": "0-1", "membind": "0,1"}},
     ("/usr/bin/numactl", "--cpunodebind=0-1", "--membind=0,1")),
])
def test_a_launch_prefix_is_absolute_words(exp, launch, prefix):
    arm = exp.with_(**{"engine.launch": launch})
    argv = ENGINE.service(arm, "/r").argv
    assert argv[:len(prefix) + 1] == (*prefix, "/opt/sglang/bin/python")
    assert lint("sglang", "0.5.12.post1", list(argv)).ok


def test_a_conda_environment_is_activated_in_the_very_process_that_becomes_the_server(tmp_path):
    """Against a conda made of one shell function: its variables are there, and the process stays the same."""
    base, env = tmp_path / "it's conda", tmp_path / "it's conda" / "envs" / "sg lang"
    (base / "etc/profile.d").mkdir(parents=True)
    (base / "etc/profile.d/conda.sh").write_text('conda() { [ "$1" = activate ] && export CONDA_PREFIX="$2"; }\n')
    prefix = Launch(conda=str(env)).prefix()
    assert prefix[0] == "/bin/sh"
    started = subprocess.Popen([*prefix, "/bin/sh", "-c", 'echo "$$ $CONDA_PREFIX $1"', "sh", "a b"],
                               stdout=subprocess.PIPE, text=True)
    assert started.communicate()[0] == f"{started.pid} {env} a b\n"


@pytest.mark.parametrize("launch", [{"conda": "envs/sglang"}, {"numactl": {"membind": "0; rm -rf /"}},
                                    {"numactl": {"cpunodebind": "0 --all"}}, {"nice": 5}])
def test_what_is_no_path_or_node_is_refused_where_it_is_written(exp, launch):
    with pytest.raises(SpecError, match="engine.launch"):
        exp.with_(**{"engine.launch": launch})


def test_as_first_written_lacks_the_number_of_steps():
    first = Experiment.load("configs/k26-as-first-written.yaml")
    said = lint("sglang", first.engine.version, list(ENGINE.service(first, "/r").argv))
    assert [f.id for f in said if f.verdict == "fail"] == ["spec-steps-missing"]
    assert "--speculative-num-steps is missing" in next(iter(said)).what


# -- how it starts, and how it fails

def test_a_start_with_a_drafter_goes_through_the_phases_in_order():
    seen = [name for name, _, _ in stages.phases(PHASES, [(None, line) for line in recorded("start-eagle3.log")])]
    assert seen == ["arguments", "distributed", "load-target", "kv-cache", "graphs", "load-drafter",
                    "drafter", "sized", "listening", "ready"]


def test_the_first_loaded_weights_are_not_the_end_of_loading():
    """The drafter's load looks the same as the target's; only its place tells."""
    lines = recorded("start-eagle3.log")
    first = next(i for i, line in enumerate(lines) if "Load weight end" in line)
    assert "load-drafter" not in [n for n, _, _ in stages.phases(PHASES, [(None, x) for x in lines[:first + 1]])]


def test_eight_ranks_that_load_the_target_are_not_taken_for_a_drafter():
    ranks = [f"[2026-05-01 10:00:00 TP{i}] Load weight begin. avail mem=93.10 GB" for i in range(8)]
    assert [n for n, _, _ in stages.phases(PHASES, [(None, line) for line in ranks])] == ["load-target"]
    again = [(None, line) for line in (*ranks, *ranks)]
    assert [n for n, _, _ in stages.phases(PHASES, again)] == ["load-target", "load-drafter"]


def test_a_start_without_one_loads_once():
    seen = [name for name, _, _ in stages.phases(PHASES, [(None, line) for line in recorded("start-baseline.log")])]
    assert seen == ["arguments", "distributed", "load-target", "kv-cache", "graphs", "sized", "listening", "ready"]


@pytest.mark.parametrize("name", ["start-eagle3.log", "start-baseline.log"])
def test_the_ready_path_answers_503_until_the_server_says_it_is_ready(name):
    lines = recorded(name)
    answers = [re.search(r'" (\d+) ', line)[1] for line in lines if f"GET {ENGINE.ready_path()} " in line]
    assert len(answers) > 5 and set(answers) == {"503"}
    assert re.search(PHASES[-1].pattern, lines[-1])


@pytest.mark.parametrize("name", ["start-eagle3.log", "start-baseline.log"])
def test_a_healthy_start_is_no_failure(name):
    assert stages.explain(FAILURES, recorded(name)) is None


def test_the_motivating_failure_is_explained_though_its_assertion_has_no_text():
    lines = recorded("fail-spec-steps-missing.log")
    assert lines[-1] == "AssertionError"
    assert stages.explain(FAILURES, lines)[0].id == "spec-steps-missing"


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f.id)
def test_each_failure_is_told_from_the_others(failure):
    assert stages.explain(FAILURES, [LINES[failure.id]]) == (failure, LINES[failure.id])
    assert "Fix: " in failure.meaning or failure.id == "scheduler"


def test_a_cause_is_preferred_to_the_scheduler_s_end():
    assert stages.explain(FAILURES, [LINES["scheduler"], LINES["kv-memory"]])[0].id == "kv-memory"


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


# -- what a drafter is worth, from three places

def meta(**fields):
    return {"text": "…", "meta_info": {"completion_tokens": 48, **fields}}


def test_an_answer_tells_the_acceptance_of_its_own_request():
    """Recorded: 48 tokens, 18 verify steps, 31 drafts right; the last step's are counted though they were cut off."""
    tokens, acceptance = ENGINE.proven(ANSWERS["eagle3"]["generate"])
    assert (tokens, acceptance.steps, acceptance.accepted, acceptance.drafted) == (48, 18, 31, 54)


def test_before_0_5_12_the_right_drafts_follow_from_the_verify_steps():
    tokens, acceptance = ENGINE.proven([meta(spec_verify_ct=18), meta(spec_verify_ct=47)])
    assert (tokens, acceptance.steps, acceptance.accepted) == (96, 65, 29)


@pytest.mark.parametrize("answer", [meta(), meta(spec_verify_ct=0), [meta()]])
def test_without_verify_steps_an_answer_tells_tokens_alone(answer):
    assert ENGINE.proven(answer) == (48, None)


@pytest.mark.parametrize("answer", [{}, [], None, "x", {"meta_info": None}, {"meta_info": {"completion_tokens": "48"}}])
def test_what_is_no_answer_has_no_tokens(answer):
    assert ENGINE.proven(answer) == (0, None)


def test_the_server_s_own_mean_is_there_after_its_first_interval_only():
    """Recorded before and after the benchmark; without speculation never."""
    assert ENGINE.accept_so_far(ANSWERS["eagle3"]["server_info"]) is None
    assert round(ENGINE.accept_so_far(ANSWERS["eagle3"]["server_info_after"]), 2) == 3.03
    assert ENGINE.accept_so_far(ANSWERS["base"]["server_info_after"]) is None
    for other in ({}, [], {"internal_states": []}, {"internal_states": [None]}):
        assert ENGINE.accept_so_far(other) is None
