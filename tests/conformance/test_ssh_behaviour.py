"""One behaviour, two servers: the rehearsal host and, with --openssh, a real sshd run as the ordinary user.

Where they differ on purpose is said in `kit.rehearsal`; nothing below asks which one it talks to.
"""

import base64
import http.server
import os
import random
import signal
import socket
import struct
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import asyncssh
import paramiko
import pytest
from ssh_servers import SERVERS, write_config

from kit.command import Command, sh
from kit.errors import (
    Cancelled,
    CommandError,
    CommandTimeout,
    ConnectError,
    HostError,
    HostKeyError,
    LinkLost,
    NoSpace,
    NoSuchFile,
)
from kit.host import connect
from kit.hostkeys import fingerprint
from kit.sshfiles import quoted

NOISE = random.Random(7).randbytes(8 << 20)
HOSTILE = ["a b", "it's", '"', "$HOME", "`id`", "$(id)", "two\nlines", "*", "~", "é", "-n", "\\", "!x", "", ";", "%s"]


def pytest_generate_tests(metafunc):
    if "server" in metafunc.fixturenames:
        which = ["embedded"] + ["openssh"] * metafunc.config.getoption("--openssh")
        metafunc.parametrize("server", which, indirect=True, scope="module")


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    running = SERVERS[request.param](tmp_path_factory.mktemp(request.param))
    yield running
    running.stop()


@pytest.fixture
def host(server, tmp_path):
    host = connect("target", ssh_config=server.config)
    host.root = str(tmp_path)
    yield host
    host.close()


@pytest.fixture
def web():
    """A web server on this machine's loopback, which here is the host's too."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/hang-up":
                self.close_connection = True
            elif self.path == "/wait":
                time.sleep(0.5)
            else:
                self.answer(503 if self.path == "/busy" else 200, self.path.encode())

        def do_POST(self):
            self.answer(200, self.rfile.read(int(self.headers["Content-Length"])))

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        yield served.server_port
        served.shutdown()


def plain(*argv, stdin=b""):
    return Command(argv, stdin, limit_s=None)


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def eventually(true, seconds=8.0):
    end = time.monotonic() + seconds
    while not (answer := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return answer


def alive(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe") != ""
    except OSError:
        return False


# ---------------------------------------------------------------- commands

def test_every_exit_code_comes_back(host):
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda n: host.run(plain("sh", "-c", f"exit {n}")).exit, range(256)))
    assert codes == list(range(256))


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "HUP"])
def test_death_by_a_signal_is_128_and_its_number(host, name):
    assert host.run(plain("sh", "-c", f"kill -{name} $$")).exit == 128 + getattr(signal, f"SIG{name}")


def test_a_command_over_its_limit_is_ended_on_the_host(host):
    result = host.run(Command(("sh", "-c", "echo $$; exec sleep 60"), limit_s=0.2))
    assert result.exit == 124
    assert eventually(lambda: not alive(int(result.text)))
    with pytest.raises(CommandTimeout):
        result.check()


def test_stdout_and_stderr_are_two_things(host):
    result = host.run(sh("printf out; printf err >&2; exit 3"))
    assert (result.exit, result.stdout, result.stderr) == (3, b"out", b"err")


def test_bytes_are_exact_both_ways(host):
    for sent in (b"", bytes(range(256)), NOISE):
        result = host.run(plain("cat", stdin=sent))
        assert result.exit == 0 and result.stdout == sent
    both = host.run(plain("sh", "-c", "cat | tee /dev/stderr", stdin=NOISE[:1 << 20]))
    assert both.stdout == both.stderr == NOISE[:1 << 20]


def test_a_character_across_the_edge_of_a_chunk_survives(host):
    text = "é漢" * 40000
    assert host.run(plain("cat", stdin=b"x" + text.encode())).text == "x" + text


def test_stdin_that_nobody_reads_does_no_harm(host):
    assert host.run(plain("true", stdin=NOISE)).exit == 0
    assert host.run(plain("sh", "-c", "exec <&-; sleep 0.1; echo done", stdin=NOISE)).text == "done\n"


def test_words_arrive_as_they_were_given(host):
    result = host.run(plain("sh", "-c", 'for w; do printf "%s\\0" "$w"; done', "sh", *HOSTILE))
    assert result.stdout.decode().split("\0")[:-1] == HOSTILE
    assert host.run(sh('printf "%s" "$2"', "x", "$(touch /tmp/never)")).text == "$(touch /tmp/never)"


def test_what_a_background_process_still_says_is_not_lost(host):
    assert host.run(plain("sh", "-c", "(sleep 0.2; echo late) & echo soon")).text == "soon\nlate\n"


def test_the_environment_is_the_hosts_and_not_the_clients(host):
    channel = host._link().session()
    channel.set_environment_variable("SMUGGLED", "1")
    channel.exec_command("printenv SMUGGLED")
    assert channel.recv_exit_status() == 1
    said = dict(line.split("=", 1) for line in host.run(plain("env")).text.splitlines() if "=" in line)
    assert said["HOME"].startswith("/") and said["USER"] and "SSH_ORIGINAL_COMMAND" not in said
    assert host.run(plain("python3", "-c", "print(6 * 7)")).text == "42\n"


def test_commands_start_in_the_home_folder(host):
    assert host.run(sh('[ "$PWD" -ef "$HOME" ]')).exit == 0


def test_fourteen_commands_at_once_all_succeed(host):
    with ThreadPoolExecutor(14) as pool:
        results = list(pool.map(lambda n: host.run(sh('sleep 0.2; echo "$1"', str(n))), range(14)))
    assert [r.text for r in results] == [f"{n}\n" for n in range(14)]


def test_hundreds_of_short_commands_side_by_side_leave_the_connection_whole(host):
    """sshd ends a connection on which anything follows a channel's CLOSE; a command may end while we send to it."""
    link = host._link()
    with ThreadPoolExecutor(8) as pool:
        assert {r.exit for r in pool.map(lambda _: host.run(plain("true", stdin=b"x" * 3000)), range(300))} == {0}
        assert {r.exit for r in pool.map(lambda _: host.run(plain("true", stdin=NOISE[:3 << 20])), range(30))} == {0}
    assert host._link() is link


