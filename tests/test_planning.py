"""Plans are pure: facts in, steps with reasons out. The host here is only a value."""

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from kit import project, shipping
from kit.engines import engine, service
from kit.errors import PlanError, PortBusy, SpecError
from kit.facts import Gpu, Holder, Lease, Present
from kit.planning import plan, tools
from kit.seams import UnitState
from kit.spec import Experiment
from kit.steps import Remove, Start
from kit.supervisors import supervisor
from kit.surveys import Survey

EXP = Experiment.load(project.root() / "configs" / "micro.yaml")
BARE = Survey(host="h", root="/r", hostname="h", user="u", os="Linux", boot_id="b", clock_s=0, python=(3, 11, 0),
              cpu=(2, "x"), load=0.0, mem_free_mib=1, disk_free_mib=1, gpus=(), systemd=False, port=8102,
              port_holder=None, shipped={}, engines={}, models={}, units=())
ENGINE = engine("llamacpp").python(EXP, "/r").split("/")[-3]


def there(*checkpoints):
    """Complete model folders for these checkpoints."""
    return {c.slug: Present({"files": {"f": {"size": 1, "sha256": c.sha256 or "00"}}}, {"f": 1}) for c in checkpoints}


def furnished(exp=EXP):
    """A host where all is installed and fetched, and nothing runs."""
    names = [step.path.rsplit("/", 1)[-1] for step in tools(exp, BARE)]
    return replace(BARE, shipped={n: shipping.sha256(n) for n in names}, engines={ENGINE: {}},
                   models=there(exp.target, exp.drafter))


def serving(exp=EXP, **changes):
    """The same, with this arm's service up."""
    unit = engine("llamacpp").service(exp, "/r")
    state = UnitState(unit.name, "active", "running", digest=unit.digest, port=unit.port, about=unit.about)
    return replace(furnished(exp), port_holder=Holder(7, "python"), units=(replace(state, **changes),))


def verbs(steps):
    return [f"{verb} {subject}" for verb, subject, _ in steps.rows()]


def test_on_a_bare_host_everything_is_brought_first_and_healthy_comes_last():
    steps = plan(EXP.arm("eagle3"), BARE)
    kinds = [v.split()[0] for v in verbs(steps)]
    assert list(dict.fromkeys(kinds)) == ["write", "run", "fetch", "check", "start", "healthy"]
    assert kinds.count("fetch") == 2 and all(why for _, _, why in steps.rows())


def test_the_second_plan_says_nothing_to_do():
    assert not plan(EXP, serving()).steps
    assert "nothing to do" in repr(plan(EXP, serving()))


def test_the_baseline_needs_no_drafter():
    assert verbs(plan(EXP, furnished())) == ["start micro-baseline", "healthy micro-baseline"]


def test_another_arm_on_the_port_is_stopped_by_a_visible_step():
    steps = plan(EXP.arm("eagle3"), serving())
    assert verbs(steps) == ["check micro-eagle3", "stop micro-baseline", "start micro-eagle3", "healthy micro-eagle3"]


def test_changed_settings_replace_the_service():
    steps = plan(EXP.with_(**{"serve.context": 1024}), serving())
    assert verbs(steps) == ["stop micro-baseline", "start micro-baseline", "healthy micro-baseline"]
    assert "settings changed" in steps.steps[0].why


def test_the_service_is_replaced_when_only_its_port_changes():
    steps = plan(EXP.with_(**{"serve.port": 9000}), replace(serving(), port=9000, port_holder=None))
    assert verbs(steps) == ["stop micro-baseline", "start micro-baseline", "healthy micro-baseline"]


def test_a_unit_whose_record_is_damaged_may_run_and_is_stopped():
    now = serving(active="failed", sub="failed", result="damaged")
    assert verbs(plan(EXP, now)) == ["stop micro-baseline", "start micro-baseline", "healthy micro-baseline"]
    assert verbs(plan(EXP, now, "stopped")) == ["stop micro-baseline"]


def test_a_stranger_on_the_port_is_named_and_never_stopped():
    with pytest.raises(PortBusy, match="pid 4242 .nginx"):
        plan(EXP, replace(furnished(), port_holder=Holder(4242, "nginx")))
    with pytest.raises(PortBusy, match="another user"):
        plan(EXP, replace(furnished(), port_holder=Holder(0, "")))


@pytest.mark.parametrize("state, why", [
    (UnitState("micro-baseline", "failed", "failed", "exit-code"), "failed (exit-code)"),
    (UnitState("micro-baseline", "inactive", "dead", "success"), "it is inactive"),
    (None, "not installed"),
])
def test_a_service_that_is_down_is_started_and_the_reason_says_how_it_was(state, why):
    now = replace(furnished(), units=(state,) if state else ())
    assert why in plan(EXP, now).steps[0].why


