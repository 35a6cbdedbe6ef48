"""Looks at a service that is not the kit's: a systemd unit, a process, a port. It has no verb that changes anything.

    … | python3 - look   --unit X.service --scope S | --pid N | --port N  [--variables CUDA_,NCCL_]      JSON facts
    … | python3 - states WHERE NAME      JSON list of one state, in babysit.py's words
    … | python3 - follow WHERE --cursor C [--no-wait]      frames `<cursor> <time_s> <raw line>`

WHERE is system/x.service, user/x.service, pid/PID-START or port/N; START (clock ticks after boot) tells a process from
a later one with its pid. The program travels on stdin, so nothing is written on the host. Standard library,
Python >= 3.9. A unit's log is its journal, of the runs from the present one on; a process's is the file that its
output goes to; of a port nobody knows the log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import re
import select
import stat
import subprocess
import sys

from journal import Reader

OK, USAGE, UNKNOWN, NO_SYSTEMD, NO_LOG = 0, 2, 12, 21, 22
ALIVE = ("active", "activating", "deactivating", "reloading")
ASKED = ("Id", "LoadState", "ActiveState", "SubState", "Result", "MainPID", "ExecMainCode", "ExecMainStatus",
         "FragmentPath", "DropInPaths", "InvocationID", "NeedDaemonReload", "User", "WorkingDirectory", "NRestarts")
# Units that others' processes live in: they did not start what runs below them for its own sake.
HOSTS = ("ssh", "sshd", "dropbear", "cron", "crond", "docker", "containerd", "podman", "supervisor")
SECRET = re.compile(r"(?i)(token|key|secret|password|passwd|pass)$")
INVOCATION = ("_SYSTEMD_INVOCATION_ID", "INVOCATION_ID", "USER_INVOCATION_ID")
PIECE = 65536
MOST = 32               # processes that are told of one service
SIGNALS = {1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


class Refused(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Closed(Exception):
    """Nobody reads any more."""


# ------------------------------------------------------------------ processes

def read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def started(pid: int) -> int | None:
    """Clock ticks after boot; None when it is gone, or has ended and is not yet waited for."""
    try:
        rest = read(f"/proc/{pid}/stat")
    except OSError:
        return None
    words = rest[rest.rindex(b")") + 2:].split()
    return None if words[0] in (b"Z", b"X") else int(words[19])


def parent(pid: int) -> int:
    try:
        rest = read(f"/proc/{pid}/stat")
    except OSError:
        return 0
    return int(rest[rest.rindex(b")") + 2:].split()[1])


def cmdline(pid: int) -> list[str]:
    try:
        return [w.decode("utf-8", "surrogateescape") for w in read(f"/proc/{pid}/cmdline").split(b"\0")][:-1]
    except OSError:
        return []


def environment(pid: int, prefixes: list[str]) -> dict[str, str] | None:
    """What an engine reads, the values of secrets masked here already; None where we may not look."""
    try:
        pairs = [e.decode("utf-8", "surrogateescape").partition("=") for e in read(f"/proc/{pid}/environ").split(b"\0")]
    except OSError:
        return None
    return {k: "***" if SECRET.search(k) else v for k, eq, v in pairs if eq and k.startswith(tuple(prefixes))}


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def owner(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def listening(port: int) -> set[bytes]:
    """Socket inodes of who listens on this TCP port."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for row in read(path).splitlines()[1:]:
                col = row.split()
                if col[3] == b"0A" and int(col[1].rpartition(b":")[2], 16) == port:
                    found.add(col[9])
    return found


def holder(port: int) -> int | None:
    """The pid that listens there; None when nobody does, or nobody that we may see."""
    wanted = {b"socket:[" + inode + b"]" for inode in listening(port)}
    for pid in filter(str.isdigit, os.listdir("/proc")) if wanted else ():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.fsencode(link(f"/proc/{pid}/fd/{fd}")) in wanted:
                    return int(pid)
    return None


def server_of(pid: int) -> int:
    """Workers rename themselves (sglang::scheduler_TP0): the process that was asked for is above them."""
    while (words := cmdline(pid)) and re.match(r"(sglang|VLLM)::", words[0]) and parent(pid) > 1:
        pid = parent(pid)
    return pid


def container(pid: int) -> str:
    """The id that every container runtime gives a process's cgroup; "" outside of one, and in the one we are in."""
    found = []
    for one in (str(pid), "self"):
        with contextlib.suppress(OSError):
            found.append(re.findall(rb"[0-9a-f]{64}", read(f"/proc/{one}/cgroup"))[-1:])
    return found[0][0].decode() if len(found) == 2 and found[0] and found[0] != found[1] else ""


def process(pid: int, prefixes: list[str]) -> dict | None:
    start = started(pid)
    if start is None:
        return None
    return {"pid": pid, "start": start, "argv": cmdline(pid), "environ": environment(pid, prefixes),
            "cwd": link(f"/proc/{pid}/cwd"), "user": owner(pid), "container": container(pid)}


