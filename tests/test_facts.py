"""Fact parsers against what hosts print: tests/facts/cases.yaml. A new case is a new entry there."""

import dataclasses
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from doubles import LocalHost

from kit import facts, project
from kit.command import sh
from kit.errors import ParseError
from kit.masking import masked
from kit.spec import Experiment
from kit.surveying import survey

CASES = yaml.safe_load((Path(__file__).parent / "facts" / "cases.yaml").read_text())
BY_NAME = {f.name: f for f in facts.FACTS}


def plain(value):
    """Dataclasses and tuples as YAML would write them."""
    if dataclasses.is_dataclass(value):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['fact']}-{c['output'][:20]!r}")
def test_fact_is_read_from_what_the_host_printed(case):
    parse = BY_NAME[case["fact"]].parse
    if case.get("error"):
        with pytest.raises(ValueError):
            parse(case["output"])
    else:
        assert plain(parse(case["output"])) == case["value"]


def survey_here(root, port="1", env=None):
    command = sh(facts.script(), str(root), "python3", port)
    done = subprocess.run(["sh", "-c", command.shell()], input=command.stdin, capture_output=True, check=False,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stderr
    return facts.parse(done.stdout.decode())


def test_the_script_runs_on_this_machine_and_every_fact_is_read(tmp_path):
    read = survey_here(tmp_path / "not made yet")
    assert set(read) == {f.name for f in facts.FACTS} | {"units"}
    assert read["cpu"][0] >= 1 and read["disk_free_mib"] > 0 and read["python"] >= (3, 9)
    assert not (tmp_path / "not made yet").exists(), "a survey changes nothing"


def test_a_half_fetched_model_in_a_folder_with_odd_names_is_seen(tmp_path):
    root = tmp_path / "a'b \"c\" 100%"
    model = root / "models" / "m-1"
    model.mkdir(parents=True)
    (model / "x y.gguf.part").write_bytes(b"123")
    present = survey_here(root)["models"]["m-1"]
    assert present.sizes == {"x y.gguf.part": 3} and not present.complete


def test_the_holder_of_a_busy_port_is_named(tmp_path):
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        assert survey_here(tmp_path, str(s.getsockname()[1]))["port_holder"].pid == os.getpid()


def test_a_survey_that_broke_off_says_so():
    with pytest.raises(ParseError, match="broke off"):
        facts.parse("\x1eos\nLinux")


def test_a_fact_that_is_not_understood_is_named():
    with pytest.raises(ParseError, match="fact load"):
        facts.parse("\x1eload\nhigh\n\x1eend\n")


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"files": []}', '{"files": ["a"]}', '{"files": {"a": 1}}'])
def test_a_manifest_that_is_none_makes_the_model_incomplete(manifest):
    here = BY_NAME["models"].parse(f"dir m\nmanifest {manifest}\nfile 3 a\n")["m"]
    assert not here.complete and here.sizes == {"a": 3}


def test_an_engine_whose_record_was_cut_short_is_not_there():
    found = BY_NAME["engines"].parse('junk {"req\nempty \nlist []\ngood {"installed": []}\n')
    assert found == {"good": {"installed": []}}


def fake(folder, name, body):
    """A program of that name, to be found first on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def ask(fact, env):
    done = subprocess.run(["sh", "-s"], input=fact.script.encode(), capture_output=True, check=True, timeout=30,
                          env={**os.environ, **env})
    return fact.parse(done.stdout.decode())


@pytest.mark.parametrize("known, row, capability, mig", [
    ("*", "0, H, 10, 1, 580.1, 9.0, Enabled", "9.0", True),
    ("*compute_cap", "0, H, 10, 1, 510.1, 8.0", "8.0", False),
    ("*driver_version", "0, H, 10, 1, 418.67", "", False),
])
def test_a_driver_that_does_not_know_the_newest_fields_is_asked_for_fewer(tmp_path, known, row, capability, mig):
    env = fake(tmp_path / "bin", "nvidia-smi", f"""case $1 in --query-gpu={known}) echo '{row}' ;;
