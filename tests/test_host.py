"""Connecting as ssh does: the config, known_hosts, errors in our words. What needs a server is in conformance/."""

import base64
import hashlib
import hmac
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import paramiko
import pytest

from kit import host as hosts
from kit.channels import Wire
from kit.errors import CommandTimeout, ConnectError, HostError, HostKeyError, KitError, LinkLost, NoSpace, NoSuchFile
from kit.hostkeys import Known, Strict, fingerprint, key_name, remember
from kit.sshfiles import expand, quoted, read_config, words
from kit.sshhost import SshHost
from kit.tunnel import Tunnel

BLOB, OTHER = b"\0\0\0\x0bssh-ed25519AAAA", b"\0\0\0\x0bssh-ed25519BBBB"
TEXT, OTHER_TEXT = base64.b64encode(BLOB).decode(), base64.b64encode(OTHER).decode()


# ------------------------------------------------------------ the ssh config

@pytest.mark.parametrize("value, expected", [
    ("/a /b", ["/a", "/b"]),
    ('"/a b" "/c d"', ["/a b", "/c d"]),
    (r'"/a\"b" /c\ d', ['/a"b', "/c d"]),
    ("/a # why", ["/a"]),
    ("/a#b", ["/a#b"]),
    ('""', [""]),
    ("", []),
])
def test_values_are_split_as_openssh_splits_them(value, expected):
    assert words(value) == expected


@pytest.mark.parametrize("path", ["/plain", "/with space", "/q'u\"o%d~te", "/back\\slash", "/é#"])
def test_a_quoted_path_reads_back_as_itself(path):
    assert [expand(w, {"d": "/wrong"}) for w in words(quoted(path) + " #")] == [path]


def test_only_a_leading_tilde_and_known_tokens_are_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert expand("~/a~b/%u-%h%%", {"u": "joe", "h": "gpu"}) == "/home/me/a~b/joe-gpu%"
    assert expand("/x%q", {}) == "/x%q"


