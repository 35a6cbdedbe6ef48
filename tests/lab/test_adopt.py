"""Services that are not ours under a real systemd: read as systemd starts them, followed, measured, left alone."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
import standin
import yaml
from machines import changes, eventually

import kit
from kit import project
from kit.adopting import unchanged
from kit.attach.unitfile import parse
from kit.command import sh
from kit.errors import PlanError, SpecError
from kit.following import lines, recent, state
from kit.supervisors import supervisor

UNITS = yaml.safe_load((Path(__file__).parent.parent / "fixtures" / "adopt" / "units.yaml").read_text())
TELL = """#!/usr/bin/python3
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
"""
MODEL = {"config.json": json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
                                    "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 4096})}
PORT = 8231
SERVICE = f"""[Unit]
Description=somebody's server
[Service]
User=guest
Environment=STANDIN_SPEED=0 NCCL_ALGO=Ring "NOTE=two words"
Environment=HF_TOKEN=hf_abcdefghijklmnop
ExecStart=/opt/theirs/bin/python -m sglang.launch_server --model-path /opt/theirs/model --port {PORT} \\
    --context-length 2048 --max-running-requests 8 --enable-metrics --served-model-name theirs
"""


def put(shell, path, content, mode="0644"):
    shell("alpha", 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"', path, mode, stdin=content)


def installed(shell, name, texts):
    """A unit and its drop-ins, known to systemd."""
    for n, text in enumerate(texts):
        put(shell, f"/etc/systemd/system/{name}" + (f".d/{n}.conf" if n else ""), text)
    shell("alpha", "systemctl daemon-reload")


def gone(shell, name):
    shell("alpha", 'systemctl stop "$1"; rm -rf "/etc/systemd/system/$1" "/etc/systemd/system/$1.d"; '
          'systemctl daemon-reload; systemctl reset-failed "$1" 2>/dev/null || true', name)


@pytest.mark.parametrize("case", UNITS, ids=lambda c: c["what"])
def test_systemd_starts_what_was_read_of_the_unit(case, shell):
    name = case.get("name", "lab-adopt.service")
    texts = [case["text"]] if isinstance(case["text"], str) else case["text"]
    put(shell, "/usr/local/bin/tell", TELL, "0755")
    played = [text.replace("/usr/bin/env", "/usr/local/bin/tell") for text in texts]
    file = name.partition("@")[0] + "@.service" if "@" in name else name
    installed(shell, file, played)
    try:
        since = shell("alpha", "date +%s.%N").strip()
        shell("alpha", 'systemctl start "$1"', name)
        asked = 'journalctl -u "$1" -o cat --since "@$2" | grep "^{" || true'
        told = json.loads(eventually(lambda: shell("alpha", asked, name, since)))
        assert ["/usr/bin/env", *told["argv"]] == case["argv"]
        assert {k: told["env"].get(k) for k in case.get("env", {})} == case.get("env", {})
        assert not told["env"].keys() & {*case.get("unset", ())}
        unit = parse(played, case.get("name", "x.service"))
        assert list(unit.commands[0][1:]) == told["argv"]
    finally:
        gone(shell, file)
        shell("alpha", "rm -f /usr/local/bin/tell")


@pytest.fixture
def theirs(shell):
    """Somebody's service, up and answering; its unit's name."""
    for path, content in standin.files().items():
        put(shell, f"/opt/theirs/{path}", content.decode(), "0755" if path in standin.EXECUTABLE else "0644")
    for path, content in MODEL.items():
        put(shell, f"/opt/theirs/model/{path}", content)
    installed(shell, "theirs.service", [SERVICE])
    shell("alpha", "systemctl start theirs")
    up = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/health').status)"
    assert eventually(lambda: shell("alpha", 'python3 -c "$1" 2>/dev/null || true', up).strip() == "200"), \
        shell("alpha", "journalctl -u theirs -o cat | tail -n 20")
    yield "theirs.service"
    gone(shell, "theirs.service")
    shell("alpha", "rm -rf /opt/theirs /home/*/.specbook /root/.specbook")


def main_pid(shell, unit):
    return int(shell("alpha", 'systemctl show --property MainPID --value "$1"', unit))


def test_a_unit_its_process_and_its_port_are_the_same_service(theirs, connect_as, shell):
    root = connect_as("root")
    pid = main_pid(shell, theirs)
    by_unit, by_pid, by_url = kit.adopt(root, theirs), kit.adopt(root, pid=pid), \
        kit.adopt(root, url=f"http://127.0.0.1:{PORT}")
    assert by_unit.experiment == by_pid.experiment == by_url.experiment
    exp = by_unit.experiment
    assert (by_unit.pid, exp.name, exp.host.supervisor, exp.host.run_as) == (pid, "theirs", f"foreign:system/{theirs}",
                                                                             "guest")
    assert (exp.engine.version, exp.serve.context, exp.engine.env["NOTE"]) == ("0.5.12.post1", 2048, "two words")
    assert by_unit.masked == ("HF_TOKEN",) and "hf_abcdefghijklmnop" not in repr(by_unit) + by_unit.command


def test_who_may_not_look_into_the_process_is_told_so(theirs, alpha):
    it = kit.adopt(alpha, theirs)
    assert "adopt-environment" in {f.id for f in it.report} and it.experiment.engine.env["NCCL_ALGO"] == "Ring"
    assert kit.adopt(alpha, url=f"http://127.0.0.1:{PORT}").experiment.host.supervisor == f"foreign:port/{PORT}"


def test_a_unit_file_that_may_not_be_read_is_named_and_its_process_is_adopted_all_the_same(theirs, alpha, shell):
    shell("alpha", "chmod 600 /etc/systemd/system/theirs.service")
    with pytest.raises(PlanError, match="theirs.service cannot be read: Permission denied"):
        kit.adopt(alpha, theirs)
    pid = main_pid(shell, theirs)
    it = kit.adopt(alpha, pid=pid)
    assert it.experiment.host.supervisor.startswith(f"foreign:pid/{pid}-") and it.experiment.serve.port == PORT
    assert unchanged(it.experiment, alpha) == ""


def test_a_server_that_a_script_starts_is_found_below_its_unit(theirs, alpha, shell):
    put(shell, "/opt/theirs/start.sh", "#!/bin/sh\n" + SERVICE.split("ExecStart=")[1] + "exit $?\n", "0755")
    installed(shell, theirs, [SERVICE.split("ExecStart=")[0] + "ExecStart=/opt/theirs/start.sh\n"])
    shell("alpha", "systemctl restart theirs")
    it = eventually(lambda: (a := adopted_or_none(alpha, theirs)) and a.experiment.engine.version and a)
    assert it.pid != main_pid(shell, theirs) and (it.unit_name, it.experiment.serve.slots) == (theirs, 8)
    assert "adopt-wrapper" in {f.id for f in it.report} and unchanged(it.experiment, alpha) == ""
    assert kit.adopt(alpha, pid=it.pid).experiment == it.experiment


def adopted_or_none(host, unit):
    """None while the script has not come to the server yet."""
    with suppress(SpecError):
        return kit.adopt(host, unit)


def test_looking_and_following_leaves_the_host_as_it_was(theirs, alpha, snapshot):
    before = snapshot("alpha")
    exp = kit.adopt(alpha, theirs).experiment
    sup = supervisor(exp.host.supervisor)
    said = recent(alpha, sup, "python3", exp.unit)
    assert any("fired up" in line.text for line in said) and state(alpha, sup, "python3", exp.unit).running
    rest = recent(alpha, sup, "python3", exp.unit, said[4].cursor)
    assert [line.text for line in rest[:len(said) - 5]] == [line.text for line in said[5:]]
    assert [c for c in changes(before, snapshot("alpha")) if "session-" not in c] == []     # our own logins


def test_a_unit_of_the_users_own_systemd_is_adopted_and_followed_without_root(theirs, alpha, shell):
    text = SERVICE.replace("User=guest\n", "").replace(str(PORT), str(PORT + 1)).replace("two words", "%h")
    shell("alpha", 'install -d -o deploy /home/deploy/.config/systemd/user && cat >"$1"',
          "/home/deploy/.config/systemd/user/mine.service", stdin=text)
    try:
        alpha.run(sh("systemctl --user daemon-reload && systemctl --user start mine")).check()
        it = eventually(lambda: (a := kit.adopt(alpha, "mine", scope="user")).experiment.serve.slots == 8 and a)
        exp = it.experiment
        assert (exp.host.supervisor, exp.host.run_as, exp.engine.env["NOTE"]) == ("foreign:user/mine.service", "",
                                                                                   "/home/deploy")
        sup = supervisor(exp.host.supervisor)
        assert eventually(lambda: "fired up" in str(recent(alpha, sup, "python3", exp.unit)))
        assert not sup.follow("x", "/r", "python3").as_root
    finally:
        alpha.run(sh("systemctl --user stop mine; rm -r ~/.config/systemd; systemctl --user daemon-reload"))


def test_a_log_that_is_followed_ends_with_the_service_and_survives_lost_connections(theirs, alpha, shell,
                                                                                    kill_sshd_sessions):
    exp = kit.adopt(alpha, theirs).experiment
    sup = supervisor(exp.host.supervisor)
    run = shell("alpha", "systemctl show --property InvocationID --value theirs").strip()
    seen = []
    for n, line in enumerate(lines(alpha, sup, "python3", exp.unit)):
        seen.append(line.text)
        if n == 5:
            kill_sshd_sessions("alpha")
        if "fired up" in line.text:
            shell("alpha", "systemctl stop --no-block theirs")
    written = shell("alpha", 'journalctl -o cat --all "_SYSTEMD_INVOCATION_ID=$1"', run).splitlines()
    assert [t for t in seen if not re.match("(Started|Stopping|Stopped) |theirs.service: ", t)] == written
    assert not state(alpha, sup, "python3", exp.unit).running


def test_it_is_measured_never_stopped_and_a_change_of_it_is_noticed(theirs, alpha, shell, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name in ("configs", "data/prompts"):
        (tmp_path / name).symlink_to(project.root() / name)
    monkeypatch.chdir(tmp_path)
    exp = kit.adopt(alpha, theirs).experiment.with_(**{
        "bench.prompts": 2, "bench.output_tokens": 8, "bench.prompt_sets": ("chat",), "bench.warmup": 0,
        "bench.concurrency": (1,)})
    pid = main_pid(shell, theirs)
    assert kit.bench(exp, alpha).result(60).complete
    with pytest.raises(PlanError, match="not ours"):
        supervisor(exp.host.supervisor).stop(exp.unit, alpha.root, "python3", 5)
    assert main_pid(shell, theirs) == pid
    installed(shell, theirs, [SERVICE.replace("2048", "1024")])
    assert unchanged(exp, alpha) == "", "the process still runs as it was adopted"
    assert "adopt-changed" in {f.id for f in kit.adopt(alpha, theirs).report}
    shell("alpha", "systemctl restart theirs")
    assert "serve.context: 2048 → 1024" in unchanged(exp, alpha)
