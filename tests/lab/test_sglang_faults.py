"""What can be wrong with a host or a service, met by a plan or while it is applied: a named end with what to do next,
and nothing half-written. The engine is the stand-in; all else is real."""

import re
from dataclasses import replace

import pytest
from machines import changes, eventually
from sglang_host import apply, k26, plan

import kit
from kit.engines import service
from kit.errors import CheckError, NoSpace, NotHealthy, PlanError, PortBusy, ServiceDied, SudoError
from kit.following import start
from kit.steps import DryRun, Write
from kit.supervisors import supervisor

pytestmark = pytest.mark.usefixtures("furnished", "clean", "data")


def state(exp, host):
    return kit.survey(exp, host).unit(exp.unit)


def refused(kind, work):
    """The error of that kind, which says what, where and what next, in three lines."""
    with pytest.raises(kind) as caught:
        work()
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and lines[1].startswith("  where: ") and lines[2].startswith("  next:  "), lines
    return caught.value


def unchecked(steps):
    """A plan past the dry run: as if the engine had been changed after it."""
    return replace(steps, steps=tuple(s for s in steps if not isinstance(s, DryRun)))


# -- who may write units

@pytest.mark.parametrize("user, says, next_", [
    ("guest", "sudo refused", "host.supervisor: systemd-user"), ("pat", "a password is required", "kit.sudo(host)")])
def test_who_gets_no_root_is_told_before_anything_is_written(connect_as, snapshot, user, says, next_):
    host, exp = connect_as(user), k26(host=f"alpha-{user}")
    before = snapshot("alpha")
    error = refused((SudoError, PlanError), lambda: apply(exp, host).result())
    assert says in error.what and next_ in error.next
    assert changes(before, snapshot("alpha")) == []


def test_a_user_service_without_lingering_is_refused_with_the_command_that_switches_it_on(connect_as, snapshot):
    host, exp = connect_as("guest"), k26(host="alpha-guest", supervisor="systemd-user")
    before = snapshot("alpha")
    error = refused(PlanError, lambda: plan(exp, host))
    assert "lingering is off for guest" in error.what and "loginctl enable-linger guest" in error.next
    assert changes(before, snapshot("alpha")) == []


def test_a_unit_of_that_name_that_is_not_ours_ends_the_plan_and_stays_as_it_is(alpha, snapshot, shell):
    shell(alpha, "printf '[Service]\\nExecStart=/bin/sleep 99\\n' >/etc/systemd/system/specbook-k26-eagle3.service; "
                 "systemctl daemon-reload; systemctl start specbook-k26-eagle3")
    before = snapshot(alpha)
    error = refused(PlanError, lambda: plan(k26(), alpha))
    assert "specbook-k26-eagle3.service is there, and is not ours" in error.what
    assert changes(before, snapshot(alpha)) == []


def test_a_host_with_docker_alone_is_refused_by_that_name(alpha, shell):
    shell(alpha, "printf '#!/bin/sh\\n' >/usr/local/bin/docker; chmod +x /usr/local/bin/docker")
    try:
        error = refused(PlanError, lambda: plan(k26(**{"host.python": "/no/python3"}), alpha))
    finally:
        shell(alpha, "rm /usr/local/bin/docker")
    assert "docker and no Python" in error.what and "on the host itself" in error.next


# -- what the launch needs

OLD = """#!/bin/sh
# a Python that is too old, as far as a program can see
exec python3 -c 'import sys; sys.version_info = (3, 6, 15, "final", 0); exec(sys.stdin.read())' "$@"
"""
BROKEN = """#!/bin/sh
PYTHONPATH=/opt/broken exec python3 "$@"
"""


@pytest.fixture
def pythons(shell):
    """Wrong ones: too old, and one whose SGLang lacks a module."""
    shell("alpha", 'mkdir -p /opt/old /opt/broken/sglang/srt; printf %s "$1" >/opt/old/python; '
                   'printf %s "$2" >/opt/broken/python; cd /opt/broken/sglang; touch __init__.py srt/__init__.py; '
                   'echo "import torch" >srt/server_args.py; chmod +x /opt/old/python /opt/broken/python', OLD, BROKEN)
    yield
    shell("alpha", "rm -r /opt/old /opt/broken")


