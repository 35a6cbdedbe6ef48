"""What is known before a launch: refused with its reason, or a plan; nothing is started either way."""

from dataclasses import replace
from pathlib import Path

import nbclient
import nbformat
import pytest
from standin import install

import kit
from kit import prelaunch, project
from kit.errors import CheckError
from kit.facts import Gpu
from kit.seams import UnitState

HERE = project.root()
RTX = tuple(Gpu(i, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 4, "580.95", "12.0") for i in range(8))


@pytest.fixture
def load():
    """On the rehearsal host, which keeps services without systemd wherever the tests run."""
    return lambda name: kit.Experiment.load(f"configs/{name}.yaml", "rehearsal").with_(
        **{"host.supervisor": "process"})


@pytest.fixture
def fitted(load, monkeypatch, rehearsal_host, tmp_path):
    """The same experiment where everything is on the host: eight GPUs, an engine, and the models' headers."""
    def now(exp, host, gpus=RTX):
        return replace(kit.survey(exp, host), gpus=gpus)

    monkeypatch.setattr(prelaunch, "survey", now)
    cards = HERE / "data" / "cards"
    return load("k26-eagle3").with_(**{
        "engine.python": install(tmp_path / "venv"), "target": {"source": f"host:{cards}/kimi-k2.6"},
        "drafter": {"source": f"host:{cards}/kimi-k2.6-eagle3"}})


def failed(report):
    return {f.id for f in report if f.verdict == "fail"}


def finding(report, id):
    return next(f for f in report if f.id == id)


def test_a_host_without_gpus_engine_and_model_is_refused_for_these_alone(load, rehearsal_host):
    flight = kit.preflight(load("k26-eagle3"), rehearsal_host)
    assert failed(flight.report) == {"host-gpus", "host-engine", "target-there"}
    assert not flight and "is not launched: 3 failed" in flight.verdict
    with pytest.raises(CheckError):
        flight.require()


def test_the_flags_the_pair_and_the_memory_are_judged_all_the_same(load, rehearsal_host):
    flight = kit.preflight(load("k26-eagle3"), rehearsal_host)
    assert flight.lint.ok and finding(flight.lint, "spec-terms").verdict == "pass"
    assert flight.fit.ok and finding(flight.fit, "target-class").verdict == "pass"
    assert (flight.memory.tp, round(flight.memory.gpu_gib), flight.memory.target_basis) == (8, 96, "estimate")
    assert "data/cards/kimi-k2.6-eagle3" in finding(flight.host, "drafter-there").why
    assert "check" in [verb for verb, _, _ in flight.plan.rows()]


def test_as_first_written_it_is_refused_with_the_missing_flag_named_first(load, rehearsal_host):
    flight = kit.preflight(load("k26-as-first-written"), rehearsal_host)
    assert failed(flight.lint) == {"spec-steps-missing"}
    assert "--speculative-num-steps is missing" in flight.verdict
    assert finding(flight.lint, "open-to-the-world").verdict == "warn"
    assert finding(flight.lint, "speculation-by-hand").verdict == "warn"


def test_with_everything_there_it_can_be_launched_and_has_not_been(fitted, rehearsal_host):
    flight = kit.preflight(fitted, rehearsal_host)
    assert flight.ok and flight.require() is flight and "can be launched" in flight.verdict
    assert finding(flight.host, "host-gpus").what.startswith("8 GPUs")
    assert [verb for verb, _, _ in flight.plan.rows()][-2:] == ["start", "healthy"]
    assert kit.survey(fitted, rehearsal_host).unit(fitted.unit) is None


def test_a_host_without_systemd_fails_for_that_and_the_unit_and_its_diff_are_shown_all_the_same(
        fitted, monkeypatch, rehearsal_host):
    now = prelaunch.survey
    monkeypatch.setattr(prelaunch, "survey", lambda exp, host: replace(now(exp, host), systemd=False))
    flight = kit.preflight(fitted.with_(**{"host.supervisor": "systemd"}), rehearsal_host)
    assert failed(flight.report) == {"host-supervisor"} and not flight
    assert "host.supervisor: process" in finding(flight.host, "host-supervisor").fix
    assert [verb for verb, _, _ in flight.plan.rows()][-2:] == ["start", "healthy"]
    shown = repr(flight.unit).splitlines()
    assert "KillMode=mixed" in shown and '    "--speculative-num-steps" "3" \\' in shown
    assert repr(flight.diff).splitlines()[3:] == [f"+{line}" for line in shown], "all of it, where there was none"