def test_the_eleventh_session_of_one_connection_is_refused(host):
    transport = host._link().transport
    held = [transport.open_session() for _ in range(10 - len(host._files))]
    with pytest.raises(paramiko.ChannelException) as refused:
        transport.open_session()
    assert refused.value.code == 2
    for channel in held:
        channel.close()
    assert host.run(plain("true")).exit == 0


# ----------------------------------------------------------------- streams

def test_a_stream_gives_lines_as_they_are_written(host):
    with host.stream(plain("sh", "-c", "echo one; read line; echo two")) as chunks:
        assert first(chunks) == b"one\n"


def test_a_silent_stream_gives_its_reader_a_chance_to_leave(host):
    with host.stream(plain("sh", "-c", "echo one; cat; echo not reached")) as chunks:
        assert first(chunks) == b"one\n"
        assert [next(chunks), next(chunks)] == [b"", b""]


def first(stream):
    """The next bytes that were said: moments of silence passed over."""
    return next(chunk for chunk in stream if chunk)


def test_a_stream_ends_with_its_command_and_says_when_that_failed(host):
    with host.stream(plain("sh", "-c", "printf a; sleep 0.1; printf b")) as chunks:
        assert b"".join(chunks) == b"ab"
    with pytest.raises(CommandError, match="exit 5: no such unit"):
        with host.stream(plain("sh", "-c", "echo no such unit >&2; exit 5")) as chunks:
            list(chunks)


def test_streams_do_not_starve_commands(host):
    contexts = [host.stream(plain("sh", "-c", "echo up; cat")) for _ in range(19)]
    streams = [c.__enter__() for c in contexts]
    assert [first(s) for s in streams] == [b"up\n"] * 19
    assert host.run(plain("echo", "still here")).text == "still here\n"
    for context in contexts:
        context.__exit__(None, None, None)
    assert len(host._long) == 1


WRITER = 'echo $$; while :; do echo tick; sleep 0.02; done'
READER = 'echo $$; exec cat'
IDLER = 'echo $$; exec sleep 60 <&-'


