"""Steps that change a host beside its services: secrets, the note on who uses the GPUs, waiting for their memory."""

import json
import sys
from pathlib import Path

import pytest
from doubles import LocalHost

from kit import gpus, project, shipping
from kit.applying import Applier
from kit.command import Command, Result
from kit.errors import NoSpace, PlanError, ServiceDied, SpecError
from kit.facts import LEASES
from kit.job import Job
from kit.seams import Unit
from kit.spec import Experiment
from kit.steps import Claim, Forget, Plan, Secrets, Start

EXP = Experiment.load(project.root() / "configs" / "micro.yaml").with_(**{"host.python": sys.executable})


@pytest.fixture
def host(tmp_path):
    host = LocalHost(tmp_path / "root", env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    host.write(shipping.path("babysit.py", host.root), shipping.content("babysit.py"))
    return host


def apply(host, *steps):
    return Job.start("apply", lambda job: Applier(Plan(steps, EXP, "fetched"), host, job).run()).result()


def test_a_secret_is_written_for_its_user_alone_and_forgotten_with_its_unit(host, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", 'hf_"x" $y')
    path = Path(host.root, "secrets", "a.env")
    apply(host, Secrets(str(path), ("HF_TOKEN",), "needed"))
    assert path.read_text() == 'HF_TOKEN="hf_\\"x\\" $y"\n' and path.stat().st_mode & 0o777 == 0o600
    apply(host, Forget("a", "it belongs to micro"))
    assert not path.exists()


@pytest.mark.parametrize("value, says", [(None, "is not set"), ("two\nlines", "line break")])
def test_a_secret_that_cannot_be_given_is_said_and_nothing_is_written(host, monkeypatch, value, says):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if value:
        monkeypatch.setenv("HF_TOKEN", value)
    with pytest.raises(SpecError, match=says):
        apply(host, Secrets(f"{host.root}/secrets/a.env", ("HF_TOKEN",), "needed"))
    assert not Path(host.root, "secrets").exists()


def test_the_note_on_the_host_says_who_uses_the_gpus_until_it_is_taken_back(host, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "LEASES", str(tmp_path / "lock.d"))
    gpus.claim(host, Unit("k26-eagle3", ("/x",), port=30001, about={"experiment": "k26"}))
    note = json.loads((tmp_path / "lock.d" / f"{host.user}-k26-eagle3.json").read_text())
    assert (note["unit"], note["experiment"], note["root"], note["port"]) == ("k26-eagle3", "k26", host.root, 30001)
    assert note["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip() and note["since_s"] > 1.7e9
    assert (tmp_path / "lock.d").stat().st_mode & 0o7777 == 0o1777, "others may leave theirs, and not take ours"
    gpus.release(host, "k26-eagle3")
    assert not (tmp_path / "lock.d").exists() and LEASES.startswith("/tmp/")


def test_a_note_left_by_another_while_the_plan_was_made_ends_it_and_ours_is_taken_back(host, tmp_path, monkeypatch):
    place = tmp_path / "lock.d"
    monkeypatch.setattr(gpus, "LEASES", str(place))
    place.mkdir()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    hers = {"who": "ann@desk as ann", "unit": "qwen-eagle3", "experiment": "qwen", "root": "/home/ann/.specbook",
            "port": 1, "boot_id": boot, "since_s": 1}
    (place / "ann-qwen-eagle3.json").write_text(json.dumps(hers))
    unit = Unit("k26-eagle3", ("/x",), about={"experiment": "k26"})
    with pytest.raises(PlanError, match="ann@desk.*qwen-eagle3"):
        gpus.claim(host, unit)
    assert [f.name for f in place.iterdir()] == ["ann-qwen-eagle3.json"]
    gpus.claim(host, unit, seen=(str(place / "ann-qwen-eagle3.json"),))
    gpus.release(host, unit.name)
    (place / "ann-qwen-eagle3.json").write_text(json.dumps({**hers, "boot_id": "an earlier one"}))
    gpus.claim(host, unit)
    gpus.release(host, unit.name)


def test_a_start_that_fails_takes_its_note_back_so_that_nobody_waits_for_it(host, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "LEASES", str(tmp_path / "lock.d"))
    unit = Unit("micro-baseline", ("/not/there",), about={"experiment": "micro"})
    with pytest.raises(ServiceDied):
        apply(host, Claim(unit, "a note"), Start(unit, "needed"))
    assert not (tmp_path / "lock.d").exists()


def test_a_full_disk_is_named_whichever_command_met_it():
    full = Result(Command(("sh", "-s")), 4, b"", b"sed: couldn't flush stdout: No space left on device", "gpu-7")
    with pytest.raises(NoSpace) as e:
        full.check("noting who uses the GPUs")
    assert "noting who uses the GPUs" in e.value.what and e.value.where == "gpu-7" and "free some space" in e.value.next


def nvidia(tmp_path, used, apps=""):
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"""#!/bin/sh
case "$*" in *query-compute*) echo '{apps}' ;; *query-gpu*) {used} ;; esac""")
    tool.chmod(0o755)


def test_the_start_waits_until_the_driver_has_given_the_memory_back(host, tmp_path):
    nvidia(tmp_path, f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tmp_path}/n; "
                     "[ $n -lt 2 ] && echo '0, GPU-aa, 70000' || echo '0, GPU-aa, 3'")
    said = []
    gpus.wait_free(host, 20, said.append, lambda: None)
    assert said == ["waiting for GPU memory: GPU 0 70,000 MiB"] * 2


def test_memory_that_stays_in_use_by_nobody_that_can_be_seen_ends_the_wait_with_where_to_look(host, tmp_path):
    nvidia(tmp_path, "echo '0, GPU-aa, 70000'")
    with pytest.raises(PlanError, match="GPU 0 70,000 MiB") as e:
        gpus.wait_free(host, 0.1, lambda line: None, lambda: None)
    assert "nvidia-smi" in e.value.next


def test_a_process_that_is_not_ours_is_named_and_not_waited_for(host, tmp_path):
    nvidia(tmp_path, "echo '0, GPU-aa, 70000'", "GPU-aa, 1, 69000")
    said = []
    gpus.wait_free(host, 5, said.append, lambda: None)
    assert len(said) == 1 and "69,000 MiB held by pid 1" in said[0] and "not ours" in said[0]
