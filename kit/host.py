"""A connection to a host, opened as ssh would. The only module that imports fabric or paramiko.

    host = kit.connect("gpu-7")                             # as in ~/.ssh/config, ProxyJump and agent included
    kit.connect("gpu-7", accept="SHA256:…")                 # the one way to trust a key not seen before

Fabric opens the connections. It would take any host key and leaves Nagle's delay on, so keys,
socket options and time-outs are set here, for gateways too. What a host can do is in `kit.sshhost`.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_REQUEST

from kit import rehearsal
from kit.channels import Wire
from kit.errors import CommandTimeout, ConnectError, HostError, KitError, LinkLost, NoSpace, NoSuchFile
from kit.hostkeys import Known, Strict, key_name
from kit.spec import HostSpec
from kit.sshfiles import expand, read_config, words
from kit.sshhost import Refused, SshHost

CONNECT_S, BANNER_S, LOGIN_S, CHANNEL_S = 10, 15, 30, 15
KEEPALIVE_S, DEAD_AFTER_S = 10, 30      # a peer that acknowledges nothing for so long is gone
KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"

logging.getLogger("paramiko").addHandler(logging.NullHandler())     # else it prints tracebacks from its threads

_hosts: dict[tuple[str, str, str], SshHost] = {}
_hosts_lock = threading.Lock()


def connect(spec: HostSpec | str, *, accept: str | None = None, ssh_config: str | Path | None = None) -> SshHost:
    """The live host of that name; the same object each time, connected again if the link died.

    spec        a name of ~/.ssh/config, `user@host:port`, "rehearsal", or a HostSpec
    accept      fingerprint (SHA256:…) of a host key to trust from now on; it is written to known_hosts
    ssh_config  another file than ~/.ssh/config

    Raises HostKeyError (unknown or changed key) and ConnectError.
    """
    spec = HostSpec(ssh=spec) if isinstance(spec, str) else spec
    if spec.ssh == rehearsal.NAME and ssh_config is None:
        ssh_config = rehearsal.start().ssh_config
    config = str(Path(ssh_config).expanduser().absolute()) if ssh_config else ""
    with _hosts_lock:
        host = _hosts.setdefault((spec.ssh, spec.root, config),
                                 SshHost(spec.ssh, spec.root, lambda: Link(spec.ssh, config, host.accepted)))
    host.open(accept)
    return host


class Link:
    """One authenticated connection, with its gateways. Opens in the constructor."""

    def __init__(self, name: str, config: str, accept: str | None):
        self.name, self._chain, self._tcp_lock = name, [], threading.Lock()
        try:
            with explained(name, "connect"):
                last = self._connection(name, _load(config), accept, ())
                last.open()
                self.transport, self.user = last.transport, last.user
                for connection in self._chain:
                    connection.transport.set_keepalive(KEEPALIVE_S)
        except KitError:
            self.close()
            raise

    def _connection(self, name: str, config: fabric.Config, accept: str | None, trail: tuple[str, ...],
                    gateway: Any = None) -> fabric.Connection:
        """Not yet open, with its gateways before it (Fabric would visit a ProxyJump chain in the wrong order)."""
        bare = fabric.Connection(name, config=config, gateway=False)
        options = bare.ssh_config
        jump = options.get("proxyjump") or "none"
        if gateway is None and jump.lower() != "none":
            if len(trail) > 8:
                raise ConnectError(f"ProxyJump goes round: {' -> '.join(trail)}", where=self.name,
                                   next="mend ProxyJump in the ssh config")
            for hop in (h.strip().removeprefix("ssh://") for h in jump.split(",")):
                if fabric.Connection(hop, config=config, gateway=False).original_host != bare.original_host:
                    gateway = self._connection(hop, config, accept, (*trail, name), gateway)
        elif gateway is None:
            gateway = options.get("proxycommand")
        ours = fabric.Connection(name, config=config, gateway=gateway or False)
        files = [expand(w, _tokens(ours)) for key, default in
                 (("userknownhostsfile", KNOWN_HOSTS), ("globalknownhostsfile", "/etc/ssh/ssh_known_hosts"))
                 for w in words(options.get(key, default))]
        alias = options.get("hostkeyalias") or key_name(ours.host, int(ours.port))
        known = Known.load(files, alias)
        ours.client.set_missing_host_key_policy(
            Strict(self.name, alias, known, files[0], accept, options.get("hashknownhosts") == "yes"))
        ours.connect_kwargs = {"banner_timeout": BANNER_S, "auth_timeout": LOGIN_S, "channel_timeout": CHANNEL_S,
                               "transport_factory": lambda sock, **kw: _Transport(sock, known.types, **kw),
                               **_keys(options, _tokens(ours))}
        self._chain.append(ours)
        return ours

    @property
    def alive(self) -> bool:
        return self.transport.is_active()

    def explained(self, doing: str) -> Any:
        return explained(self.name, doing, self)

    def session(self) -> Wire:
        """A channel for one command. sshd counts a session until it has reaped it, so a refusal is asked again.

        Any SSHException is taken for a refusal: paramiko may hand one thread's to another.
        """
        for patience_s in (0.05, 0.1, 0.2, 0.4, 0.8):
            try:
                return Wire(self.transport.open_session(timeout=CHANNEL_S))
            except paramiko.SSHException:
                time.sleep(patience_s if self.alive else 0)
        return Wire(self.transport.open_session(timeout=CHANNEL_S))

    def tcp(self, port: int) -> Wire:
        """A channel to the host's loopback; `Refused` where nobody listens."""
        try:
            with self._tcp_lock:        # one at a time: a refusal must reach whom it is meant for
                return Wire(self.transport.open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0),
                                                        timeout=CHANNEL_S))
        except paramiko.ChannelException as err:
            if err.code == 2:           # "connect failed"; 1 is "administratively prohibited"
                raise Refused(f"port {port}: {err.text}") from None
            raise

    def sftp(self) -> paramiko.SFTPClient:
        channel = self.session().raw
        channel.answered_by_owner = False       # its owner is paramiko
        channel.invoke_subsystem("sftp")
        return paramiko.SFTPClient(channel)

    @staticmethod
    def hang_up(channel: Any) -> None:
        """Close a channel or SFTP client, also one whose connection is gone."""
        try:
            channel.close()
        except (paramiko.SSHException, EOFError, OSError):
            pass

    def close(self) -> None:
        for connection in reversed(self._chain):
            connection.client.close()