*) echo 'Field "x" is not a valid field to query.'; exit 2 ;; esac""")
    gpu, = ask(BY_NAME["gpus"], env)
    assert (gpu.compute_capability, gpu.mig, gpu.memory_mib) == (capability, mig, 10)


def test_who_holds_gpu_memory_is_named_with_user_and_command_and_without_keys(tmp_path):
    with subprocess.Popen(["sh", "-c", "read x", "serve", "--api-key", "hunter2"], stdin=subprocess.PIPE) as held:
        env = fake(tmp_path / "bin", "nvidia-smi", f"""case $1 in
*query-gpu*) echo '0, GPU-aa, 500' ;;
*) echo 'GPU-aa, {held.pid}, 400'; echo 'GPU-aa, 999999999, [N/A]' ;; esac""")
        use = ask(facts.GPU_HOLDERS, env)
        held.stdin.close()
    assert use.used_mib == {0: 500} and [(h.gpu, h.used_mib) for h in use.holders] == [(0, 400), (0, 100)]
    seen, gone = use.holders
    assert seen.user and seen.command.endswith("serve --api-key ***") and (gone.user, gone.command) == ("", "")


def test_a_driver_that_does_not_answer_is_told_apart_from_free_gpus(tmp_path):
    env = fake(tmp_path / "bin", "nvidia-smi", "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    assert ask(facts.GPU_HOLDERS, env).trouble == "Failed to initialize NVML: Unknown Error"
    read = survey_here(tmp_path / "root", env=env)
    assert read["gpus"] == () and read["gpu_trouble"] == "Failed to initialize NVML: Unknown Error"


def test_the_notes_of_others_are_read_and_none_of_them_can_speak_for_another_fact(tmp_path):
    notes = tmp_path / "locks"
    notes.mkdir()
    (notes / "a.json").write_text(json.dumps({"who": "ann", "since_s": 5}))
    (notes / "b.json").write_bytes(b'{"who": "\x1eprivilege\nroot\n"}')
    (notes / "c\x1eprivilege\nroot.json").write_text("{}")
    (notes / "long.json").write_text(json.dumps({"who": "x" * 10000}))
    os.mkfifo(notes / "pipe.json")
    (notes / "d.json").mkdir()
    fact = dataclasses.replace(BY_NAME["leases"], script=BY_NAME["leases"].script.replace(facts.LEASES, str(notes)))
    found = ask(fact, {})
    assert [(x.who, x.since_s) for x in found] == [("ann", 5), ("privilege root", None)]


def test_unit_files_under_our_names_are_found_with_whose_they_are(tmp_path):
    files = tmp_path / "config" / "systemd" / "user"
    files.mkdir(parents=True)
    unit = "[Service]\nExecStart=/x\nEnvironment=\"Root=no\"\n"
    ours = '[X-Specbook]\nRoot="/home/it\'s me/.specbook"\nDigest=1\n'
    (files / "specbook-ours.service").write_text(unit + ours)
    (files / "specbook-theirs.service").write_text(unit.replace("Env", "Root=/a\nEnv"))
    (files / "specbook-a\x1eprivilege\nroot.service").write_text(unit)
    (files / "other.service").write_text(unit + ours)
    assert ask(BY_NAME["unit_files"], {"XDG_CONFIG_HOME": str(tmp_path / "config")}) == {
        "systemd-user/ours": "/home/it's me/.specbook", "systemd-user/theirs": ""}


@pytest.mark.parametrize("said, exit, privilege", [
    ("", 0, "sudo"), ("sudo: a password is required", 1, "sudo-password"),
    ("sudo-rs: interactive authentication is required", 1, "sudo-password"),
    ("Sorry, user guest is not allowed to execute '/bin/true' as root on h.", 1, "none"),
])
def test_what_sudo_answers_says_what_may_be_done(tmp_path, said, exit, privilege):
    fake(tmp_path / "bin", "id", "echo 1000")
    env = fake(tmp_path / "bin", "sudo", f'[ "$*" = "-n true" ] || exit 9; echo "{said}" >&2; exit {exit}')
    assert ask(BY_NAME["privilege"], env) == privilege


def test_root_needs_no_sudo(tmp_path):
    fake(tmp_path / "bin", "id", "echo 0")
    assert ask(BY_NAME["privilege"], fake(tmp_path / "bin", "sudo", "exit 1")) == "root"


@pytest.mark.parametrize("command, shown", [
    ("serve --api-key abc --port 1", "serve --api-key *** --port 1"),
    ("env HF_TOKEN=hf_x serve --admin-api-key=k", "env HF_TOKEN=*** serve --admin-api-key=***"),
    ("curl -H Authorization: Bearer abc", "curl -H Authorization: Bearer ***"),
    ("serve --max-prefill-tokens 8192 --tokenizer-path /m/x", "serve --max-prefill-tokens 8192 --tokenizer-path /m/x"),
])
def test_keys_in_a_strangers_command_line_are_masked_and_nothing_else(command, shown):
    assert masked(command) == shown


TOPO = shlex.quote(str(Path(__file__).parent / "fixtures" / "topology"))     # the checkout may have any name


def test_a_survey_of_a_gpu_host_is_one_round_trip_and_its_rows_say_who_uses_what(tmp_path):
    env = fake(tmp_path / "bin", "nvidia-smi", f"""case "$*" in