MISSING = [
    ({"engine.python": "/opt/none/bin/python"}, "dry-run-python: engine.python is not there: /opt/none/bin/python"),
    ({"engine.python": "/usr/bin/python3"}, "dry-run-engine-missing: this Python has no SGLang"),
    ({"engine.python": "/opt/broken/python"}, "dry-run-engine-broken: SGLang cannot be imported: torch is missing"),
    ({"engine.python": "/opt/old/python"}, "dry-run-python-wrong: engine.python is Python 3.6.15"),
    ({"target": {"source": "host:/models/none"}}, "dry-run-model-missing: the target's folder is not on the host"),
    ({"drafter": {"source": "host:/models"}}, "dry-run-model-missing|drafter-readable"),
    ({"engine.args": ("--speculate",)}, "dry-run-flag: .*--speculate"),
    ({"serve.context": 1 << 20}, "dry-run-context: the context of 1048576 tokens"),
    ({"engine.launch": {"numactl": {"cpunodebind": "0"}}}, "dry-run-program: /usr/bin/numactl is not there"),
]


def test_what_is_missing_is_named_before_anything_is_written(alpha, pythons, snapshot):
    before = snapshot(alpha)
    for change, says in MISSING:
        exp = k26(**change)
        error = refused(CheckError, lambda exp=exp: apply(exp, alpha).result())
        assert re.search(says, error.what), (change, error.what)
    assert changes(before, snapshot(alpha)) == []


def test_a_port_that_a_stranger_holds_is_named_in_the_plan_and_found_out_where_it_comes_later(alpha, shell):
    exp = k26()
    early = plan(exp, alpha)
    shell(alpha, "systemd-run -q --uid deploy --unit stranger python3 -m http.server 30001 --bind 127.0.0.1")
    try:
        eventually(lambda: alpha.http(30001, "/").status)
        assert "http.server 30001" in refused(PortBusy, lambda: plan(exp, alpha)).what
        assert "http.server 30001" in refused(PortBusy, lambda: kit.apply(early, alpha).result(60)).what
        assert not state(exp, alpha).running and not kit.survey(exp, alpha).leases
        assert alpha.http(30001, "/").status == 200
    finally:
        shell(alpha, "systemctl stop stranger")


# -- the disk

