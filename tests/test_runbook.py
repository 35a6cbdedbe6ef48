"""The verbs end to end: the embedded host over real SSH, the real engine, the micro pair."""

import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import pytest

import kit
from kit import project, store
from kit.errors import Cancelled, CheckError, JobError, NotHealthy, PlanError, PortBusy, ServiceDied

HERE = project.root()

@pytest.fixture
def data(tmp_path, monkeypatch):
    """A project folder of its own, so that runs and launches land in there."""
    for name in ("configs", "notebooks", "data"):
        (tmp_path / name).mkdir()
    for name in ("models", "prompts", "reference"):
        (tmp_path / "data" / name).symlink_to(HERE / "data" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def exp(engine_python, rehearsal_host, data, free_port):
    base = kit.Experiment.load(HERE / "configs" / "micro.yaml")
    exp = base.with_(**{"engine.python": engine_python, "serve.port": free_port, "bench.prompts": 2,
                        "bench.output_tokens": 16, "bench.prompt_sets": ("chat",), "bench.warmup": 1})
    yield exp
    stop = kit.plan(exp, kit.survey(exp, rehearsal_host), "stopped")
    kit.apply(stop, rehearsal_host).result(60)


@pytest.fixture
def free_port():
    import socket
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def host(rehearsal_host):
    return rehearsal_host


def serve(exp, host):
    return kit.apply(kit.plan(exp, kit.survey(exp, host)), host).result(90)


def state(exp, host, name=None):
    return kit.survey(exp, host).unit(name or exp.unit)


def test_from_nothing_to_a_comparison_and_back(exp, host):
    arms = [exp, exp.arm("eagle3")]
    for arm in arms:
        assert serve(arm, host) > 0
        assert not kit.plan(arm, kit.survey(arm, host)), "the second plan has nothing to do"
        assert kit.bench(arm, host).result(90).complete
    assert kit.running(exp, host).arm_name == "eagle3"
    assert {"load-target", "load-drafter", "listening"} <= set(kit.phases(exp.arm("eagle3"), host)["phase"])
    said = kit.diagnosis(exp.arm("eagle3"), host)
    assert said.state == "serving" and said.exit_status == 0
    runs = kit.runs(exp)
    table = kit.compare(kit.metrics.points(runs), kit.metrics.requests(runs))
    eagle = table[(table.arm == "eagle3") & (table.concurrency == 1)].iloc[0]
    assert 1.5 < eagle.accept_length <= 4 and eagle.identical == eagle.compared == 2
    page = kit.report(runs).read_text()
    assert "eagle3" in page and "https://" not in page.split("<script")[0]
    undo = kit.plan(exp, kit.survey(exp, host), "removed")
    kit.apply(undo, host).result(60)
    now = kit.survey(exp, host)
    assert not [u for u in now.units if u.about.get("experiment") == exp.name] and now.port_holder is None
    assert now.units or not now.models, "models stay only for units of other tests on this host"
    assert not kit.plan(exp, now, "removed")


def test_undo_on_a_shared_disk_leaves_what_lay_there_before(exp, host, tmp_path):
    disk = tmp_path / 'my "disk"\\'
    theirs = [disk / "models" / "my-llm" / "w", disk / "runs" / "2025" / "r", disk / "bin" / "tool"]
    for file in theirs:
        file.parent.mkdir(parents=True)
        file.write_text("mine")
    exp = exp.with_(**{"host.root": str(disk)})
    host = kit.connect(exp)
    kit.apply(kit.plan(exp, kit.survey(exp, host), "fetched"), host).result(60)
    assert not kit.plan(exp, kit.survey(exp, host), "fetched")
    kit.apply(kit.plan(exp, kit.survey(exp, host), "removed"), host).result(60)
    assert sorted(p for p in disk.rglob("*") if p.is_file()) == sorted(theirs)
    assert not kit.plan(exp, kit.survey(exp, host), "removed")


def test_a_model_that_is_not_there_yet_is_unknown_and_a_damaged_one_fails(exp, host, tmp_path):
    absent = exp.with_(**{"target.source": f"host:{tmp_path}/none.gguf"})
    assert [f.verdict for f in kit.check(absent, host)] == ["unknown"]
    (tmp_path / "none.gguf").write_bytes(b"no model at all")
    assert [f.verdict for f in kit.check(absent, host)] == ["fail"]


def test_a_drafter_that_does_not_fit_is_refused_before_anything_starts(exp, host):
    wrong = exp.arm("eagle3").with_(**{
        "drafter.source": "folder:data/models/smollm2-135m-eagle3/smollm2-135m-eagle3.q8_0.gguf"})
    report = kit.check(wrong, host)
    assert not report.ok and {f.id for f in report if f.verdict == "fail"} >= {"hidden-size", "vocab"}
    with pytest.raises(CheckError, match="hidden-size"):
        serve(wrong, host)
    assert state(wrong, host) is None


def test_a_busy_port_names_its_holder_and_nothing_is_started(exp, host, tmp_path):
    holder = subprocess.Popen([sys.executable, "-m", "http.server", str(exp.serve.port), "--bind", "127.0.0.1"],
                              cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: kit.survey(exp, host).port_holder)
        with pytest.raises(PortBusy, match=f"pid {holder.pid}"):
            kit.plan(exp, kit.survey(exp, host))
    finally:
        holder.kill()
        holder.wait()


def test_an_engine_that_dies_is_told_at_once_with_its_last_lines(exp, host, tmp_path):
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    torn = exp.with_(**{"target.source": f"folder:{tmp_path}/torn.gguf"})
    with pytest.raises(ServiceDied) as caught:      # not NotHealthy, which comes at the deadline
        serve(torn, host)
    what, where, next = str(caught.value).splitlines()
    # once in many runs the server's log lacks the line that says more; what is read from it: test_llamacpp
    assert ("The GGUF ends too early" in what and "fetch it again" in next
            or "Loading failed" in what and "check the model file" in next)
    assert "exit 1" in what and "rehearsal: " in where


def test_what_is_not_healthy_in_time_is_stopped_and_its_log_kept(exp, host, tmp_path):
    loading = tmp_path / "python"       # stands in for an engine that loads for ever
    loading.write_text("#!/bin/sh\necho loading shard 1 of 9\nexec sleep 600\n")
    loading.chmod(0o755)
    slow = exp.with_(**{"engine.python": str(loading), "serve.healthy_within_s": 1.0})
    with pytest.raises(NotHealthy, match="within 1 s: nobody listens yet"):
        serve(slow, host)
    assert not state(slow, host).running
    assert kit.follow(slow, host).result(30).active == "inactive"


def test_cancelling_a_launch_leaves_nothing_half_started(exp, host, tmp_path):
    loading = tmp_path / "python"
    loading.write_text("#!/bin/sh\nexec sleep 600\n")
    loading.chmod(0o755)
    slow = exp.with_(**{"engine.python": str(loading)})
    job = kit.apply(kit.plan(slow, kit.survey(slow, host)), host)
    _until(lambda: (u := state(slow, host)) and u.running)
    job.cancel()
    with pytest.raises(Cancelled):
        job.result(60)
    assert not state(slow, host).running


def test_applying_twice_at_once_is_one_job(exp, host):
    plan = kit.plan(exp, kit.survey(exp, host))
    first, second = kit.apply(plan, host), kit.apply(plan, host)
    assert first is second
    with pytest.raises(JobError, match="with other settings"):
        kit.apply(replace(plan, experiment=exp.with_(**{"serve.context": 1024})), host)
    first.result(90)


def test_a_model_that_arrived_incomplete_is_fetched_again(exp, host):
    kit.apply(kit.plan(exp, kit.survey(exp, host), "fetched"), host).result(60)
    path = exp.target.path(host.root)
    whole = host.read(path)
    host.write(path, whole[:1000])
    plan = kit.plan(exp, kit.survey(exp, host), "fetched")
    assert "incomplete" in plan.steps[0].why
    kit.apply(plan, host).result(60)
    assert host.read(path) == whole


def test_what_was_measured_is_not_measured_again_unless_asked(exp, host):
    serve(exp, host)
    first = kit.bench(exp, host).result(90)
    assert kit.bench(exp, host).result(90).id == first.id
    assert kit.bench(exp, host, again=True).result(90).id != first.id
    assert [r.id for r in store.runs(project.root() / "data" / "runs") if not r.complete] == []


def test_a_benchmark_needs_the_right_service(exp, host):
    with pytest.raises(PlanError, match="is not running"):
        kit.bench(exp, host).result(60)
    serve(exp, host)
    with pytest.raises(PlanError, match="other settings"):
        kit.bench(exp.with_(**{"serve.context": 1024}), host).result(60)


SLOW_BENCH = {"bench.prompts": 4, "bench.output_tokens": 400, "bench.concurrency": (1,)}
NOTEBOOK = """
import sys, kit
exp = kit.Experiment.load(sys.argv[1])
job = kit.bench(exp, kit.connect(exp))
while job.total == 0: job.wait(0.05)
print("measuring", flush=True)
job.result()
"""


def test_a_killed_kernel_stops_neither_service_nor_benchmark_and_the_next_one_takes_it_up(exp, host, data):
    import yaml
    slow = exp.with_(**SLOW_BENCH)
    serve(slow, host)
    config = data / "slow.yaml"
    config.write_text(yaml.safe_dump(slow.model_dump(mode="json")))
    kernel = subprocess.Popen([sys.executable, "-c", NOTEBOOK, str(config)],
                              stdout=subprocess.PIPE, cwd=data)
    assert kernel.stdout.readline() == b"measuring\n"
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    bench = state(slow, host, f"bench-{slow.unit}")
    assert state(slow, host).running and bench.running
    run = kit.bench(slow, host).result(120)
    assert run.complete and run.id == bench.about["run_id"]


def test_cancelling_a_benchmark_stops_its_load_and_keeps_the_service(exp, host):
    slow = exp.with_(**SLOW_BENCH)
    serve(slow, host)
    job = kit.bench(slow, host)
    _until(lambda: (u := state(slow, host, f"bench-{slow.unit}")) and u.running)
    job.cancel()
    with pytest.raises(Cancelled):
        job.result(60)
    assert not state(slow, host, f"bench-{slow.unit}").running and state(slow, host).running


def test_a_followed_log_ends_when_cancelled_and_shows_the_start(exp, host):
    serve(exp, host)
    log = kit.follow(exp, host)
    _until(lambda: any("listening" in line for line in log.lines(50)))
    log.cancel()
    log.wait(30)
    assert log.state == "cancelled" and state(exp, host).running


def test_apply_in_the_controls_restarts_with_the_new_setting_and_measures_it(exp, host):
    knobs = kit.controls(exp.arm("eagle3"), host)
    knobs.fields["spec.steps"].value = 2
    assert [d[0] for d in knobs.diff] == ["arms.eagle3.steps"]
    knobs.apply.click()
    run = knobs.job.result(120)
    assert run.meta["experiment"]["arms"]["eagle3"]["steps"] == 2 and run.meta["purpose"] == "tune"
    assert kit.metrics.points([run])["drafts"].tolist() == [2] * len(exp.bench.concurrency)


def test_what_the_last_apply_measured_is_shown_and_counts_as_measured_before(exp, host):
    knobs = kit.controls(exp.arm("eagle3"), host)
    knobs.fields["spec.steps"].value = 2
    knobs.apply.click()
    run = knobs.job.result(120)
    _until(lambda: knobs.result is not None)
    said = repr(knobs).partition("Result")[2]
    assert all(said.count(line.strip()) == 2 for line in kit.summary([run]).to_string().splitlines())
    assert "nothing yet" not in said


def test_a_probe_is_no_benchmark_and_a_benchmark_no_probe(exp, host):
    probe = kit.tune(exp, host).result(120)
    with pytest.raises(PlanError, match="no runs"):
        kit.runs(exp)
    run = kit.bench(exp, host).result(120)
    assert run.id != probe.id and [r.id for r in kit.runs(exp)] == [run.id]
    assert kit.tune(exp, host).result(120).id == probe.id
    assert kit.tune(exp, host, again=True).result(120).id not in (probe.id, run.id)


def test_a_drafter_that_changed_here_is_sent_again_its_service_restarted_and_measured_anew(exp, host, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    head = mine / "eagle3.q8_0.gguf"
    head.write_bytes((HERE / "data/models/micro-llama/eagle3.q8_0.gguf").read_bytes())
    exp = exp.with_(**{"drafter.source": f"folder:{head}", "drafter.sha256": None}).arm("eagle3")
    serve(exp, host)
    first = kit.bench(exp, host).result(60)
    pid = state(exp, host).pid
    assert not kit.plan(exp, kit.survey(exp, host)).steps
    raw = bytearray(head.read_bytes())
    raw[len(raw) // 2] ^= 1        # some weight
    head.write_bytes(raw)
    plan = kit.plan(exp, kit.survey(exp, host))
    assert "not as in" in repr(plan) and "another version of" in repr(plan)
    kit.apply(kit.plan(exp, kit.survey(exp, host), "fetched"), host).result(60)
    assert "another version of" in repr(kit.plan(exp, kit.survey(exp, host)))       # fetched; the old one still runs
    serve(exp, host)
    assert state(exp, host).pid != pid and not kit.plan(exp, kit.survey(exp, host)).steps
    assert kit.bench(exp, host).result(60).id != first.id


def test_a_survey_is_one_round_trip(exp, host, monkeypatch):
    asked = []
    real = type(host).run
    monkeypatch.setattr(type(host), "run", lambda self, command: asked.append(command) or real(self, command))
    kit.survey(exp, host)
    assert len(asked) == 1


def _until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