@pytest.mark.parametrize("cut", ["the channel is closed", "the client drops"])
def test_what_dies_when_its_channel_is_gone(server, tmp_path, cut):
    """As sshd without a PTY: nothing is killed; writers meet SIGPIPE, readers end-of-file, the idle live on."""
    host = connect("target", ssh_config=server.config)
    contexts = [host.stream(plain("sh", "-c", script)) for script in (WRITER, READER, IDLER)]
    streams = [c.__enter__() for c in contexts]
    writer, reader, idler = (int(first(s).split()[0]) for s in streams)
    try:
        assert all(map(alive, (writer, reader, idler)))
        if cut == "the client drops":
            host._long[0][0].transport.sock.shutdown(socket.SHUT_RDWR)
        for context in contexts:
            context.__exit__(None, None, None)
        assert eventually(lambda: not alive(writer) and not alive(reader))
        assert alive(idler)
    finally:
        os.kill(idler, signal.SIGKILL)
        host.close()


# ----------------------------------------------------------- broken links

def test_a_server_that_dies_breaks_a_stream_and_the_next_command_connects_again(server, host):
    with pytest.raises(LinkLost):
        with host.stream(plain("sh", "-c", "while :; do echo tick; sleep 0.02; done")) as chunks:
            next(chunks)
            server.drop()
            for _ in chunks:
                pass
    assert host.run(plain("echo", "back")).text == "back\n"


def test_a_command_whose_link_broke_has_no_exit_code(server, host, tmp_path):
    started = tmp_path / "started"
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(host.run, sh('echo $$ > "$1.part"; mv "$1.part" "$1"; exec sleep 60', str(started)))
        assert eventually(started.exists)
        server.drop()
        result = pending.result()
    os.kill(int(started.read_text()), signal.SIGKILL)
    assert result.exit is None
    with pytest.raises(LinkLost, match="outcome is unknown"):
        result.check()


# ------------------------------------------------------------------- files

ODD = "a b'c\"%d;é\\ $(x)*"


def test_files_with_odd_names_are_written_whole_and_read_in_part(host, tmp_path):
    path = f"{tmp_path}/new/folders/{ODD}"
    host.write(path, b"old")
    host.write(path, NOISE, mode=0o600)
    assert host.read(path) == NOISE and host.read(path, 1000, 3) == NOISE[1000:1003]
    assert host.read(path, len(NOISE) - 2) == NOISE[-2:] and host.read(path, len(NOISE) + 5) == b""
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(f"{tmp_path}/new/folders") == [ODD]
    assert host.run(plain("cat", path)).stdout == NOISE


def test_a_file_without_a_size_is_read_to_its_end(host):
    assert host.read("/proc/self/stat").endswith(b"\n")


def test_an_interrupted_transfer_goes_on_from_where_it_stopped(host, tmp_path):
    (tmp_path / "here").write_bytes(NOISE)
    there, back = f"{tmp_path}/{ODD}", f"{tmp_path}/back"

    def stop_half_way(done, total, note):
        if done >= total // 2:
            raise Cancelled("enough")

    for move, result in ((lambda p: host.put(f"{tmp_path}/here", there, p), there),
                         (lambda p: host.get(there, back, p), back)):
        with pytest.raises(Cancelled):
            move(stop_half_way)
        half = eventually(lambda r=result: os.path.exists(r) and os.path.getsize(r))
        assert 0 < half < len(NOISE)
        seen = []
        move(lambda done, total, note, seen=seen: seen.append((done, total)))
        assert seen[0] == (half, len(NOISE)) and seen[-1] == (len(NOISE), len(NOISE))
        with open(result, "rb") as f:
            assert f.read() == NOISE
        seen.clear()
        move(lambda done, total, note, seen=seen: seen.append((done, total)))
        assert seen == [(len(NOISE), len(NOISE))]


def test_file_errors_name_the_path_and_the_reason(host, tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 10)
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(NoSuchFile, match="nowhere"):
        host.read(f"{tmp_path}/nowhere")
    with pytest.raises(HostError, match="10 bytes"):
        host.put(f"{tmp_path}/short", f"{tmp_path}/long")
    with pytest.raises(HostError):
        host.read(str(tmp_path))
    with pytest.raises(HostError):
        host.write(f"{tmp_path}/short/below-a-file", b"")


def test_a_file_that_cannot_fit_is_not_begun(host, tmp_path):
    with open(tmp_path / "huge", "wb") as f:
        f.truncate(1 << 42)
    with pytest.raises(NoSpace, match="bytes are free"):
        host.put(f"{tmp_path}/huge", f"{tmp_path}/there")
    assert not (tmp_path / "there").exists()


