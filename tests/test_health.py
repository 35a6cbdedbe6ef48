"""From started to healthy, or to a named end: SGLang's stand-in under the process supervisor, on this machine."""

import json
import re
import socket
import time
from contextlib import closing

import pytest
from doubles import LocalHost
from standin import install

from kit import health, project, reading, shipping
from kit.applying import Applier
from kit.dryrun import dry_run
from kit.engines import engine
from kit.errors import CommandTimeout, LinkLost, NotHealthy, PlanError, ServiceDied
from kit.following import start, state, stop
from kit.health import Proof, Stages
from kit.job import Job
from kit.prelaunch import preflight
from kit.seams import Acceptance, Http, LogLine, UnitState
from kit.spec import Experiment
from kit.steps import Plan
from kit.supervisors import supervisor

HERE = project.root()
TARGET = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 8192}
DRAFTER = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    return install(tmp_path_factory.mktemp("stand in") / "it's a venv")


@pytest.fixture
def host(tmp_path):
    return LocalHost(tmp_path / "root")


@pytest.fixture
def exp(venv, tmp_path):
    for name, config in (("target", TARGET), ("drafter", DRAFTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return Experiment.model_validate({
        "name": "standin", "host": {"ssh": "local"}, "arm_name": "eagle3",
        "engine": {"name": "sglang", "version": "0.5.12.post1", "python": venv, "env": {"STANDIN_SPEED": "200"}},
        "target": {"source": f"host:{tmp_path}/target"}, "drafter": {"source": f"host:{tmp_path}/drafter"},
        "serve": {"port": port, "context": 2048, "slots": 8, "healthy_within_s": 20, "stop_within_s": 2},
        "arms": {"baseline": {"algorithm": "none"}, "eagle3": {"algorithm": "eagle3"}, "eagle": {"algorithm": "eagle"},
                 "ngram": {"algorithm": "ngram"}}})


@pytest.fixture
def launch(host):
    """launch(exp, fault) → (seconds until healthy, what was said); the service is gone afterwards."""
    sup = supervisor("process")
    started = []

    def go(exp, fault="", within_s=None):
        exp = exp.with_(**{"engine.env": {**exp.engine.env, "STANDIN_FAULT": fault}})
        for name in sup.shipped:
            host.write(shipping.path(name, host.root), shipping.content(name))
        started.append(exp)
        start(host, sup, "python3", engine("sglang").service(exp, host.root))
        said = []
        return health.wait_healthy(exp, host, within_s or exp.serve.healthy_within_s, said.append, lambda: None), said

    yield go
    for exp in started:
        stop(host, sup, "python3", exp.unit, 2)


def running(exp, host):
    return state(host, supervisor("process"), "python3", exp.unit).running


# -- healthy

def test_a_drafter_that_fits_is_healthy_and_what_it_is_worth_is_said(exp, host, launch):
    took_s, said = launch(exp)
    drafter = next(line for line in said if line.startswith("drafter: "))
    assert re.match(r"drafter: accept length 2\.\d\d over 320 tokens in \d+\.\d s, from its answers", drafter)
    assert took_s > 0 and running(exp, host)
    phases = next(line for line in said if line.startswith("started: "))
    order = ["arguments", "load-target", "kv-cache", "load-drafter", "drafter", "sized", "listening", "ready"]
    assert [phases.index(f" {name} ") for name in order] == sorted(phases.index(f" {name} ") for name in order)


def test_what_has_no_drafter_is_not_asked_for_acceptance(exp, host, launch):
    for arm in ("baseline", "ngram"):
        assert not [line for line in launch(exp.arm(arm))[1] if line.startswith("drafter: ")]
        stop(host, supervisor("process"), "python3", exp.arm(arm).unit, 2)


def test_from_0_5_13_on_the_counters_give_the_same_window(exp, host, tmp_path, launch):
    newer = exp.with_(**{"engine.python": install(tmp_path / "newer", "0.5.16"), "engine.version": "0.5.16"})
    launch(newer)
    eng = engine("sglang")

    def counters():
        return eng.acceptance(host.http(exp.serve.port, eng.metrics_path()).body.decode())

    before, proof = counters(), health.prove(newer, host)
    window = counters() - before
    assert proof.steps == window.steps and abs(proof.length - window.accept_length) < 0.1
    mean = eng.accept_so_far(json.loads(host.http(exp.serve.port, eng.info_path()).body))
    assert abs(mean - proof.length) < 0.3


# -- not healthy

@pytest.mark.parametrize(("arm", "fault", "length"), [("eagle", "", "1.00"), ("eagle3", "accept=1.1", "1.10")])
def test_a_drafter_of_no_use_is_not_healthy_whatever_it_answers_and_is_stopped(exp, host, launch, arm, fault, length):
    with pytest.raises(NotHealthy, match=f"of no use: accept length {length} over 320 tokens") as raised:
        launch(exp.arm(arm), fault)
    assert "EAGLE-3 head" in raised.value.next and "d2t" in raised.value.next
    assert "it was stopped" in raised.value.what and not running(exp.arm(arm), host)


def test_one_that_is_of_some_use_is_healthy(exp, launch):
    assert any("accept length 1.3" in line for line in launch(exp, "accept=1.3")[1])


@pytest.mark.parametrize(("fault", "why", "came_to"), [
    ("never-bind", "nobody listens yet", "the target is loaded|reading the target's weights"),
    ("503", "answers 503: loading", "the port is open, warming up")])
def test_a_start_that_never_ends_says_what_it_was_doing(exp, host, launch, fault, why, came_to):
    with pytest.raises(NotHealthy, match=why) as raised:
        launch(exp, fault, within_s=2.5)
    assert re.search(f"it had come to: ({came_to})", raised.value.what) and not running(exp, host)


def test_one_that_runs_already_is_judged_by_its_drafter_too_and_neither_started_nor_stopped(exp, host, launch):
    arm = exp.arm("eagle")
    with pytest.raises(NotHealthy):
        launch(arm)
    served = arm.with_(**{"engine.env": {**arm.engine.env, "STANDIN_FAULT": ""}})
    start(host, supervisor("process"), "python3", engine("sglang").service(served, host.root))
    while not health.probe(served, host)[0]:
        time.sleep(0.05)
    before = state(host, supervisor("process"), "python3", arm.unit).pid
    with pytest.raises(NotHealthy, match="of no use: accept length 1.00 .* left running"):
        Job.start("apply", lambda job: Applier(Plan((), served, "serving"), host, job).run()).result(30)
    assert state(host, supervisor("process"), "python3", arm.unit).pid == before


class Flaky(LocalHost):
    """Loses its connection, or is too busy to answer, at some commands."""

    broken, error = 0, LinkLost

    def run(self, command):
        if self.broken and "states" in command.argv:
            self.broken -= 1
            raise self.error("the connection broke", where=self.name, next="connect again")
        return super().run(command)


@pytest.mark.parametrize("error", [LinkLost, CommandTimeout])
def test_a_lost_connection_or_a_busy_host_does_not_end_the_wait(exp, tmp_path, error):
    flaky, said, sup = Flaky(tmp_path / "root"), [], supervisor("process")
    flaky.error = error
    for name in sup.shipped:
        flaky.write(shipping.path(name, flaky.root), shipping.content(name))
    arm = exp.arm("baseline")
    start(flaky, sup, "python3", engine("sglang").service(arm, flaky.root))
    flaky.broken = 3
    try:
        assert health.wait_healthy(arm, flaky, 20, said.append, lambda: None) > 0
    finally:
        stop(flaky, sup, "python3", arm.unit, 2)
    assert said.count("the connection broke; asking again") == 3


class Answers:
    name = "gpu-7"


def test_a_host_in_another_boot_or_on_its_way_down_is_told_as_that(exp, monkeypatch):
    for before, now, says in ((["a", "running"], ["b", "running"], "was rebooted"),
                              (["a"], ["a", "stopping"], "is going down"), (["a", "running"], ["a", "running"], None),
                              ([], ["b"], None), (["a"], [], None)):
        monkeypatch.setattr(health, "_boot", lambda host, now=now: now)
        told = health.rebooted(exp, Answers(), before)
        assert says in told.what and "at_boot" in told.next if says else told is None


# -- dead

def test_the_motivating_flags_die_at_once_with_the_missing_flag_named(exp, launch):
    """In case somebody starts them without the dry run."""
    flags = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", exp.drafter.path("/"),
             "--speculative-num-draft-tokens", "3", "--speculative-eagle-topk", "4")
    with pytest.raises(ServiceDied, match="--speculative-num-steps is missing") as raised:
        launch(exp.arm("baseline").with_(**{"engine.args": flags}))
    assert "exit 1" in raised.value.what


def test_a_child_s_failure_is_not_taken_for_the_memory_killer(exp, launch):
    with pytest.raises(ServiceDied, match="it ended itself with SIGKILL after one of its processes failed") as raised:
        launch(exp, "child-fail")
    assert "a scheduler failed" in raised.value.what.lower() and "oom" not in raised.value.next
    assert "Received sigquit from a child process" in raised.value.where


def test_a_kill_without_a_word_points_to_the_kernel(exp, host):
    died = health.died(exp, host, "signal", None, "SIGKILL", ["[2026-12-01 00:00:00] Load weight begin."])
    assert "signal SIGKILL" in died.what and "oom" in died.next


@pytest.mark.parametrize("line", [
    "[2026-05-01 10:05:00] Subprocess scheduler_0 (pid=525) crashed with exit code -9. Triggering SIGQUIT for cleanup",
    "[2026-05-01 10:05:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed."])
def test_the_words_of_every_release_for_a_child_s_failure_are_known(exp, host, line):
    assert "it ended itself" in health.died(exp, host, "signal", None, "SIGKILL", [line]).what


def test_one_that_dies_after_a_megabyte_of_log_shows_its_last_lines(exp, launch):
    with pytest.raises(ServiceDied, match="exit 1") as raised:
        launch(exp.arm("baseline"), "log-mb=1,die-late=0")
    assert "asked to die" in raised.value.where and len(raised.value.where) < 2000


# -- what the measured length means

@pytest.mark.parametrize(("tokens", "length", "steps", "useless"), [
    (320, 1.0, 320, True), (320, 1.19, 269, True), (320, 1.21, 264, False), (320, 2.9, 110, False),
    (40, 1.0, 39, True),            # nothing of 39 drafts: chance does not explain that
    (40, 1.1, 36, False),           # 4 of 36 may be bad luck
    (8, 1.0, 7, False), (40, None, 0, False),
    (320, None, 0, True)])          # it answers at length, and never verified a draft
def test_few_tokens_condemn_only_what_chance_cannot_explain(tokens, length, steps, useless):
    assert Proof(tokens, length, steps, "", 0.1).useless is useless


class Says:
    """A host whose service answers from a table."""

    def __init__(self, pages):
        self.pages, self.asked = pages, []

    def http(self, port, path, body=None, timeout_s=10.0):
        self.asked.append(path)
        page = self.pages[path]
        return page.pop(0) if isinstance(page, list) else page


def answer(**meta):
    return Http(200, json.dumps([{"meta_info": {"completion_tokens": 80, **meta}}] * 4).encode())


def test_answers_that_tell_nothing_leave_it_to_the_counters_and_then_to_the_server_s_own_mean(exp):
    def page(steps, tokens):
        return Http(200, f'sglang:spec_verify_calls_total{{tp_rank="0"}} {steps}\nsglang:spec_num_draft_tokens 4.0\n'
                    f'sglang:generation_tokens_total {tokens}\nsglang:num_requests_total 4\n'.encode())
    counted = health.prove(exp, Says({"/metrics": [page(0.0, 4.0), page(100.0, 324.0)], "/generate": answer()}))
    assert (counted.source, counted.steps, counted.length) == ("its counters", 100, 3.2)
    info = {"internal_states": [{"avg_spec_accept_length": 2.5}]}
    told = health.prove(exp, Says({"/metrics": Http(404), "/generate": answer(),
                                   "/get_server_info": Http(200, json.dumps(info).encode())}))
    assert (told.source, told.length) == ("its mean since the start", 2.5)
    nothing = health.prove(exp, Says({"/metrics": Http(404), "/generate": answer(), "/get_server_info": Http(404)}))
    assert nothing.length is None and nothing.useless and "nothing tells" in str(nothing)


def test_a_proof_that_fails_is_no_judgement_but_a_reason_to_look_again(exp):
    failed = health.prove(exp, Says({"/metrics": Http(404), "/generate": Http(500, b"selected index k out of range")}))
    assert isinstance(failed, str) and "500" in failed


def test_llamacpp_is_judged_by_its_counters_over_few_tokens():
    micro = Experiment.load(HERE / "configs" / "micro.yaml").arm("eagle3")
    assert micro.engine.name == "llamacpp"

    def page(steps, accepted):
        return Http(200, f"llamacpp:spec_decode_num_drafts_total {steps}\n"
                    f"llamacpp:spec_decode_num_draft_tokens_total {steps * 3}\n"
                    f"llamacpp:spec_decode_num_accepted_tokens_total {accepted}\n".encode())
    chat = Http(200, b'{"usage": {"completion_tokens": 40}}')
    host = Says({"/metrics": [page(5, 9), page(20, 37)], "/v1/chat/completions": chat})
    proof = health.prove(micro, host)
    assert (proof.tokens, proof.steps, proof.useless) == (40, 15, False)
    assert proof.length == Acceptance(15, 45, 28).accept_length
    assert host.asked == ["/metrics", "/v1/chat/completions", "/metrics"]
    useless = health.prove(micro, Says({"/metrics": [page(0, 0), page(39, 0)], "/v1/chat/completions": chat}))
    assert useless.useless


# -- phases

def test_times_of_a_start_are_told_from_its_first_line():
    stages = Stages(engine("sglang").phases)
    for at, line in ((100.0, "a warning"), (103.0, "[2026-01-01 00:00:03] server_args=ServerArgs("),
                     (125.0, "[2026-01-01 00:00:25 TP0] Load weight begin. avail mem=93.10 GB")):
        stages.see(at, line)
    assert str(stages) == "arguments 3 s, load-target 25 s" and stages.last == "reading the target's weights"


# -- before all that

def by_hand(exp, *numbers):
    return exp.arm("baseline").with_(**{"engine.args": (
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", exp.drafter.path("/"), *numbers)})


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12.post1", "0.5.16", "0.5.23"])
def test_the_dry_run_program_itself_finds_the_missing_flag_in_every_layout_of_the_source(exp, host, tmp_path, version):
    arm = by_hand(exp, "--speculative-num-draft-tokens", "3", "--speculative-eagle-topk", "4").with_(
        **{"engine.python": install(tmp_path / "venv", version), "engine.version": version})
    found = {f.id: f for f in dry_run(arm, host)}
    assert set(found) == {"spec-steps-missing"} and len(host.ran) == 1
    assert "--speculative-num-steps is missing" in found["spec-steps-missing"].what
    assert ("speculative_hook.py" in found["spec-steps-missing"].why) == (version in ("0.5.16", "0.5.23"))


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12.post1", "0.5.23"])
def test_it_accepts_a_good_command_and_writes_nothing(exp, host, tmp_path, version):
    arm = exp.with_(**{"engine.python": install(tmp_path / "venv", version), "engine.version": version})
    before = sorted(p for p in tmp_path.rglob("*"))
    report = {f.id: f for f in dry_run(arm, host)}
    assert f"SGLang {version} accepts the command" in report["dry-run"].what
    assert sorted(p for p in tmp_path.rglob("*")) == before
    assert json.loads(report["dry-run"].evidence)["speculative_num_draft_tokens"] == 4
    assert ("resolved-overlap-off" in report) == (version == "0.5.9")


@pytest.mark.parametrize(("change", "id"), [
    ({"serve.context": 8192}, "dry-run-context"), ({"engine.args": ("--nope",)}, "dry-run-flag"),
    ({"target": {"source": "host:/no/such/model"}}, "dry-run-model-missing"),
    ({"engine.python": "/no/such/python"}, "dry-run-python"), ({"engine.python": "/bin/cat"}, "dry-run-garbage"),
    ({"engine.python": "/etc/passwd"}, "dry-run-python"),
    ({"engine.launch": {"numactl": {"cpunodebind": "99"}}}, "dry-run-program"),
    ({"engine.env": {"STANDIN_PYTHON": "/no/python3"}}, "dry-run-program"),
])
def test_every_way_to_be_wrong_has_its_own_finding(exp, host, change, id):
    found = {f.id: f for f in dry_run(exp.with_(**change), host)}
    assert set(found) - {"lint-disagrees"} == {id} and found[id].fix


def test_a_dry_run_that_hangs_is_ended_and_says_where(exp, host, venv, tmp_path):
    slow = tmp_path / "site" / "sglang"
    (slow / "srt").mkdir(parents=True)
    (slow / "__init__.py").touch()
    (slow / "srt" / "__init__.py").touch()
    (slow / "srt" / "server_args.py").write_text("import time\ntime.sleep(60)\n")
    arm = exp.with_(**{"engine.python": venv, "engine.env": {"SPECBOOK_DRY_RUN_S": "0.5", "STANDIN_PYTHON": str(
        _python_with(tmp_path, tmp_path / "site"))}})
    began = time.monotonic()
    found = {f.id: f for f in dry_run(arm, host)}
    assert "in the stage import" in found["dry-run-timeout"].what and time.monotonic() - began < 20


def _python_with(tmp_path, site):
    """A python3 that finds `site` before anything else."""
    python = tmp_path / "python-with-site"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec python3 "$@"\n')
    python.chmod(0o755)
    return python


def test_preflight_asks_the_engine_and_shows_its_refusal(exp, host):
    flight = preflight(by_hand(exp, "--speculative-num-draft-tokens", "3", "--speculative-eagle-topk", "4"), host)
    assert "spec-steps-missing" in {f.id for f in flight.dry if f.verdict == "fail"} and not flight
    assert preflight(exp, host).dry.ok



# -- what the log says, of a service that lives or died

def test_phases_are_told_in_order_also_when_the_hosts_clock_is_set_back_meanwhile():
    stages = Stages(engine("sglang").phases)
    for at, line in ((1000.0, "server_args=ServerArgs(model_path='m')"),
                     (1010.0, "[2026-01-01 00:00:25 TP0] Load weight begin."), (-2580.0, "x"),
                     (-2575.0, "The server is fired up and ready to roll!")):
        stages.see(at, line)
    assert str(stages) == ("arguments 0 s, load-target 10 s, ready 15 s "
                           "(the host's clock was set back by 3590 s meanwhile)")


def test_a_services_log_is_diagnosed_where_it_runs(exp, host, launch):
    with pytest.raises(PlanError, match="was never started there"):
        reading.diagnosis(exp, host)
    launch(exp)
    alive = reading.diagnosis(exp, host)
    assert alive.state == "serving" and alive.exit_status == 0 and alive.report.title.endswith("active")
    stop(host, supervisor("process"), "python3", exp.unit, 2)
    assert reading.diagnosis(exp, host).exit_status == 0


def test_a_start_that_hangs_shows_by_its_silence(exp, host, monkeypatch):
    """The log's last lines are an hour old, or of this moment: the same lines, told apart by the host's clock."""
    told = ["Init torch distributed begin.", "sglang is using nccl==2.28.9"]
    monkeypatch.setattr(reading, "state", lambda *_: UnitState(exp.unit, "active"))
    for age_s, verdict in ((3600, "fail"), (0, "warn")):
        at = time.time() - age_s
        monkeypatch.setattr(reading, "recent", lambda *_, at=at: [LogLine(f"a.{i}", at, t) for i, t in enumerate(told)])
        hang = next(f for f in reading.diagnosis(exp, host).report if f.id == "nccl-hang")
        assert hang.verdict == verdict and ("for 360" in hang.what) == bool(age_s)