@pytest.mark.parametrize("present, why", [
    (None, "not on the host"),
    (Present(None, {"x.part": 5}), "incomplete there (5 bytes"),
    (Present({"files": {"f": {"size": 9, "sha256": "00"}}}, {"f": 5}), "incomplete there (5 bytes"),
    (Present({"files": {"f": {"size": 5, "sha256": "11"}}}, {"f": 5}), "another version"),
])
def test_a_checkpoint_is_fetched_for_a_stated_reason(present, why):
    exp = EXP.with_(**{"target.sha256": "a" * 64})
    now = replace(furnished(exp), models={exp.target.slug: present} if present else {})
    assert why in plan(exp, now, "fetched").steps[0].why


def test_another_version_of_our_programs_is_replaced():
    now = replace(furnished(), shipped={**furnished().shipped, "load.py": "0" * 64})
    assert verbs(plan(EXP, now, "fetched")) == ["write /r/bin/load.py"]


@pytest.mark.parametrize("python", [None, (3, 8, 10)])
def test_a_host_without_a_fitting_python_is_refused(python):
    with pytest.raises(PlanError, match="Python 3.9"):
        plan(EXP, replace(BARE, python=python))


def test_a_misspelt_wish_and_an_unknown_source_are_refused_with_what_is_known():
    with pytest.raises(PlanError, match="no plan leads to 'remove'"):
        plan(EXP, serving(), "remove")
    with pytest.raises(SpecError, match="no source named 'weel'"):
        plan(EXP.with_(**{"target.source": "weel:x==1/y.gguf"}), furnished())


def test_stop_stops_all_arms_and_jobs_of_this_experiment_and_nothing_else():
    mine, other = serving().units[0], UnitState("x", "active", about={"experiment": "other"})
    assert verbs(plan(EXP, replace(serving(), units=(mine, other)), "stopped")) == ["stop micro-baseline"]
    assert not plan(EXP, furnished(), "stopped").steps


def test_undo_leaves_what_other_experiments_use():
    other = UnitState("x", "active", about={"experiment": "other"})
    steps = plan(EXP, replace(serving(), units=(*serving().units, other)), "removed")
    assert verbs(steps) == ["stop micro-baseline", "forget micro-baseline"]


def test_undo_alone_on_the_host_removes_every_folder_of_ours_and_then_nothing_is_to_do():
    removed = [v for v in verbs(plan(EXP, serving(), "removed")) if v.startswith("remove")]
    folders = ("units", "models", "engines", "runs", "secrets", "compiled", "bin")
    assert removed == [f"remove /r/{name}" for name in folders]
    assert not plan(EXP, BARE, "removed").steps


def test_undo_touches_nothing_that_only_lies_in_the_same_folders():
    theirs = replace(BARE, models={"my-llm": Present(None, {"w": 1})}, shipped={"tool": "0" * 64}, engines={"v8": {}})
    assert not plan(EXP, theirs, "removed").steps
    for step in plan(EXP, serving(), "removed"):
        if isinstance(step, Remove):
            assert not any(fnmatchcase(name, only) for name in ("my-llm", "tool", "v8", "2025") for only in step.only
                           if not step.path.endswith(("/units", "/compiled")))


# ------------------------------------------------ hosts with GPUs, systemd, other people

K26 = Experiment.load(project.root() / "configs" / "k26-eagle3.yaml").with_(
    **{"drafter.source": "host:/models/head", "host.supervisor": "systemd"})
GPU = Gpu(0, "RTX PRO 6000", 97887, 0, "580", "12.0")
BIG = replace(BARE, user="deploy", systemd=True, privilege="sudo", gpus=(GPU,) * 8, port=30001)


def k26_serving(text=None, **changes):
    sup, unit = supervisor("systemd"), service(K26, "/r")
    text = sup.text(unit, "/r", "deploy") if text is None else text
    names = [step.path.rsplit("/", 1)[-1] for step in tools(K26, BIG)]
    state = UnitState(unit.name, "active", "running", digest=unit.digest, port=unit.port,
                      about={**unit.about, "_text": text})
    return replace(BIG, shipped={n: shipping.sha256(n) for n in names}, units=(replace(state, **changes),))


def kinds(steps):
    return [type(s).__name__ for s in steps]


def test_the_command_and_the_pair_are_judged_before_anything_is_written_and_the_gpus_claimed_before_the_start():
    steps = kinds(plan(K26, BIG))
    assert steps[:2] == ["DryRun", "Check"] and steps[-3:] == ["Claim", "Start", "Healthy"]


def test_with_a_checkpoint_still_to_fetch_the_dry_run_waits_for_its_config():
    exp = Experiment.load(project.root() / "configs" / "k26-eagle3.yaml")
    steps = kinds(plan(exp, BIG))
    assert steps.index("Fetch") < steps.index("DryRun") < steps.index("Start")


def test_the_plan_shows_the_whole_unit_as_a_diff_and_then_nothing():
    diff = plan(K26, BIG).diff
    assert "+KillMode=mixed" in diff and '+    "--speculative-num-steps" "3" \\' in diff
    assert not plan(K26, k26_serving()).steps and plan(K26, k26_serving()).diff == ""


