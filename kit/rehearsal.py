"""The rehearsal host: a real SSH server on this machine's loopback, without root or a system package.

    kit.rehearsal.start()               # or simply kit.connect("rehearsal")
    python -m kit.rehearsal status      # start | stop | status  [--folder F]

It is `kit.rehearsal_server` (AsyncSSH) in a process of its own, which outlives
the kernel that started it. All it owns lies in one folder, `.rehearsal` in the
project's: `home/` is the host's $HOME, `keys/` are throw-away, `ssh_config`
works with ssh, scp and rsync too: `ssh -F .rehearsal/ssh_config rehearsal`.
Whoever has the client key is you: it is no sandbox.

It behaves as OpenSSH's sshd does (one conformance test runs against both), except:

    what                     sshd                              rehearsal host
    login shell              the user's own, from passwd       always sh
    PTY                      yes                               refused; the command runs without one
    environment              the login's, AcceptEnv obeyed     small, fixed; what a client sends is dropped
    user name                must be the account's             any name, with the one client key
    forwarding               anywhere, -R and sockets too      to this machine's loopback only, -L only
    command not in UTF-8     runs                              refused
    SSH "signal" request     not for root                      to the command's process group
    server told to stop      sessions go on                    ends what was started through it, save
                                                               services in a session of their own (setsid)
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit import project
from kit.alive import identity
from kit.errors import HostError, KitError

NAME = "rehearsal"        # how kit.connect calls it
START_S = 30.0


@dataclass(frozen=True)
class RehearsalInfo:
    """Where it is. `pid` and `port` are None while it is stopped."""

    folder: Path
    pid: int | None = None
    port: int | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def running(self) -> bool:
        return self.pid is not None

    def __repr__(self) -> str:
        what = f"pid {self.pid}, 127.0.0.1:{self.port}" if self.running else "stopped"
        return f"rehearsal host: {what}, {self.folder}"


def default_folder() -> Path:
    """$SPECBOOK_REHEARSAL, else .rehearsal in the project's folder (see kit.project)."""
    if named := os.environ.get("SPECBOOK_REHEARSAL"):
        return Path(named).expanduser().absolute()
    return project.root() / ".rehearsal"


def status(folder: str | Path | None = None) -> RehearsalInfo:
    """What the state file says, if that very process is still alive."""
    folder = Path(folder).absolute() if folder else default_folder()
    try:
        state = json.loads((folder / "state.json").read_text())
        if state["identity"] and identity(state["pid"]) == state["identity"]:
            return RehearsalInfo(folder, state["pid"], state["port"])
    except (OSError, ValueError, KeyError, TypeError):
        pass                        # never started, or half a file of an older hand: not running
    return RehearsalInfo(folder)


def start(folder: str | Path | None = None) -> RehearsalInfo:
    """Start it, or find it running. Two starters at once get the same one."""
    info = status(folder)
    if info.running:
        return info
    with _locked(info.folder):
        info = status(info.folder)
        return info if info.running else _launch(info.folder)


def stop(folder: str | Path | None = None) -> RehearsalInfo:
    """End it and what runs in its channels. Supervised services live on, as on a real host."""
    info = status(folder)
    if not info.folder.exists():
        return info
    with _locked(info.folder):
        info = status(info.folder)
        if info.running:
            _end(info.pid)
        return RehearsalInfo(info.folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as err:
        raise HostError(f"the rehearsal host cannot use its folder: {err.strerror}", where=str(folder),
                        next="set SPECBOOK_REHEARSAL to a folder of yours") from None


def _launch(folder: Path) -> RehearsalInfo:
    (folder / ".gitignore").write_text("*\n")
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "kit.rehearsal_server", str(folder)], start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   cwd=Path(__file__).parent.parent)        # there is the kit that we are
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        info = status(folder)
        if info.pid == process.pid:
            process.returncode = 0      # it is meant to outlive us: no warning about it at our end
            return info
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
        process.wait()
    said = (folder / "server.log").read_text(errors="replace").strip().splitlines()
    raise HostError(f"the rehearsal host did not start: {said[-1] if said else 'it said nothing'}",
                    where=str(folder / "server.log"), next="read that log; remove the folder to begin afresh")


def _end(pid: int) -> None:
    was = identity(pid)
    for number, patience_s in ((signal.SIGTERM, 6.0), (signal.SIGKILL, 5.0)):
        if was and identity(pid) == was:
            os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while identity(pid) == was and time.monotonic() < deadline:
            time.sleep(0.02)
    try:
        os.waitpid(pid, os.WNOHANG)     # where it was our own child
    except ChildProcessError:
        pass


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kit.rehearsal", description="The embedded SSH host.")
    parser.add_argument("what", choices=("start", "stop", "status"))
    parser.add_argument("--folder", help="default: .rehearsal in the project's folder")
    args = parser.parse_args(argv)
    try:
        print({"start": start, "stop": stop, "status": status}[args.what](args.folder))
    except KitError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
