"""The rehearsal host's own life: started once, found again, ended whole. How it answers is in conformance/."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest

from kit import rehearsal
from kit.alive import identity
from kit.command import Command, sh
from kit.errors import HostError
from kit.host import connect

ROOT = Path(__file__).parent.parent
AWKWARD = "it's a \"100 %d\" ~folder\\"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / AWKWARD
    yield place
    rehearsal.stop(place)


def eventually(true, seconds=8.0):
    end = time.monotonic() + seconds
    while not (answer := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return answer


def test_starting_twice_finds_the_same_server_and_stopping_twice_is_no_error(folder):
    assert not rehearsal.status(folder).running and not folder.exists()
    first = rehearsal.start(folder)
    assert rehearsal.start(folder) == first == rehearsal.status(folder)
    assert not rehearsal.stop(folder).running and not rehearsal.stop(folder).running
    assert identity(first.pid) == ""


def test_two_starters_at_once_get_one_server(folder):
    start = [sys.executable, "-c", "import sys; from kit import rehearsal; print(rehearsal.start(sys.argv[1]).pid)",
             str(folder)]
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda _: subprocess.check_output(start, cwd=ROOT), range(3)))
    assert len(set(said)) == 1 and rehearsal.status(folder).pid == int(said[0])


def test_it_outlives_who_started_it_and_keeps_its_port_and_keys(folder):
    subprocess.run([sys.executable, "-m", "kit.rehearsal", "start", "--folder", str(folder)], cwd=ROOT, check=True)
    first, known = rehearsal.status(folder), (folder / "known_hosts").read_text()
    assert first.running and os.getsid(first.pid) == first.pid
    rehearsal.stop(folder)
    assert rehearsal.start(folder).port == first.port and (folder / "known_hosts").read_text() == known


def test_a_reused_pid_is_not_taken_for_the_server(folder):
    folder.mkdir()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        state = {"pid": bystander.pid, "identity": "another-boot/1/2", "port": 1}
        (folder / "state.json").write_text(json.dumps(state))
        assert not rehearsal.status(folder).running
        rehearsal.stop(folder)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "identity": "", "port": 2}'])
def test_a_damaged_state_file_means_stopped(folder, text):
    folder.mkdir()
    (folder / "state.json").write_text(text)
    assert not rehearsal.status(folder).running


def test_its_folder_and_keys_are_the_owners_alone(folder):
    rehearsal.start(folder)
    mode = {p: stat.S_IMODE((folder / p).stat().st_mode) for p in
            (".", "home", "keys", "keys/host_key", "keys/client_key", "state.json")}
    assert {mode["."], mode["home"], mode["keys"]} == {0o700}
    assert {mode["keys/host_key"], mode["keys/client_key"], mode["state.json"]} == {0o600}


def test_a_folder_that_cannot_be_made_is_said_in_three_lines(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError) as error:
        rehearsal.start(tmp_path / "file" / "below")
    assert len(str(error.value).splitlines()) == 3


def test_connect_starts_it_where_the_environment_says(folder, monkeypatch):
    monkeypatch.setenv("SPECBOOK_REHEARSAL", str(folder))
    host = connect("rehearsal")
    assert host.root == f"{folder}/home/.specbook"
    assert connect("rehearsal") is host
    assert host.run(sh("pwd")).text == f"{folder}/home\n"
    host.close()


def test_without_the_environment_it_lives_in_the_projects_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SPECBOOK_REHEARSAL", raising=False)
    (tmp_path / "configs").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    assert rehearsal.default_folder() == tmp_path / ".rehearsal"


def test_stop_ends_what_ran_in_its_channels_and_spares_services(folder):
    info = rehearsal.start(folder)
    host = connect("rehearsal", ssh_config=info.ssh_config)
    script = """
        sleep 61 >/dev/null 2>&1 & echo $!                  # a child of the channel
        setsid sleep 62 >/dev/null 2>&1 </dev/null & echo $!    # a service in its own session
    """
    with host.stream(Command(("sh", "-c", script + "exec sleep 63"), limit_s=None)) as chunks:
        text = b""
        while text.count(b"\n") < 2:
            text += next(chunks)
        child, service = map(int, text.split())
        assert eventually(lambda: os.getsid(service) == service)
        assert identity(child)
        rehearsal.stop(folder)
    try:
        assert identity(child) == "" and identity(info.pid) == ""
        assert identity(service)
    finally:
        os.kill(service, signal.SIGKILL)
        host.close()


def test_the_environment_is_small_and_python_comes_first(folder, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    host = connect("rehearsal", ssh_config=rehearsal.start(folder).ssh_config)
    said = dict(line.split("=", 1) for line in host.run(Command(("env",))).text.splitlines())
    assert said["HTTPS_PROXY"] == "http://proxy.invalid:3128" and "HF_TOKEN" not in said
    assert said["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert said["HOME"] == f"{folder}/home"
    host.close()


def test_it_forwards_to_loopback_only_and_lets_no_other_key_in(rehearsal_host):
    transport = rehearsal_host._link().transport
    with pytest.raises(paramiko.ChannelException) as refused:
        transport.open_channel("direct-tcpip", ("192.0.2.1", 80), ("127.0.0.1", 0))
    assert refused.value.code == 1
    address = transport.sock.getpeername()
    assert address[0] == "127.0.0.1"
    with paramiko.Transport(address) as stranger:
        stranger.start_client()
        with pytest.raises(paramiko.AuthenticationException):
            stranger.auth_publickey("rehearsal", paramiko.RSAKey.generate(2048))


def test_a_pty_is_refused_and_a_shell_reads_its_commands_from_stdin(rehearsal_host):
    channel = rehearsal_host._link().session()
    with pytest.raises(paramiko.SSHException):
        channel.get_pty()
    shell = rehearsal_host._link().session()
    shell.invoke_shell()
    shell.sendall(b"echo here\nexit 4\n")
    assert shell.recv_exit_status() == 4 and shell.recv(100) == b"here\n"
    channel.close()
    shell.close()


def test_the_command_line_says_what_it_did(folder, capsys):
    for word, said in (("start", "127.0.0.1:"), ("status", "pid"), ("stop", "stopped"), ("status", "stopped")):
        assert rehearsal.main([word, "--folder", str(folder)]) == 0
        assert said in capsys.readouterr().out