def test_included_files_are_read_in_place_and_the_block_goes_on_after_them(tmp_path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/a").write_text("Host a\n  User included\n")
    (tmp_path / "config").write_text("Host b\n  Port 1\nInclude conf.d/*\n  User mine\n")
    config = hosts._Config.from_text(read_config(tmp_path / "config"))
    assert config.lookup("a")["user"] == "included"
    assert (config.lookup("b")["user"], config.lookup("b")["port"]) == ("mine", "1")
    assert read_config(tmp_path / "none") == ""


def chain(tmp_path, text, name="target"):
    """What would be connected, first hop first, without connecting."""
    (tmp_path / "config").write_text(text)
    link = hosts.Link.__new__(hosts.Link)
    link.name, link._chain = name, []
    link._connection(name, hosts._load(str(tmp_path / "config")), None, ())
    return link._chain


def test_jumps_are_visited_in_the_order_they_are_written(tmp_path):
    path = chain(tmp_path, "Host target\n ProxyJump one,me@two:2222\nHost one\n HostName 10.0.0.1\n ProxyJump zero\n")
    assert [(c.host, c.port) for c in path] == [("zero", 22), ("10.0.0.1", 22), ("two", 2222), ("target", 22)]
    assert [c.gateway for c in path] == [False, *path[:-1]]
    assert path[2].user == "me"


def test_a_jump_of_none_or_to_itself_is_no_jump(tmp_path):
    assert len(chain(tmp_path, "Host target\n ProxyJump none\nHost *\n ProxyJump gate\n")) == 1
    assert [c.host for c in chain(tmp_path, "Host *\n ProxyJump gate\n")] == ["gate", "target"]


def test_jumps_in_a_circle_are_named(tmp_path):
    with pytest.raises(ConnectError, match="a -> b -> a"):
        chain(tmp_path, "Host a\n ProxyJump b\nHost b\n ProxyJump a\n", "a")


def test_user_port_key_and_time_out_come_from_the_config_and_user_at_host_wins(tmp_path):
    (tmp_path / "key").write_text("")
    text = (f'Host gpu\n HostName 10.1.1.1\n User cfg\n Port 2200\n ConnectTimeout 3\n'
            f' IdentityFile "{tmp_path}/key"\n IdentityFile ~/absent\n IdentitiesOnly yes\n')
    [c] = chain(tmp_path, text, "me@gpu:2300")
    assert (c.host, c.user, c.port, c.connect_timeout) == ("10.1.1.1", "me", 2300, 3)
    assert c.connect_kwargs["key_filename"] == [f"{tmp_path}/key"]
    assert not c.connect_kwargs["allow_agent"] and not c.connect_kwargs["look_for_keys"]


# --------------------------------------------------------------- host keys

def hashed(name, salt=b"0123456789abcdefghij"):
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return "|1|" + "|".join(base64.b64encode(b).decode() for b in (salt, digest))


@pytest.mark.parametrize("line, verdict", [
    (f"gpu ssh-ed25519 {TEXT}", "ok"),
    (f"10.0.0.1,gpu ssh-ed25519 {TEXT} a comment", "ok"),
    (f"{hashed('gpu')} ssh-ed25519 {TEXT}", "ok"),
    (f"g*,!gpu2 ssh-ed25519 {TEXT}", "ok"),
    (f"g*,!gpu ssh-ed25519 {TEXT}", "unknown"),
    (f"{hashed('other')} ssh-ed25519 {TEXT}", "unknown"),
    (f"[gpu]:2222 ssh-ed25519 {TEXT}", "unknown"),
    (f"# gpu ssh-ed25519 {TEXT}", "unknown"),
    (f"@cert-authority gpu ssh-ed25519 {TEXT}", "unknown"),
    ("gpu ssh-ed25519 not/base64!", "unknown"),
    ("", "unknown"),
    (f"gpu ssh-ed25519 {OTHER_TEXT}", "changed"),
    (f"gpu ssh-rsa {OTHER_TEXT}", "changed"),
    (f"gpu ssh-ed25519 {OTHER_TEXT}\ngpu ssh-ed25519 {TEXT}", "ok"),
    (f"gpu ssh-ed25519 {TEXT}\n@revoked gpu ssh-ed25519 {TEXT}", "revoked"),
])
def test_what_known_hosts_says(tmp_path, line, verdict):
    (tmp_path / "known").write_text(line + "\n")
    assert Known.load([f"{tmp_path}/known", f"{tmp_path}/absent"], "gpu").verdict(BLOB) == verdict


def test_a_port_other_than_22_is_part_of_the_name():
    assert (key_name("gpu", 22), key_name("gpu", 2222)) == ("gpu", "[gpu]:2222")


def test_a_fingerprint_is_the_padless_base64_of_sha256():
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


@pytest.mark.parametrize("hash_names", [False, True])
def test_a_remembered_key_is_known_and_spoils_no_other_line(tmp_path, hash_names):
    file = tmp_path / "new" / "known"
    remember(str(file), "one", "ssh-ed25519", OTHER)
    file.write_text(file.read_text().rstrip("\n"))          # as editors may leave it
    remember(str(file), "[gpu]:2222", "ssh-ed25519", BLOB, hash_names)
    assert Known.load([str(file)], "[gpu]:2222").verdict(BLOB) == "ok"
    assert Known.load([str(file)], "one").verdict(OTHER) == "ok"
    assert ("gpu" in file.read_text()) is not hash_names
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700


def test_a_changed_key_is_refused_though_its_fingerprint_was_accepted(tmp_path):
    key = paramiko.Ed25519Key(data=paramiko.Message(
        b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(range(32))).asbytes())
    (tmp_path / "known").write_text(f"gpu ssh-ed25519 {TEXT}\n")
    known = Known.load([f"{tmp_path}/known"], "gpu")
    policy = Strict("gpu", "gpu", known, f"{tmp_path}/known", fingerprint(key.asbytes()), False)
    with pytest.raises(HostKeyError, match="is changed"):
        policy.missing_host_key(None, "gpu", key)


# ------------------------------------------------------------------- errors

class FakeLink:
    name = "gpu"

    def __init__(self, alive=True):
        self.alive = alive


@pytest.mark.parametrize("raised, alive, kind, says", [
    (EOFError(), True, LinkLost, "broke"),
    (OSError("Socket is closed"), False, LinkLost, "broke"),
    (paramiko.SSHException("Channel closed."), False, LinkLost, "broke"),
    (TimeoutError(), True, CommandTimeout, "in time"),
    (FileNotFoundError(2, "x"), True, NoSuchFile, "no such file"),
    (PermissionError(13, "x"), True, HostError, "permission"),
    (OSError(28, "x"), True, NoSpace, "no space"),
    (paramiko.ChannelException(2, "open failed"), True, HostError, "no channel"),
    (OSError("Failure"), True, HostError, "Failure"),
])
def test_nothing_of_a_lower_library_leaks_from_a_live_host(raised, alive, kind, says):
    with pytest.raises(kind, match=says) as error:
        with hosts.explained("gpu", "read /x", FakeLink(alive)):
            raise raised
    assert isinstance(error.value, KitError) and error.value.where == "gpu" and error.value.next
    assert "read /x" in error.value.what


@pytest.mark.parametrize("raised, says", [
    (paramiko.ssh_exception.NoValidConnectionsError({("10.0.0.1", 22): OSError(111, "refused")}), "nobody listens"),
    (socket.gaierror(-2, "Name or service not known"), "name is not known"),
    (TimeoutError("timed out"), "in time"),
    (paramiko.SSHException("Error reading SSH protocol banner"), "in time"),
    (paramiko.AuthenticationException("Authentication failed."), "none of our keys"),
    (paramiko.SSHException("not a valid OPENSSH private key file"), "none of our keys"),
    (paramiko.ChannelException(2, "Connection refused"), "gateway cannot reach"),
    (paramiko.ssh_exception.ConfigParseError("Unparsable line x"), "config is not understood"),
    (ConnectionResetError(104, "reset"), "no SSH connection"),
    (EOFError(), "no SSH connection: EOFError"),
])
def test_every_failed_connect_is_a_connect_error_in_three_lines(raised, says):
    with pytest.raises(ConnectError, match=says) as error:
        with hosts.explained("gpu", "connect"):
            raise raised
    assert len(str(error.value).splitlines()) == 3


def test_errors_of_our_own_and_of_the_callers_pass_unchanged():
    for mine in (HostError("x"), KeyboardInterrupt(), ZeroDivisionError()):
        with pytest.raises(type(mine)) as error:
            with hosts.explained("gpu", "x", FakeLink()):
                raise mine
        assert error.value is mine


def test_a_host_object_can_always_be_shown():
    def unreachable():
        raise ConnectError("no")
    host = SshHost("gpu", "~/.specbook", unreachable)
    assert repr(host) == "SshHost('gpu', closed)"
    with pytest.raises(ConnectError):
        host.open()
    assert repr(host) == "SshHost('gpu', not connected)"
    host.close()
    host.close()
    assert repr(host) == "SshHost('gpu', closed)"


def test_a_name_that_resolves_nowhere_is_said_in_our_words(tmp_path):
    (tmp_path / "config").write_text("Host gpu\n HostName no-such-host.invalid\n")
    with pytest.raises(ConnectError):
        hosts.connect("gpu", ssh_config=tmp_path / "config")


def test_a_host_that_says_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "BANNER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "config").write_text(f"Host gpu\n HostName 127.0.0.1\n Port {silent.getsockname()[1]}\n")
        with pytest.raises(ConnectError, match="in time"):
            hosts.connect("gpu", ssh_config=tmp_path / "config")


# ------------------------------------------------------- channels and tunnels

class Recorder:
    """A channel that writes down what it is asked to send."""
    closed = False

    def __init__(self, window):
        self.window, self.sent = window, []

    def send_ready(self):
        self.window -= 1
        return self.window >= 0

    def send(self, data):
        self.sent.append(data)
        return len(data)

    def shutdown_write(self):
        self.sent.append("EOF")

    def close(self):
        self.closed = True
        self.sent.append("CLOSE")


def test_a_channel_says_nothing_once_either_side_has_closed():
    for end in (lambda w: w.close(), lambda w: setattr(w.raw, "closed_by_peer", True)):
        wire = Wire(Recorder(window=100))
        wire.sendall(bytes(70000))
        before = [len(d) for d in wire.raw.sent]
        assert before == [32768, 32768, 4464]
        end(wire)
        wire.shutdown_write()
        with pytest.raises(OSError):
            wire.sendall(b"late")
        assert [d for d in wire.raw.sent if d == "EOF" or d == b"late"] == []


def test_a_sender_waiting_for_room_stops_when_the_other_side_closes():
    wire = Wire(Recorder(window=0))
    threading.Timer(0.05, setattr, (wire.raw, "closed_by_peer", True)).start()
    with pytest.raises(OSError):
        wire.sendall(b"never")
    assert wire.raw.sent == []


def test_many_requests_at_once_through_one_host_all_get_their_answer(rehearsal_host):
    class Slow(BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(0.05)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda _: rehearsal_host.http(server.server_port, "/").body, range(96)))
    finally:
        server.shutdown()
        server.server_close()
    assert answers == [b"here"] * 96


def test_a_tunnel_serves_the_next_client_after_a_refused_one():
    ours, theirs = socket.socketpair()
    answers = iter([HostError("refused"), ours])

    class Channel:
        recv, sendall, close, shutdown = ours.recv, ours.sendall, ours.close, ours.shutdown
        shutdown_write = staticmethod(lambda: ours.shutdown(socket.SHUT_WR))

    def open_channel():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return Channel

    with Tunnel(open_channel, (HostError,)) as tunnel:
        with pytest.raises(ConnectionResetError):
            with socket.create_connection(("127.0.0.1", tunnel.port), timeout=5) as refused:
                refused.recv(1)
        with socket.create_connection(("127.0.0.1", tunnel.port), timeout=5) as client:
            client.sendall(b"ping")
            assert theirs.recv(4) == b"ping"
            theirs.sendall(b"pong")
            theirs.shutdown(socket.SHUT_WR)
            assert client.recv(4) == b"pong" and client.recv(1) == b""
    theirs.close()
    assert not [t for t in threading.enumerate() if t.name == f"tunnel-{tunnel.port}" and t.join(5) is None
                and t.is_alive()]
