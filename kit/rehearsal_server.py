"""The rehearsal host itself: an SSH server on loopback, in a process of its own.

Run by `kit.rehearsal`; it imports asyncssh and little else, to be small and quick to start:

    python -m kit.rehearsal_server FOLDER

What OpenSSH does, and this does not, is named in `kit.rehearsal`.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import signal
import sys
from pathlib import Path

import asyncssh

from kit.alive import identity
from kit.rehearsal_session import Child, Session
from kit.sshfiles import quoted

MAX_SESSIONS = 10       # OpenSSH's default, per connection
LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEPT = ("LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
MARK = "SPECBOOK_REHEARSAL_ID"


def environment(home: Path, mark: str) -> dict[str, str]:
    """What a command sees: little, but Python first on the PATH and what pip needs to reach its index."""
    env = {k: v for k, v in os.environ.items()
           if k in KEPT or k.startswith(("LC_", "PIP_")) or k.lower().endswith("_proxy")}
    real = Path("~").expanduser()
    for config in (real / ".config/pip/pip.conf", real / ".pip/pip.conf"):
        if config.is_file():
            env.setdefault("PIP_CONFIG_FILE", str(config))
    path = os.environ.get("PATH", os.defpath)
    user = getpass.getuser() if os.environ.get("USER") or os.environ.get("LOGNAME") else "rehearsal"
    return {"LANG": "C.UTF-8", **env, "HOME": str(home), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh",
            "PATH": f"{Path(sys.executable).parent}:{path}", MARK: mark}


class Login(asyncssh.SSHServer):
    """One connection: who may log in, how many sessions, where it may forward to."""

    def __init__(self, host: Host):
        self.host, self.sessions = host, 0

    def session_requested(self):
        if self.sessions >= MAX_SESSIONS:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        return Session(self.host, self)

    def connection_requested(self, dest_host, dest_port, orig_host, orig_port):
        if dest_host not in LOOPBACK:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "loopback only")
        return True


class Host:
    """The folder, its keys, and the processes started through it."""

    def __init__(self, folder: Path):
        self.folder, self.home, self.keys = folder, folder / "home", folder / "keys"
        self.mark = os.urandom(8).hex()
        self.env = environment(self.home, self.mark)
        self.children: set[Child] = set()
        self.groups: set[int] = set()       # sessions that commands were started in; members may outlive them

    def key(self, name: str) -> Path:
        """A private key of ours, made once; 0600 from its first byte."""
        path = self.keys / name
        if not path.exists():
            key = asyncssh.generate_private_key("ssh-ed25519", comment=f"specbook rehearsal {name}")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as f:
                f.write(key.export_private_key())
            path.with_suffix(".pub").write_bytes(key.export_public_key())
        return path

    async def listen(self, port: int) -> asyncssh.SSHAcceptor:
        options = {"server_host_keys": [str(self.key("host_key"))], "config": (), "encoding": None,
                   "authorized_client_keys": asyncssh.import_authorized_keys(
                       self.key("client_key").with_suffix(".pub").read_text()),
                   "line_editor": False, "allow_scp": False, "agent_forwarding": False, "x11_forwarding": False,
                   "password_auth": False, "kbdint_auth": False, "host_based_auth": False, "gss_host": None}
        try:
            return await asyncssh.create_server(lambda: Login(self), "127.0.0.1", port, **options)
        except OSError:         # the port of last time has another owner now
            return await asyncssh.create_server(lambda: Login(self), "127.0.0.1", 0, **options)

    def left(self) -> list[int]:
        """Pids in the sessions we started: a service that called setsid() is in its own and not ours to end."""
        pids = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                session = int(stat.read_text(errors="replace").rpartition(")")[2].split()[3])
                if session in self.groups and f"{MARK}={self.mark}".encode() in \
                        (stat.parent / "environ").read_bytes().split(b"\0"):
                    pids.append(int(stat.parent.name))
            except OSError:
                continue
        return pids or [c.transport.get_pid() for c in self.children]

    async def end_all(self) -> None:
        for number, patience in ((signal.SIGTERM, 40), (signal.SIGKILL, 20)):
            for pid in self.left():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            while patience and self.left():
                patience -= 1
                await asyncio.sleep(0.05)


def save(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.chmod(0o600)
    part.replace(path)


async def serve(folder: Path) -> None:
    host, state = Host(folder), folder / "state.json"
    for place in (host.home, host.keys):
        place.mkdir(mode=0o700, exist_ok=True)
    os.chdir(host.home)                             # where SFTP begins
    try:
        before = json.loads(state.read_text())["port"]
    except (OSError, ValueError, KeyError):
        before = 0
    acceptor = await host.listen(before)
    port = acceptor.get_port()
    public = host.keys.joinpath("host_key.pub").read_text().split()
    save(folder / "known_hosts", f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    save(folder / "ssh_config", f"""Host rehearsal
  HostName 127.0.0.1
  Port {port}
  User rehearsal
  IdentityFile {quoted(host.keys / "client_key")}
  IdentitiesOnly yes
  UserKnownHostsFile {quoted(folder / "known_hosts")}
  StrictHostKeyChecking yes
""")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    save(state, json.dumps({"pid": os.getpid(), "identity": identity(os.getpid()), "port": port}))
    await stop.wait()
    acceptor.close()
    await host.end_all()


if __name__ == "__main__":
    asyncssh.set_log_level("WARNING")
    asyncio.run(serve(Path(sys.argv[1])))
