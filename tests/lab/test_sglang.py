"""SGLang as a systemd service on a real host, by the calls that the notebooks make: from the plan to healthy and back.

The engine is the stand-in (tests/standin), with recorded logs and answers; systemd, journald, sudo and SSH are real.
"""

import json
import urllib.request
from dataclasses import replace

import pytest
from machines import changes
from sglang_host import apply, k26, plan

import kit
from kit.errors import CheckError, NotHealthy
from kit.steps import Check

pytestmark = pytest.mark.usefixtures("furnished", "clean", "data")


def state(exp, host):
    return kit.survey(exp, host).unit(exp.unit)


def verbs(steps):
    return [verb for verb, _, _ in steps.rows()]


# -- as it was first written

def test_as_first_written_it_is_refused_before_a_file_is_written_and_lint_says_what_the_engine_there_says(
        alpha, snapshot):
    exp = kit.Experiment.load("configs/k26-as-first-written.yaml", "alpha").with_(**{"host.supervisor": "systemd"})
    before = snapshot(alpha)
    flight = kit.preflight(exp, alpha)
    said = {part: next(f.what for f in report if f.id == "spec-steps-missing")
            for part, report in (("lint", flight.lint), ("dry run", flight.dry))}
    assert said["lint"] == "--speculative-num-steps is missing" and said["dry run"].startswith(said["lint"])
    with pytest.raises(CheckError, match="--speculative-num-steps is missing") as refused:
        kit.apply(flight.plan, alpha).result(60)
    what, where, next_ = str(refused.value).splitlines()
    assert "k26-as-written" in where and "--speculative-num-steps 3 --speculative-eagle-topk 4" in next_
    assert changes(before, snapshot(alpha)) == []


# -- mended

def test_from_a_plan_that_shows_the_unit_to_healthy_through_the_tunnel_to_another_setting_and_back(
        alpha, snapshot, shell):
    exp, before = k26(), snapshot(alpha)
    steps = plan(exp, alpha)
    assert verbs(steps)[0] == "dryrun" and verbs(steps)[-2:] == ["start", "healthy"] and all(r[2] for r in steps.rows())
    shown = steps.diff.splitlines()
    assert '+ExecStart="/opt/sglang/bin/python" \\' in shown and '+    "--speculative-num-steps" "3" \\' in shown
    assert changes(before, snapshot(alpha)) == [], "a plan changes nothing"

    job = kit.apply(steps, alpha)
    assert job.result(60) > 0
    assert [line for line in job.lines() if line.startswith("drafter: accept length 2.")]
    assert state(exp, alpha).running
    port = alpha.forward(exp.serve.port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/get_server_info", timeout=5) as answer:
        assert json.load(answer)["speculative_num_draft_tokens"] == 4
    assert "0.0.0.0:30001" not in shell("alpha", "ss -Hltn")
    assert repr(plan(exp, alpha)).startswith("nothing to do")

    run = kit.bench(exp, alpha).result(60)
    kept = {name: (run.folder / name).read_text() for name in ("unit.txt", "server.log", "server.json")}
    assert run.complete and kept["unit.txt"] == shell(alpha, "cat /etc/systemd/system/specbook-k26-eagle3.service")
    assert "server_args=ServerArgs(" in kept["server.log"] and "POST /v1/chat/completions" in kept["server.log"]
    assert json.loads(kept["server.json"])["speculative_num_draft_tokens"] == 4

    deeper = exp.with_(**{"spec.steps": 5})
    again = plan(deeper, alpha)
    assert verbs(again) == ["dryrun", "check", "stop", "free", "claim", "start", "healthy"]
    shown = [line for line in again.diff.splitlines() if line[0] in "+-" and "Digest" not in line]
    assert shown == ["--- on the host", "+++ planned", '-    "--speculative-num-steps" "3" \\',
                     '+    "--speculative-num-steps" "5" \\', '-    "--speculative-num-draft-tokens" "4" \\',
                     '+    "--speculative-num-draft-tokens" "6" \\']
    kit.apply(again, alpha).result(60)
    assert not plan(deeper, alpha)

    undo = plan(deeper, alpha, "removed")
    assert {"stop", "forget", "remove"} <= set(verbs(undo))
    kit.apply(undo, alpha).result(60)
    assert changes(before, snapshot(alpha)) == [] and not plan(deeper, alpha, "removed")


def test_a_user_service_becomes_healthy_without_root_and_leaves_nothing_behind_either(
        connect_as, lingering, snapshot):
    guest, exp = connect_as("guest"), k26(host="alpha-guest", supervisor="systemd-user")
    before = snapshot(guest)
    assert apply(exp, guest).result() > 0 and not plan(exp, guest)
    apply(exp, guest, "removed").result()
    assert changes(before, snapshot(guest)) == []


def test_a_service_of_another_user_has_a_cache_that_it_may_write_and_is_undone_without_a_trace(alpha, snapshot, shell):
    exp, before = k26(**{"host.run_as": "guest"}), snapshot(alpha)
    assert apply(exp, alpha).result() > 0
    assert shell("alpha", "stat -c %U /home/deploy/.specbook/compiled").split() == ["guest"]
    shell("alpha", "runuser -u guest -- sh -c 'mkdir -p /home/deploy/.specbook/compiled/triton/k && "
                   "touch /home/deploy/.specbook/compiled/triton/k/x.so'")
    apply(exp, alpha, "stopped").result()
    assert state(exp, alpha).result == "success" and not state(exp, alpha).running
    apply(exp, alpha, "removed").result()
    assert changes(before, snapshot(alpha)) == []


def test_the_other_arm_takes_the_port_and_the_gpus_by_a_visible_stop(alpha):
    apply(k26("baseline"), alpha).result()
    steps = plan(k26(), alpha)
    assert [r for r in steps.rows() if r[0] == "stop"] == [("stop", "k26-baseline", "it holds port 30001")]
    kit.apply(steps, alpha).result(60)
    assert state(k26(), alpha).running and not state(k26("baseline"), alpha).running


# -- a drafter that says nothing is wrong

def test_eagle_with_an_eagle3_head_forced_past_the_check_is_caught_by_its_accept_length_and_stopped(alpha):
    exp = k26("eagle")
    steps = plan(exp, alpha)
    with pytest.raises(CheckError):
        kit.apply(steps, alpha).result(60)
    assert not state(exp, alpha)
    forced = replace(steps, steps=tuple(s for s in steps if not isinstance(s, Check)))
    with pytest.raises(NotHealthy, match="of no use: accept length 1.00 over 320 tokens") as caught:
        kit.apply(forced, alpha).result(60)
    assert "EAGLE with an EAGLE-3 head" in caught.value.next and len(str(caught.value).splitlines()) == 3
    assert not state(exp, alpha).running and not kit.survey(exp, alpha).leases