def _note_signal(channel: Any, message: paramiko.Message) -> None:
    """paramiko forgets an exit-signal: a command killed there would look like a broken link."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.exit_signal = message.get_text()
    message.packet.seek(start)
    channel._handle_request(message)


def _note_close(channel: Any, message: paramiko.Message) -> None:
    """paramiko answers a CLOSE at once, while another thread may be about to send: sshd then ends the connection.

    So the owner of a `Wire` answers, when it hangs up; until then this is the end of both outputs.
    """
    if not getattr(channel, "answered_by_owner", False):
        channel._handle_close(message)
        return
    channel._handle_eof(message)
    channel.closed_by_peer = True
    channel.status_event.set()


class _Transport(paramiko.Transport):
    """Without Nagle's delay; notices a dead peer; asks for a key type that we know; keeps the name of a signal."""

    def __init__(self, sock: Any, known_types: list[str], **options: Any):
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)
        super().__init__(sock, **options)
        security = self.get_security_options()
        wanted = [t for k in known_types for t in (("rsa-sha2-512", "rsa-sha2-256") if k == "ssh-rsa" else (k,))
                  if t in security.key_types]
        security.key_types = wanted + [t for t in security.key_types if t not in wanted]

    _channel_handler_table = {**paramiko.Transport._channel_handler_table,
                              MSG_CHANNEL_REQUEST: _note_signal, MSG_CHANNEL_CLOSE: _note_close}


class _Config(paramiko.SSHConfig):
    """paramiko's, but for the paths of keys: `~` only at the start, `%%`, quotes."""

    def _tokenize(self, config: Any, target_hostname: str, key: str, value: str) -> str:
        if key == "identityfile":       # its tokens are expanded once user and port are known
            return (words(value) or [""])[0]
        return super()._tokenize(config, target_hostname, key, value)


def _load(config: str) -> fabric.Config:
    text = read_config(config) if config else \
        read_config("~/.ssh/config") + "\nHost *\n" + read_config("/etc/ssh/ssh_config")
    return fabric.Config(ssh_config=_Config.from_text(text), overrides={"timeouts": {"connect": CONNECT_S}})