def test_the_diff_is_against_the_unit_that_is_there(fitted, monkeypatch, rehearsal_host):
    exp = fitted.with_(**{"host.supervisor": "systemd"})
    before = kit.preflight(exp, rehearsal_host).unit
    there = UnitState(exp.unit, "active", "running", about={"_text": str(before)})
    now = prelaunch.survey
    monkeypatch.setattr(prelaunch, "survey", lambda exp, host: replace(now(exp, host), systemd=True, units=(there,)))
    deeper = kit.preflight(exp.with_(**{"spec.steps": 5}), rehearsal_host).diff.splitlines()
    assert '-    "--speculative-num-steps" "3" \\' in deeper and '+    "--speculative-num-steps" "5" \\' in deeper
    assert len(deeper) < len(before.splitlines())


def test_memory_that_others_hold_is_named_and_taken_off(fitted, monkeypatch, rehearsal_host):
    free = kit.preflight(fitted, rehearsal_host).memory.free_gib
    busy = (*RTX[:3], replace(RTX[3], used_mib=20480), *RTX[4:])
    monkeypatch.setattr(prelaunch, "survey", lambda exp, host: replace(kit.survey(exp, host), gpus=busy))
    flight = kit.preflight(fitted, rehearsal_host)
    assert "GPU 3 (20,480 MiB)" in finding(flight.host, "host-gpus-busy").what
    assert flight.memory.free_gib == pytest.approx(free - (20480 - 4) / 1024)
    assert not flight, "70.95 GiB of weights do not fit beside them"


def test_what_is_there_and_no_model_fails_and_no_card_stands_in_for_it(fitted, tmp_path, rehearsal_host):
    (tmp_path / "config.json").write_text('{"architectures": ["Kimi')
    broken = fitted.with_(target={"source": f"host:{tmp_path}", "card": "data/cards/kimi-k2.6"})
    flight = kit.preflight(broken, rehearsal_host)
    assert failed(flight.host) == {"target-there"} and flight.memory is None
    assert finding(flight.fit, "target-readable").verdict == "unknown"


def test_a_config_for_the_cpu_asks_for_no_gpu(load, rehearsal_host):
    flight = kit.preflight(load("micro").arm("eagle3"), rehearsal_host)
    assert flight.ok and flight.memory is None and flight.fit.ok


def test_the_notebook_shows_every_check_and_starts_nothing(rehearsal_host):
    book = nbformat.read(HERE / "notebooks" / "k26-runbook.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3",
                            resources={"metadata": {"path": str(HERE / "notebooks")}}).execute()
    shown = [output.get("data", {}).get("text/plain", "") for cell in book.cells if cell.cell_type == "code"
             for output in cell.outputs]
    text = "\n".join(shown)
    for part in ("trust-remote-code", "spec-terms", "hidden-size", "KV tokens", "8 × 95.59 GiB", "memory-weights",
                 "--speculative-num-steps 3", "--tp-size 8", "host-gpus", "healthy  k26-eagle3",
                 "k26-eagle3 is not launched: ", "spec-steps-missing"):
        assert part in text, part
    unit, diff = (next(t for t in shown if t.startswith(head)) for head in ("# Written by Specbook", "--- on the host"))
    assert '    "--speculative-num-steps" "3" \\' in unit.splitlines() and "NCCL_P2P_LEVEL=5" in unit
    assert diff.splitlines()[3:] == [f"+{line}" for line in unit.splitlines()]
    exp = kit.Experiment.load("configs/k26-eagle3.yaml", "rehearsal")
    now = kit.survey(exp, rehearsal_host)
    assert not [u for u in now.units if u.about.get("experiment") == exp.name] and now.port_holder is None


def test_cards_are_small_and_hold_no_weights():
    files = [p for p in Path(HERE / "data" / "cards").rglob("*") if p.is_file()]
    assert files and sum(p.stat().st_size for p in files) < 20_000
    assert {p.suffix for p in files} == {".json", ".md"}