def test_files_from_many_threads_do_not_meet(host, tmp_path):
    def there_and_back(n):
        host.write(f"{tmp_path}/{n}", b"%d" % n * 1000)
        return host.read(f"{tmp_path}/{n}")
    with ThreadPoolExecutor(14) as pool:
        assert list(pool.map(there_and_back, range(28))) == [b"%d" % n * 1000 for n in range(28)]


# ------------------------------------------------------------------- ports

def test_http_reaches_a_service_and_says_zero_where_there_is_none(host, web):
    assert (host.http(web, "/health").status, host.http(web, "/health").body) == (200, b"/health")
    assert host.http(web, "/busy").status == 503
    assert host.http(web, "/", NOISE[:300000]).body == NOISE[:300000]
    assert host.http(web, "/hang-up").status == 0
    assert host.http(closed_port(), "/").status == 0
    with pytest.raises(CommandTimeout):
        host.http(web, "/wait", timeout_s=0.1)


def test_a_forwarded_port_survives_a_refused_connection(host, web):
    nobody = host.forward(closed_port())
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            with socket.create_connection(("127.0.0.1", nobody)) as s:
                s.settimeout(5)
                s.recv(1)
    port = host.forward(web)
    assert host.forward(web) == port
    for _ in range(2):
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/x", timeout=5).read() == b"/x"
    host.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_forwarded_port_carries_much_and_half_closes(host):
    def echo(listener):
        with listener, listener.accept()[0] as s:
            data = b""
            while chunk := s.recv(1 << 16):
                data += chunk
            s.sendall(data)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, args=(listener,), daemon=True).start()
    with socket.create_connection(("127.0.0.1", host.forward(listener.getsockname()[1]))) as s:
        s.settimeout(20)
        s.sendall(NOISE)
        s.shutdown(socket.SHUT_WR)
        back = bytearray()
        while chunk := s.recv(1 << 16):
            back += chunk
    assert bytes(back) == NOISE


# ---------------------------------------------------- opening a connection

def host_key(server):
    kind, text = server.known_hosts.read_text().split()[1:3]
    return kind, text, fingerprint(base64.b64decode(text))


def config_of(server, tmp_path, known="", more=""):
    (tmp_path / "known_hosts").write_text(known)
    return write_config(tmp_path / "config", server.port, server.user, server.key, tmp_path / "known_hosts", more)


def test_five_threads_open_one_connection(server, tmp_path):
    config = config_of(server, tmp_path, server.known_hosts.read_text())
    with ThreadPoolExecutor(5) as pool:
        hosts = list(pool.map(lambda _: connect("target", ssh_config=config), range(5)))
        assert len({id(h) for h in hosts}) == 1
        assert {h.run(plain("true")).exit for h in hosts} == {0}
    hosts[0].close()
    with pytest.raises(HostError, match="closed"):
        hosts[0].run(plain("true"))
    assert connect("target", ssh_config=config).run(plain("true")).exit == 0
    hosts[0].close()


def test_an_unknown_key_is_shown_and_one_accept_makes_it_known(server, tmp_path):
    config, (kind, text, shown) = config_of(server, tmp_path), host_key(server)
    with pytest.raises(HostKeyError) as error:
        connect("target", ssh_config=config)
    assert kind in str(error.value) and f'kit.connect("target", accept="{shown}")' in error.value.next
    with pytest.raises(HostKeyError, match="not the accepted SHA256:wrong"):
        connect("target", accept="SHA256:wrong", ssh_config=config)
    assert (tmp_path / "known_hosts").read_text() == ""
    connect("target", accept=shown, ssh_config=config).close()
    assert (tmp_path / "known_hosts").read_text() == f"[127.0.0.1]:{server.port} {kind} {text}\n"
    host = connect("target", ssh_config=config)
    assert host.run(plain("true")).exit == 0
    host.close()


def test_a_changed_key_is_refused_whatever_is_accepted(server, tmp_path):
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    known = f"# old\n[127.0.0.1]:{server.port} {other}"
    config, (_, _, shown) = config_of(server, tmp_path, known), host_key(server)
    for accept in (None, shown):
        with pytest.raises(HostKeyError, match="changed") as error:
            connect("target", accept=accept, ssh_config=config)
        assert error.value.where == f"{tmp_path}/known_hosts:2"
    assert (tmp_path / "known_hosts").read_text() == known