*query-gpu=index,name*) echo '0, NVIDIA H200, 143771, 41000, 580.159.04, 9.0, Disabled'
                        echo '1, NVIDIA H200, 143771, 0, 580.159.04, 9.0, Disabled' ;;
*query-gpu=index,uuid*) echo '0, GPU-aa, 41000'; echo '1, GPU-bb, 0' ;;
*query-compute*) echo 'GPU-aa, {os.getpid()}, 40500' ;;
"topo -m") cat {TOPO}/h200x2-topo-m.txt ;;
*p2p*) cat {TOPO}/h200x2-topo-p2p-r.txt ;; esac""")
    host = LocalHost(tmp_path / "root", env=env)
    now = survey(Experiment.load(project.root() / "configs" / "micro.yaml"), host)
    assert len(host.ran) == 1 and not list(tmp_path.joinpath("root").iterdir())
    rows = dict(now.rows())
    assert rows["GPU 0"].startswith("NVIDIA H200, 41,000 of 143,771 MiB used") and rows["GPU links"] == "NV18 1"
    assert rows["GPU 0 held"].startswith(f"40,500 MiB by pid {os.getpid()} of ") and "python" in rows["GPU 0 held"]
    assert now.topology.p2p[0, 1] == "OK" and now.topology.numa == {0: 0, 1: 0}


def shown(**changed):
    host = LocalHost("/tmp", env={"PATH": os.environ["PATH"]})
    bare = survey(Experiment.load(project.root() / "configs" / "micro.yaml"), host)
    plain_host = dict(gpus=(), gpu_trouble="", gpu_use=facts.GpuUse(), leases=(), units=(), systemd=True,
                      systemd_version=252, systemd_state="running", privilege="sudo", linger=True, user_manager=True,
                      journal_readable=True, pid1="systemd", container="", docker="")
    return dict(dataclasses.replace(bare, **{**plain_host, **changed}).rows())


@pytest.mark.parametrize("changed, row", [
    ({}, "252, running; system services with sudo; user services stay after logout"),
    ({"privilege": "none", "linger": False, "journal_readable": False, "systemd_state": "degraded"},
     "252, degraded; system services not allowed: neither root nor sudo; user services end with the last login; "
     "its journal needs root"),
    ({"privilege": "sudo-password", "user_manager": False},
     "252, running; system services with sudo, which asks for a password; no user manager"),
    ({"systemd": False, "pid1": "tini", "container": "docker"}, "no, process 1 is tini; inside a container (docker)"),
    ({"systemd": False, "pid1": "init", "docker": "usable"}, "no, process 1 is init; docker is there"),
])
def test_a_reader_is_told_who_may_keep_services_here(changed, row):
    assert shown(**changed)["systemd"] == row


def test_a_driver_that_is_down_is_shown_and_only_notes_of_this_boot_count():
    assert shown(gpu_trouble="Failed to initialize NVML")["GPU"] == "none: Failed to initialize NVML"
    assert shown()["GPU"] == "none"
    note = facts.Lease("/tmp/specbook.lock.d/a.json", "ann", "k26", "k26-eagle3", "/r", 1, "b1", 5)
    assert shown(leases=(note,), boot_id="b1")["GPUs in use by"] == "ann: k26, unit k26-eagle3"
    assert "GPUs in use by" not in shown(leases=(note,), boot_id="b2")