def _tokens(connection: fabric.Connection) -> dict[str, str]:
    return {"d": str(Path.home()), "h": connection.host, "n": connection.original_host, "p": str(connection.port),
            "r": connection.user, "u": os.environ.get("USER", connection.user)}


def _keys(options: Any, tokens: dict[str, str]) -> dict[str, Any]:
    """Which keys are offered. With IdentitiesOnly the agent may still serve one of the named keys."""
    named = [expand(f, tokens) for f in options.get("identityfile", [])]
    certificate = words(options.get("certificatefile", ""))
    files = [f for f in named + [expand(c, tokens) for c in certificate] if os.path.isfile(f)]
    only = options.get("identitiesonly") == "yes"
    chosen: dict[str, Any] = {"key_filename": [f for f in files if not f.endswith(".pub") or f.endswith("-cert.pub")],
                              "allow_agent": not only, "look_for_keys": not only and not named}
    if only and os.environ.get("SSH_AUTH_SOCK"):
        public = {Path(p).read_text().split()[1] for f in files for p in (f, f"{f}.pub")
                  if p.endswith(".pub") and os.path.isfile(p)}
        chosen["pkey"] = next((k for k in paramiko.Agent().get_keys() if k.get_base64() in public), None)
    return chosen


@contextmanager
def explained(where: str, doing: str, link: Link | None = None) -> Iterator[None]:
    """Whatever paramiko, fabric or a socket raises inside comes out as one of ours. `link` None: still connecting."""
    try:
        yield
    except (KitError, Refused):
        raise
    except (paramiko.SSHException, paramiko.SFTPError, EOFError, OSError, ValueError) as err:
        raise (_no_connection(err, where) if link is None else _no_success(err, where, doing, link)) from None


def _no_connection(err: BaseException, name: str) -> ConnectError:
    text = str(err) or type(err).__name__
    by_hand = f"try by hand: ssh {name}"
    if isinstance(err, paramiko.ssh_exception.NoValidConnectionsError):
        return ConnectError(f"nobody listens there: {text}", where=name, next="check HostName and Port, and its sshd")
    if isinstance(err, socket.gaierror):
        return ConnectError("this name is not known here", where=name, next="check HostName in the ssh config")
    if isinstance(err, TimeoutError) or "banner" in text:
        return ConnectError(f"no SSH server answered in time ({text})", where=name, next=by_hand)
    if isinstance(err, paramiko.ChannelException):
        return ConnectError(f"the gateway cannot reach it: {err.text}", where=name, next=by_hand)
    if isinstance(err, paramiko.ssh_exception.ConfigParseError):
        return ConnectError(f"the ssh config is not understood: {text}", where=name, next="mend that line")
    if isinstance(err, paramiko.AuthenticationException) or "auth" in text.lower() or "private key" in text:
        return ConnectError(f"it let none of our keys in: {text}", where=name,
                            next="check User and IdentityFile; ssh-add a key that has a passphrase")
    return ConnectError(f"no SSH connection: {text}", where=name, next=by_hand)


def _no_success(err: BaseException, name: str, doing: str, link: Link) -> KitError:
    text = str(err) or type(err).__name__
    if isinstance(err, TimeoutError):
        return CommandTimeout(f"{doing}: no answer in time", where=name, next="try again, or look at the host's load")
    if isinstance(err, EOFError) or not link.alive:
        return LinkLost(f"{doing}: the connection broke", where=name, next=f'kit.connect("{link.name}"), then again')
    if isinstance(err, FileNotFoundError):
        return NoSuchFile(f"{doing}: no such file or folder", where=name, next="check the path")
    if isinstance(err, PermissionError):
        return HostError(f"{doing}: permission denied", where=name, next="choose a path that this user may use")
    if isinstance(err, OSError) and err.errno == errno.ENOSPC:
        return NoSpace(f"{doing}: no space left on this machine", where=name, next="free some, then again")
    if isinstance(err, paramiko.ChannelException):
        return HostError(f"{doing}: the host opens no channel: {err.text}", where=name, next="close some streams")
    return HostError(f"{doing}: {text}", where=name, next="look on the host itself")