def test_a_unit_file_changed_by_hand_is_written_anew_and_only_that_line_differs():
    text = supervisor("systemd").text(service(K26, "/r"), "/r", "deploy").replace("Restart=no", "Restart=always")
    steps = plan(K26, k26_serving(text))
    assert next(s for s in steps if isinstance(s, Start)).why == "its unit file is not as the kit writes it"
    changed = [line for line in steps.diff.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-Restart=always", "+Restart=no"]


def test_another_arm_on_the_same_gpus_is_stopped_by_a_visible_step_and_its_memory_waited_for():
    other = k26_serving(name="k26-baseline", digest="x", port=30002, about={"experiment": "k26"})
    steps = plan(K26, other)
    assert "stop k26-baseline" in verbs(steps) and "it holds the GPUs" in repr(steps)
    assert kinds(steps).index("Stop") < kinds(steps).index("Free") < kinds(steps).index("Start")


def test_an_arm_on_other_gpus_stays():
    other = k26_serving(name="k26-baseline", digest="x", port=30002, about={"experiment": "k26", "devices": "9,10"})
    assert "Stop" not in kinds(plan(K26, other))


def test_a_second_experimenter_is_named():
    lease = Lease("/tmp/specbook.lock.d/ann-x.json", "ann@desk as ann", "qwen", "qwen-eagle3", "/home/ann/.specbook",
                  30000, "b", 0)
    with pytest.raises(PlanError, match="ann@desk.*qwen-eagle3"):
        plan(K26, replace(BIG, leases=(lease,)))
    assert plan(K26, replace(BIG, leases=(replace(lease, boot_id="an earlier one"),))).steps
    assert plan(K26, replace(BIG, leases=(replace(lease, root="/r"),))).steps


def test_a_second_experimenter_is_named_where_all_log_in_as_the_same_user():
    lease = Lease("/tmp/specbook.lock.d/root-q.json", "ann@desk as root", "qwen", "qwen-eagle3", "/r", 30000, "b", 0)
    hers = k26_serving(name="qwen-eagle3", digest="x", port=30000, about={"experiment": "qwen"})
    with pytest.raises(PlanError, match="ann@desk.*qwen-eagle3"):
        plan(K26, replace(hers, me="ben@laptop", leases=(lease,)))
    mine = plan(K26, replace(hers, me="ann@desk", leases=(lease,)))
    assert "stop qwen-eagle3" in verbs(mine)
    ended = replace(hers, units=(replace(hers.units[0], active="inactive"),), me="ben@laptop", leases=(lease,))
    assert plan(K26, ended).steps, "a note whose unit is dead stops nobody"


def test_settings_beside_our_unit_file_are_named_even_where_the_service_runs():
    there = k26_serving()
    assert not plan(K26, there).steps
    path = "/etc/systemd/system/specbook-k26-eagle3.service.d/override.conf"
    beside = replace(there, units=(replace(there.units[0], about={**there.units[0].about, "_dropins": [path]}),))
    with pytest.raises(PlanError, match="override.conf") as e:
        plan(K26, beside)
    assert "systemctl revert specbook-" in e.value.next


def test_a_host_without_systemd_is_told_which_supervisor_serves_instead():
    with pytest.raises(PlanError) as e:
        plan(K26, replace(BIG, systemd=False))
    assert "host.supervisor: process" in e.value.next


def test_a_unit_file_of_somebody_else_under_our_name_ends_the_plan():
    with pytest.raises(PlanError, match="not ours"):
        plan(K26, k26_serving(active="failed", result="not-ours", about={"_error": "x.service is not ours"}))


@pytest.mark.parametrize("files, says", [
    ({"systemd/k26-eagle3": ""}, "not written by this kit"), ({"systemd/k26-eagle3": "/home/ann/.s"}, "/home/ann/.s"),
    ({"systemd/k26-eagle3": "/r", "systemd-user/k26-eagle3": ""}, ""), ({"systemd/other": ""}, "")])
def test_one_that_the_kit_s_folder_knows_nothing_of_does_too(files, says):
    now = replace(BIG, unit_files=files)
    if not says:
        assert plan(K26, now).steps
        return
    with pytest.raises(PlanError, match="is not ours") as e:
        plan(K26, now)
    assert says in e.value.what and "another experiment name" in e.value.next


def test_a_host_with_docker_alone_is_refused_by_that_name():
    with pytest.raises(PlanError, match="docker and no Python") as e:
        plan(K26, replace(BIG, systemd=False, python=None, docker="usable"))
    assert "on the host itself" in e.value.next


def test_secrets_are_named_in_the_plan_and_their_values_nowhere(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    steps = plan(K26.with_(**{"engine.secrets": ("HF_TOKEN",)}), BIG)
    assert "HF_TOKEN in /r/secrets/k26-eagle3.env" in repr(steps)
    assert "EnvironmentFile=/r/secrets/k26-eagle3.env" in steps.diff
    assert "hf_very_secret" not in repr(steps) + steps.diff + repr(tuple(steps))


def test_what_earlier_starts_took_is_said_before_apply():
    assert "earlier starts took 11 min" in repr(plan(K26, replace(BIG, expected_s=640.0)))