def tree(top: int) -> list[int]:
    """The process and those below it, the nearest first: a wrapper's server is one of its children."""
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        children.setdefault(parent(pid), []).append(pid)
    found = [top]
    for pid in found:
        found += sorted(children.get(pid, ()))
    return found[:MOST]


# -------------------------------------------------------------------- systemd

def scoped(scope: str) -> list[str]:
    bus = f"/run/user/{os.getuid()}"
    if scope == "user" and not os.environ.get("XDG_RUNTIME_DIR") and os.path.isdir(bus):
        os.environ["XDG_RUNTIME_DIR"] = bus
    return ["--user"] if scope == "user" else []


def show(scope: str, unit: str) -> dict[str, str]:
    """systemctl show; Refused where systemd cannot be asked."""
    words = ["systemctl", *scoped(scope), "show", "--no-pager", "--property", ",".join(ASKED), "--", unit]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    except FileNotFoundError:
        raise Refused(NO_SYSTEMD, "this host has no systemctl") from None
    except subprocess.TimeoutExpired:
        raise Refused(NO_SYSTEMD, "systemctl gave no answer within 60 s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["failed"]
        raise Refused(NO_SYSTEMD, f"systemd ({scope}) cannot be asked: {said[0]}")
    return dict(line.partition("=")[::2] for line in done.stdout.decode("utf-8", "surrogateescape").splitlines())


def unit_of(pid: int) -> tuple[str, str] | None:
    """(scope, name) of the unit that was made for this process; None where there is none."""
    try:
        text = read(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
    except OSError:
        return None
    for path in (line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2):
        names = re.findall(r"[^/]+\.service", path)
        names = [n for n in names if not n.startswith("user@")]
        if not names or names[-1].rsplit(".", 1)[0] in HOSTS:
            continue
        scope = "user" if "/user@" in path else "system"
        with contextlib.suppress(Refused):
            main = int(show(scope, names[-1]).get("MainPID") or 0)
            if main and main in (pid, parent(pid)):
                return scope, names[-1]
    return None


def unit(scope: str, name: str) -> dict:
    """Its state, and the text of its file and drop-ins in systemd's order; None for one that we may not read."""
    now = show(scope, name)
    if now.get("LoadState") == "not-found":
        raise Refused(UNKNOWN, f"no unit {name} ({scope})")
    files: list[list] = []
    for path in [now.get("FragmentPath", ""), *now.get("DropInPaths", "").split()]:
        if path:
            try:
                files.append([path, read(path).decode("utf-8", "surrogateescape")])
            except OSError as e:
                files.append([path, None, e.strerror])
    return {"scope": scope, "name": now.get("Id") or name, "state": now, "files": files}


# ------------------------------------------------------------------- the verbs

def look(args: argparse.Namespace) -> dict:
    prefixes = args.variables.split(",")
    out: dict = {"unit": None, "processes": [], "home": os.path.expanduser("~"), "user": owner(os.getpid())}
    pid = args.pid
    if args.port is not None:
        if not listening(args.port):
            raise Refused(UNKNOWN, f"nobody listens on port {args.port}")
        pid = holder(args.port)
    if args.unit:
        out["unit"] = unit(args.scope, args.unit)
        pid = int(out["unit"]["state"].get("MainPID") or 0) or None
    elif pid is not None:
        pid = server_of(pid)
        found = unit_of(pid)
        with contextlib.suppress(Refused):
            out["unit"] = unit(*found) if found else None
    if pid is not None:
        out["processes"] = [found for one in tree(pid) if (found := process(one, prefixes))]
        if args.pid is not None and not out["processes"]:
            raise Refused(UNKNOWN, f"no process {args.pid}, or none that you may see")
    return out


def state_of(where: str, name: str) -> dict:
    kind, _, what = where.partition("/")
    state: dict = {"name": name, "active": "inactive", "sub": "dead", "result": "", "about": {"foreign": where}}
    if kind in ("system", "user"):
        now = show(kind, what)
        status = int(now.get("ExecMainStatus") or 0)
        state.update(active=now["ActiveState"], sub=now["SubState"], result=now["Result"],
                     pid=int(now.get("MainPID") or 0) or None, restarts=int(now.get("NRestarts") or 0))
        if now.get("ExecMainCode") == "1":
            state["exit_code"] = status
        elif now.get("ExecMainCode") in ("2", "3"):
            state["signal"] = SIGNALS.get(status, f"signal {status}")
        if now["LoadState"] == "not-found":
            state["active"] = "not-found"
        return state
    if kind == "pid":
        pid, start = map(int, what.split("-"))
        runs = started(pid) == start
        return {**state, "pid": pid, **({"active": "active", "sub": "running"} if runs else {"result": "gone"})}
    runs = bool(listening(int(what)))
    return {**state, "port": int(what), **({"active": "active", "sub": "listening"} if runs else {"result": "gone"})}


class Out:
    """Standard output that notices when its reader is gone."""

    def __init__(self):
        self.poll = select.poll()
        self.poll.register(1, 0)

    def wait(self, seconds: float) -> None:
        if self.poll.poll(seconds * 1000):
            raise Closed

    def frame(self, cursor: str, when: float, line: bytes) -> None:
        data = memoryview(b"%s %.6f %s\n" % (cursor.encode(), when, line.replace(b"\0", b"\\x00")))
        try:
            while data:
                data = data[os.write(1, data):]
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None


class Journal:
    """The journal of a unit, from the start of its present run on."""

    def __init__(self, scope: str, name: str, out: Out, cursor: str):
        self.name, self.scope, self.out, self.since = name, scope, out, ""
        self.reader = Reader(out.frame, out.wait, cursor, tuple(scoped(scope)))

    def command(self, *words: str, match: tuple[str, ...] = ()) -> list[str]:
        after = ["--cursor", self.since] if self.since and not self.reader.at else []
        return ["journalctl", *scoped(self.scope), "--no-pager", "--quiet", "--output=json", "--all", *after, *words,
                *(match or (f"--unit={self.name}",))]

    def begin(self, invocation: str) -> None:
        """From the start of the present run on; of the last one where the unit is not loaded."""
        if not invocation:
            last = subprocess.run(self.command("--lines=1"), stdin=subprocess.DEVNULL, capture_output=True).stdout
            with contextlib.suppress(ValueError, AttributeError):
                entry = json.loads(last)
                invocation = next((entry[f] for f in INVOCATION if entry.get(f)), "")
        if invocation:
            match = tuple(w for f in INVOCATION for w in ("+", f"{f}={invocation}"))[1:]
            with subprocess.Popen(self.command(match=match), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as p:
                with contextlib.suppress(ValueError, KeyError):
                    self.since = json.loads(p.stdout.readline())["__CURSOR"]
                p.kill()

    def ended(self) -> bool:
        return show(self.scope, self.name)["ActiveState"] not in ALIVE

    def settle(self) -> None:
        """Journald is behind: what a service said last may not be in the journal when its end is known."""
        done = subprocess.run(["journalctl", "--sync"], stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:                                 # only root may ask for it
            self.out.wait(0.3)

    def follow(self, wait: bool) -> None:
        """As it comes, through restarts, until the unit has ended."""
        now = show(self.scope, self.name)
        if now.get("LoadState") == "not-found":
            raise Refused(UNKNOWN, f"no unit {self.name} ({self.scope})")
        if not self.reader.at:
            self.begin(now.get("InvocationID", ""))
        if wait and now["ActiveState"] in ALIVE:
            self.reader.live(self.command, self.ended)
        if wait:
            self.settle()
        self.reader.there(self.command)


def follow_process(pid: int, start: int, out: Out, cursor: str, wait: bool) -> None:
    """The file that a process's output goes to, from its beginning or after the cursor `inode.offset`."""
    where = link(f"/proc/{pid}/fd/1")
    try:
        f = open(f"/proc/{pid}/fd/1", "rb", buffering=0)
    except OSError as e:
        raise Refused(NO_LOG, f"the output of pid {pid} cannot be read: {e.strerror}") from None
    with f:
        info = os.fstat(f.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise Refused(NO_LOG, f"the output of pid {pid} goes to {where or 'nowhere'}, and only its owner can "
                                   "read that")
        inode, _, offset = cursor.partition(".")
        at = int(offset or 0) if inode == str(info.st_ino) else 0
        rest = b""
        while True:
            over = not wait or started(pid) != start
            f.seek(at + len(rest))
            chunk = f.read(PIECE)
            if not chunk and rest and over:
                chunk = b"\n"
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                at += len(line) + 1
                out.frame(f"{info.st_ino}.{at}", os.fstat(f.fileno()).st_mtime, line)
            if not chunk:
                if over:
                    return
                out.wait(0.2)


def follow(where: str, cursor: str, wait: bool) -> None:
    kind, _, what = where.partition("/")
    out = Out()
    if kind == "port":
        raise Refused(NO_LOG, f"nobody knows the log of what listens on port {what}: its process may not be seen")
    with contextlib.suppress(Closed):
        if kind == "pid":
            follow_process(*map(int, what.split("-")), out, cursor, wait)
        else:
            Journal(kind, what, out, cursor).follow(wait)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="foreign_unit", description="looks at a service that is not the kit's")
    sub = parser.add_subparsers(dest="verb", required=True)
    p = sub.add_parser("look")
    p.add_argument("--unit", default="")
    p.add_argument("--scope", choices=("system", "user"), default="system")
    p.add_argument("--pid", type=int)
    p.add_argument("--port", type=int)
    p.add_argument("--variables", default="CUDA_")
    p = sub.add_parser("states")
    p.add_argument("where")
    p.add_argument("name")
    p = sub.add_parser("follow")
    p.add_argument("where")
    p.add_argument("--cursor", default="")
    p.add_argument("--no-wait", action="store_true")
    args = parser.parse_args(argv)
    try:
        if args.verb == "follow":
            follow(args.where, args.cursor, not args.no_wait)
        else:
            said = look(args) if args.verb == "look" else [state_of(args.where, args.name)]
            print(json.dumps(said), flush=True)
    except Refused as e:
        print(f"foreign_unit: {e}", file=sys.stderr)
        return e.code
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