@pytest.mark.parametrize("pages, until", [(0, "claim"), (3, "start")])
def test_a_full_disk_is_named_and_with_room_again_the_plan_goes_through(
        alpha, fill_disk, free_disk, shell, pages, until):
    """Room for the kit's programs and so many pages more: the note on the GPUs, the unit here and there."""
    exp = k26("baseline")
    steps = plan(exp, alpha)
    fill_disk(alpha, 4096 * (pages + sum(-(-len(s.content) // 4096) for s in steps if isinstance(s, Write))))
    job = kit.apply(steps, alpha)
    assert "space" in refused(NoSpace, lambda: job.result(60)).next and job.phases[-1][0].startswith(until)
    free_disk(alpha)
    assert shell(alpha, "find /etc/systemd /home /tmp -name '*.new'") == ""
    assert shell(alpha, "ls /etc/systemd/system | grep specbook || true") == "" and not kit.survey(exp, alpha).leases
    assert apply(exp, alpha).result() > 0 and not plan(exp, alpha)


# -- the host and the way to it

def test_a_reboot_ends_a_wait_by_that_name_and_what_is_to_start_with_the_host_serves_again(alpha, reboot):
    env = k26().engine.env
    stays = k26("baseline", **{"serve.at_boot": True, "engine.env": {**env, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}})
    loads = k26(**{"serve.healthy_within_s": 60.0, "serve.port": 30002, "engine.env": {
        **env, "CUDA_VISIBLE_DEVICES": "4,5,6,7", "STANDIN_FAULT": "never-bind"}})
    apply(stays, alpha).result()
    job = kit.apply(plan(loads, alpha), alpha)
    assert eventually(lambda: [line for line in job.lines() if "Load weight begin" in line], 20)
    reboot(alpha)
    error = refused(ServiceDied, lambda: job.result(60))
    assert re.search("the host (was rebooted|is going down)", error.what) and "at_boot" in error.next
    assert not state(loads, alpha).running and [r for r in plan(loads, alpha).rows() if r[0] == "start"]
    assert not plan(stays, alpha) and apply(stays, alpha).result() > 0


def test_killed_ssh_sessions_in_the_middle_of_a_wait_cost_nothing(alpha, kill_sshd_sessions):
    exp = k26(**{"engine.env": {**k26().engine.env, "STANDIN_SPEED": "100"}, "serve.healthy_within_s": 30.0})
    job = kit.apply(plan(exp, alpha), alpha)
    for stage in ("Load weight begin", "KV Cache", "Capture"):
        assert eventually(lambda stage=stage: [said for said in job.lines() if stage in said], 20), job.lines()
        kill_sshd_sessions(alpha)
    assert job.result(60) > 0 and state(exp, alpha).running
    assert len([said for said in job.lines() if "server_args=ServerArgs(" in said]) == 1


def test_a_journal_that_is_rotated_while_it_is_followed_has_no_gap_and_no_repeat(alpha, shell):
    exp = k26("baseline", fault="log-mb=1.5")
    start_only(exp, alpha)
    job = kit.follow(exp, alpha)
    for _ in range(4):
        shell(alpha, "journalctl --rotate")
    assert eventually(lambda: [said for said in job.lines() if "ready to roll" in said], 20)
    job.cancel().wait(10)
    numbers = [int(said[:6]) for said in (line.partition("] ")[2] for line in job.lines()) if said[:6].isdigit()]
    assert numbers == list(range(int(1.5 * 1024)))


def start_only(exp, host):
    """Started, as by somebody who looked no further."""
    kit.apply(plan(exp, host, "fetched"), host).result(60)
    start(host, supervisor(exp.host.supervisor), "python3", service(exp, host.root))


# -- the service

def test_a_refused_flag_is_told_and_not_tried_again_though_restarts_are_wanted(alpha, shell):
    exp = k26("baseline", **{"engine.args": ("--speculate",), "serve.restart": True})
    error = refused(ServiceDied, lambda: kit.apply(unchecked(plan(exp, alpha)), alpha).result(60))
    assert "refuses a flag" in error.what and "--speculate" in error.where and "engine.args" in error.next
    now = state(exp, alpha)
    assert (now.active, now.exit_code, now.about.get("_restarts")) == ("failed", 2, None)


def test_a_unit_that_is_started_over_and_over_ends_at_its_first_failure_with_the_cause(alpha):
    exp = k26("baseline", fault="child-fail", **{"serve.restart": True, "serve.healthy_within_s": 30.0})
    error = refused(ServiceDied, lambda: apply(exp, alpha).result())
    assert "it ended itself with SIGKILL after one of its processes failed" in error.what
    assert "asked to fail" in error.where and "oom" not in error.next
    assert not state(exp, alpha).running and not kit.survey(exp, alpha).leases


def test_one_that_dies_later_is_found_dead_with_its_last_words_and_the_next_plan_says_so(alpha):
    exp = k26("baseline", fault="die-late=2")
    assert apply(exp, alpha).result() > 0
    assert eventually(lambda: not state(exp, alpha).running, 10)
    why = [why for verb, _, why in plan(exp, alpha).rows() if verb == "start"]
    assert why == ["it is failed (exit-code)"]
    job = kit.follow(exp, alpha)
    assert job.result(20).exit_code == 1 and [said for said in job.lines() if "asked to die" in said]


@pytest.mark.parametrize("arm, fault, says", [
    ("eagle", "", "of no use: accept length 1.00"), ("baseline", "hang", "was not healthy within 1 s: .*no answer")])
def test_one_that_runs_already_and_is_of_no_use_is_not_taken_for_served_and_nothing_is_started_or_stopped(
        alpha, arm, fault, says):
    exp = k26(arm, fault=fault, **{"serve.healthy_within_s": 1.0})
    start_only(exp, alpha)
    eventually(lambda: alpha.http(30001, "/v1/models").status == 200)
    before = state(exp, alpha)
    assert not plan(exp, alpha)
    error = refused(NotHealthy, lambda: apply(exp, alpha).result())
    assert re.search(says, error.what) and "left running" in error.what
    now = state(exp, alpha)
    assert now.running and now.pid == before.pid