def test_a_key_of_another_name_or_a_revoked_one_does_not_count(server, tmp_path):
    kind, text, _ = host_key(server)
    for line, verdict in ((f"127.0.0.1 {kind} {text}", "not known"),
                          (f"@revoked [127.0.0.1]:{server.port} {kind} {text}", "revoked")):
        with pytest.raises(HostKeyError, match=verdict):
            connect("target", ssh_config=config_of(server, tmp_path, line + "\n"))


def test_a_gateways_key_is_as_strict_as_the_hosts(server, tmp_path):
    known = server.known_hosts.read_text()
    (tmp_path / "gateway_known").write_text("")
    gateway = f"""
Host first second
  HostName 127.0.0.1
  Port {server.port}
  User {server.user}
  IdentityFile {server.key}
  UserKnownHostsFile {tmp_path}/gateway_known
Host target
  ProxyJump first,second
"""
    config = config_of(server, tmp_path, known, gateway.replace(str(server.key), f'"{server.key}"'))
    with pytest.raises(HostKeyError) as error:
        connect("target", ssh_config=config)
    assert error.value.where == f"{tmp_path}/gateway_known"
    (tmp_path / "gateway_known").write_text(known)
    host = connect("target", ssh_config=config)
    assert host.run(plain("cat", stdin=NOISE)).stdout == NOISE
    assert [c.original_host for c in host._link()._chain] == ["first", "second", "target"]
    host.close()


def test_nobody_listening_is_said_as_such(server, tmp_path):
    config = write_config(tmp_path / "config", closed_port(), server.user, server.key, server.known_hosts)
    with pytest.raises(ConnectError, match="nobody listens"):
        connect("target", ssh_config=config)


def test_a_key_that_the_host_does_not_know_is_not_let_in(server, tmp_path):
    stranger = tmp_path / "stranger"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(stranger)
    config = write_config(tmp_path / "config", server.port, server.user, stranger, server.known_hosts)
    with pytest.raises(ConnectError, match="none of our keys"):
        connect("target", ssh_config=config)


def test_small_packets_leave_at_once(host):
    sock = host._link()._chain[-1].transport.sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture
def agent(server, monkeypatch, tmp_path):
    """An SSH agent that holds the client's key; → what it signed. (draft-miller-ssh-agent: 11→12 keys, 13→14 sign)"""
    key, signed = paramiko.Ed25519Key.from_private_key_file(server.key), []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path := os.path.join(tempfile.mkdtemp(dir=tmp_path), "a"))
    listener.listen()

    def text(data):
        return struct.pack(">I", len(data)) + data

    def serve(client):
        with client, client.makefile("rb") as asked:
            while size := asked.read(4):
                message = asked.read(struct.unpack(">I", size)[0])
                if message[0] == 11:
                    answer = b"\x0c" + struct.pack(">I", 1) + text(key.asbytes()) + text(b"mine")
                else:
                    blob = struct.unpack(">I", message[1:5])[0]
                    data = message[5 + blob:]
                    signed.append(message[5:5 + blob])
                    what = data[4:4 + struct.unpack(">I", data[:4])[0]]
                    answer = b"\x0e" + text(key.sign_ssh_data(what).asbytes())
                client.sendall(text(answer))

    def accept():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    yield signed
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize("only", ["", "IdentitiesOnly yes"])
def test_a_key_that_only_the_agent_holds_opens_the_connection(server, agent, tmp_path, only):
    public = tmp_path / "client.pub"        # with IdentitiesOnly, the public half says which of the agent's keys
    public.write_text(f"ssh-ed25519 {paramiko.Ed25519Key.from_private_key_file(server.key).get_base64()}\n")
    named = f"IdentityFile {quoted(public)}" if only else ""
    config = tmp_path / "config"
    config.write_text(f"""Host target
  HostName 127.0.0.1
  Port {server.port}
  User {server.user}
  {named}
  {only}
  UserKnownHostsFile {quoted(server.known_hosts)}
""")
    host = connect("target", ssh_config=config)
    assert host.run(plain("true")).exit == 0 and agent
    host.close()


def test_the_users_own_ssh_config_is_read_where_none_is_named(server, tmp_path, monkeypatch):
    (tmp_path / ".ssh").mkdir()
    write_config(tmp_path / ".ssh/config", server.port, server.user, server.key, server.known_hosts)
    monkeypatch.setenv("HOME", str(tmp_path))
    host = connect("target")
    assert host.run(plain("true")).exit == 0
    host.close()
