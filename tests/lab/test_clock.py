"""The host's clock is set, an hour on or an hour back, while something is followed or waited for.

In these containers no clock can be set. So libfaketime gives the journal's own daemon, and a wrapper
the babysitter, another time from one moment to the next; the journal, the service and the kit are the real ones.
"""

import time

import pytest
from machines import eventually
from sglang_host import apply, k26, plan
from test_systemd import SYSTEM, tools, unit

import kit
from kit.following import lines, recent, start, state, stop
from kit.supervisors import supervisor

TICKS = "import time\nfor i in range(400): print('tick', i, flush=True); time.sleep(0.05)"
FAKE = "LD_PRELOAD=/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketime.so.1 FAKETIME_TIMESTAMP_FILE=/run/clock " \
       "FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
JOURNALD = f"""
d=/run/systemd/system/systemd-journald.service.d; mkdir -p $d
printf '[Service]\\nEnvironment=%s\\n' "{FAKE}" > $d/clock.conf
systemctl daemon-reload; systemctl restart systemd-journald"""
# A Python whose wall clock, and nothing else, is as far off as the file says. Called as `python -I -S program …`.
PYTHON = """#!/usr/bin/python3
import runpy, sys, time
true = time.time
time.time = lambda: true() + float(open("/run/clock").read())
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def clock(shell):
    """clock(seconds): from now on that far from the true time, for what was made to look."""
    def set_to(seconds):
        shell("alpha", 'echo "$1" >/run/clock.new; mv /run/clock.new /run/clock', seconds)
    set_to("+0")
    yield set_to
    shell("alpha", """rm -rf /run/systemd/system/systemd-journald.service.d /run/clock /opt/jumping-python
        systemctl daemon-reload; systemctl restart systemd-journald""")


@pytest.fixture
def jumping_journal(clock, shell):
    shell("alpha", JOURNALD)
    assert "libfaketime" in shell("alpha", "cat /proc/$(pidof systemd-journald)/maps")
    return clock


@pytest.mark.parametrize("by", ["-3600", "+3600"])
def test_a_journal_whose_clock_is_set_is_followed_without_a_gap_or_a_repeat(alpha, jumping_journal, by):
    tools(alpha, SYSTEM)
    start(alpha, SYSTEM, "python3", unit(code=TICKS, port=None))
    eventually(lambda: len(recent(alpha, SYSTEM, "python3", "demo")) > 5)
    said = []
    for line in lines(alpha, SYSTEM, "python3", "demo"):
        said += [line] if line.text.startswith("tick") else []
        if len(said) == 10:
            jumping_journal(by)
        if len(said) == 60:
            break
    assert [line.text for line in said] == [f"tick {i}" for i in range(60)]
    assert abs(said[-1].time_s - said[0].time_s - float(by)) < 60, "the clock was set"
    resumed = [line.text for line in recent(alpha, SYSTEM, "python3", "demo", said[30].cursor)]
    assert resumed[:29] == [f"tick {i}" for i in range(31, 60)]


@pytest.mark.parametrize("by", ["-3600", "+3600"])
def test_a_babysitter_whose_clock_is_set_keeps_its_unit_its_log_and_its_word(alpha, clock, shell, by):
    shell("alpha", 'cat >/opt/jumping-python; chmod 755 /opt/jumping-python', stdin=PYTHON)
    process, python = supervisor("process"), "/opt/jumping-python"
    tools(alpha, process)
    start(alpha, process, python, unit(code=TICKS, port=None))
    eventually(lambda: len(recent(alpha, process, python, "demo")) > 5)
    clock(by)
    eventually(lambda: len(recent(alpha, process, python, "demo")) > 40)
    said = recent(alpha, process, python, "demo")
    assert [line.text for line in said] == [f"tick {i}" for i in range(len(said))]
    assert state(alpha, process, python, "demo").running
    began = time.monotonic()
    stop(alpha, process, python, "demo", 2)
    ended = state(alpha, process, python, "demo")
    assert not ended.running and time.monotonic() - began < 10
    assert abs(ended.ended_at - ended.started_at - float(by)) < 60, "the clock was set"


@pytest.mark.usefixtures("furnished", "data")
def test_a_start_during_which_the_clock_is_set_ends_healthy_and_the_jump_is_told(alpha, jumping_journal):
    exp = k26(**{"engine.env": {"STANDIN_SPEED": "40", "STANDIN_FAULT": ""}, "serve.healthy_within_s": 60.0})
    job = kit.apply(plan(exp, alpha), alpha)
    eventually(lambda: any("Load weight" in line for line in job.lines()), 30)
    jumping_journal("-3600")
    assert 0 < job.result(60) < 60
    told = next(line for line in job.lines() if line.startswith("started: "))
    assert "-3" not in told and "clock was set back" in told
    apply(exp, alpha, "removed").result()
