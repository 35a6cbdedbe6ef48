"""Keeps one unit (a service or a job) alive on a Linux host without systemd, in systemd's words.

    babysit.py start  NAME --root R       returns when the program was exec'ed, or could not be
    babysit.py stop   NAME --root R --timeout S      whole tree ended, port proven closed
    babysit.py states [NAME…] --root R    JSON list
    babysit.py follow NAME --root R --cursor C       frames `<cursor> <time_s> <raw line>`, until the unit
                                          has ended; --no-wait: what is there now
    babysit.py remove NAME --root R       forget a unit that does not run

One file, standard library, Python >= 3.9. `start` leaves a *keeper* behind: a child subreaper that
waits for the program (the *main* process), notes when the log grew, and records how it ended. The
program writes straight into the log, so it survives the keeper; what the keeper knew is in
R/units/NAME/:

    unit.json    what should run, written by whoever calls `start`
    state.json   what runs or ran; replaced atomically, by one writer at a time
    log, log.1   output of this start and of the one before
    log.idx      `size time` lines: the log had grown to `size` bytes at `time`
    lock         held by start, stop and remove, one at a time

A process is only ever signalled when its pid *and* start time *and* the boot id are the recorded
ones, or when it carries the random mark of this very start in its environment.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import re
import select
import signal
import sys
import time
from typing import NamedTuple

OK, USAGE, RUNNING, BUSY, UNKNOWN, DAMAGED, STILL_OPEN, NOT_STARTED, NO_SPACE, NOT_ENDED, OS_ERROR = (
    0, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18)
ALIVE = ("active", "activating", "deactivating")
MARK, ROOT = "SPECBOOK_UNIT", "SPECBOOK_ROOT"
LOGIN_ONLY = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK")   # dead once the caller hangs up
PR_SET_CHILD_SUBREAPER = 36
KILL_GRACE_S = 5.0          # from KILL until we say that a process does not end
PIECE = 64 * 1024           # longest line of a log that is kept in one piece


class Refused(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


# ---------------------------------------------------------------- processes

class Proc(NamedTuple):
    pid: int
    state: str
    ppid: int
    session: int
    threads: int
    start: int              # clock ticks after boot; with the pid it names one process

    @property
    def alive(self) -> bool:
        return self.state not in "ZX" or self.threads > 1   # a dead main thread is no dead process


def proc(pid: int) -> Proc | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            stat = f.read()
    except OSError:
        return None
    rest = stat[stat.rindex(b")") + 2:].split()             # the name may hold spaces and parentheses
    return Proc(pid, rest[0].decode(), int(rest[1]), int(rest[3]), int(rest[17]), int(rest[19]))


def table() -> dict[int, Proc]:
    found = (proc(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {p.pid: p for p in found if p}


def named(who: dict | None) -> Proc | None:
    """The living process that was recorded as {"pid", "start"}; None when gone or its pid was reused."""
    p = proc(who["pid"]) if who else None
    return p if p and p.start == who["start"] and p.alive else None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as f:
        return f.read().strip()


def environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return f.read().split(b"\0")
    except OSError:
        return []


def marked(wanted: list[str], prefix: str = "") -> list[Proc]:
    """Living processes whose environment has all of these, and one beginning with the prefix."""
    want, start, out = {os.fsencode(w) for w in wanted}, os.fsencode(prefix), []
    for p in table().values():
        env = environ(p.pid) if p.alive else []
        if env and want.issubset(env) and any(e.startswith(start) for e in env):
            out.append(p)
    return out


def below(roots: set[int]) -> list[Proc]:
    """Living descendants of these processes, without them."""
    everyone, family = table(), set(roots)
    while True:
        more = {p.pid for p in everyone.values() if p.ppid in family} - family
        if not more:
            return [everyone[pid] for pid in family - roots if everyone[pid].alive]
        family |= more


def orphans(state: dict) -> list[Proc]:
    """The tree of a start whose keeper is gone: main, marked processes, their children and sessions."""
    if state.get("boot_id") != boot_id():
        return []
    main = named(state.get("main"))
    ours = {p.pid: p for p in marked([f"{MARK}={state['name']}:{state.get('start_id')}"])}
    if main:
        ours[main.pid] = main
    if not ours:
        return []
    # A member that still sits in the keeper's session proves that this session number was not reused.
    keeper = (state.get("keeper") or {}).get("pid")
    sessions = {p.session for p in ours.values()} & ({keeper} | set(ours))
    ours.update((p.pid, p) for p in table().values() if p.session in sessions and p.alive)
    return [*ours.values(), *below(set(ours))]


def send(p: Proc, number: int) -> None:
    """Signal exactly this process: a pidfd cannot be reused between the look and the signal."""
    try:
        fd = os.pidfd_open(p.pid)
    except (AttributeError, OSError):                       # Linux before 5.3, or it is gone
        fd = None
    try:
        now = proc(p.pid)
        if now and now.start == p.start:
            os.kill(p.pid, number) if fd is None else signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        pass                                                # gone is fine; not ours shows up as not ended
    finally:
        if fd is not None:
            os.close(fd)


class Ending:
    """TERM to all of a tree, KILL after the timeout; `left` is what withstood even that."""

    def __init__(self, find, timeout_s: float):
        self.find, self.deadline = find, time.monotonic() + timeout_s
        self.killing, self.left = False, []

    def run(self, wait) -> Ending:
        told: set[tuple[int, int]] = set()
        pause = 0.01
        while True:
            self.left = self.find()
            now = time.monotonic()
            if not self.left or (self.killing and now > self.deadline + KILL_GRACE_S):
                return self
            if not self.killing and now >= self.deadline:
                self.killing = True
            for p in self.left:
                if self.killing:
                    send(p, signal.SIGKILL)
                elif (p.pid, p.start) not in told:
                    told.add((p.pid, p.start))
                    send(p, signal.SIGTERM)
                    send(p, signal.SIGCONT)                 # a stopped process would sleep through it
            wait(min(pause, max(0.01, self.deadline - now)) if not self.killing else 0.05)
            pause = min(pause * 2, 0.2)


def not_ended(left: list[Proc]) -> Refused:
    each = (f"pid {p.pid} ({words(p.pid)}) state {p.state}" for p in left)
    return Refused(NOT_ENDED, "does not end: " + ", ".join(each))


# --------------------------------------------------------------------- ports

def words(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            line = f.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        line = ""
    return "".join(c if c.isprintable() else "?" for c in line)[:200] or "?"


def listeners(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> dict[bytes, int]:
    """{socket inode: uid} of whoever listens on this TCP port, on any address."""
    found = {}
    for path in tables:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as f:
            for row in list(f)[1:]:
                col = row.split()
                if col[3] == b"0A" and int(col[1].rpartition(b":")[2], 16) == port:
                    found[col[9]] = int(col[7])
    return found


def holder(port: int | None) -> tuple[str, str] | None:
    """(who listens on the port, name of the unit it belongs to or ""); None when it is closed."""
    inodes = listeners(port) if port else {}
    if not inodes:
        return None
    links = {b"socket:[" + i + b"]" for i in inodes}
    for pid in table():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}".encode()) in links:
                        unit = [e for e in environ(pid) if e.startswith(MARK.encode() + b"=")]
                        name = unit[0].decode().partition("=")[2].partition(":")[0] if unit else ""
                        return f"pid {pid} ({words(pid)})" + (f" of unit {name}" if name else ""), name
    return f"unknown process of uid {sorted(inodes.values())[0]}", ""


# --------------------------------------------------------------------- files

def load(path: str) -> dict:
    """A JSON object. FileNotFoundError when missing, Refused when it is anything else."""
    try:
        with open(path, "rb") as f:
            data = json.loads(f.read(1 << 20))
    except (ValueError, RecursionError) as e:
        raise Refused(DAMAGED, f"{path} is damaged: {e}") from None
    if not isinstance(data, dict):
        raise Refused(DAMAGED, f"{path} is damaged: not an object")
    return data


def save(path: str, data: dict) -> None:
    """Atomic: after an error the old file is untouched."""
    new = f"{path}.new"
    try:
        with open(new, "w") as f:
            json.dump(data, f)
            f.flush()
            os.fsync(f.fileno())
        os.rename(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def load_unit(folder: str) -> dict:
    """unit.json, with every field that we use checked."""
    path = f"{folder}/unit.json"
    try:
        unit = load(path)
    except FileNotFoundError:
        raise Refused(UNKNOWN, f"no unit {os.path.basename(folder)!r}: {path} is missing") from None
    unit = {"env": {}, "env_file": "", "cwd": "", "kind": "service", "port": None, "stop_timeout_s": 10.0,
            "about": {}, **unit}

    def text(v):
        return isinstance(v, str) and "\0" not in v

    def number(v, kind):
        return isinstance(v, kind) and not isinstance(v, bool) and v >= 0
    rules = {
        "argv": lambda v: isinstance(v, list) and v and v[0] and all(map(text, v)),
        "env": lambda v: isinstance(v, dict) and all(text(k) and text(x) and k and "=" not in k for k, x in v.items()),
        "cwd": text,
        "env_file": text,
        "kind": ("service", "job").__contains__,
        "port": lambda v: v is None or number(v, int) and 0 < v < 65536,
        "stop_timeout_s": lambda v: number(v, (int, float)),
        "about": lambda v: isinstance(v, dict),
        "digest": lambda v: text(v) and v,
        "name": os.path.basename(folder).__eq__,
    }
    for field, good in rules.items():
        if field not in unit or not good(unit[field]):
            raise Refused(DAMAGED, f"{path} is damaged: field {field!r} is {unit.get(field)!r}"[:500])
    return unit


def load_state(folder: str) -> dict:
    """state.json; FileNotFoundError before the first start."""
    path = f"{folder}/state.json"
    state = load(path)

    def process(v):
        return v is None or isinstance(v, dict) and all(type(v.get(k)) is int for k in ("pid", "start"))
    good = state.get("name") == os.path.basename(folder) \
        and all(isinstance(state.get(k), str) for k in ("active", "sub", "result", "digest")) \
        and all(isinstance(state.get(k), (str, type(None))) for k in ("start_id", "previous")) \
        and isinstance(state.get("port"), (int, type(None))) \
        and process(state.get("main")) and process(state.get("keeper"))
    if not good:
        raise Refused(DAMAGED, f"{path} is damaged: not the state of this unit")
    return state


@contextlib.contextmanager
def locked(folder: str):
    """One start, stop or remove at a time; waits for its turn."""
    path = f"{folder}/lock"
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            raise Refused(UNKNOWN, f"no unit {os.path.basename(folder)!r}: {folder} is missing") from None
        fcntl.flock(fd, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                break
        os.close(fd)                                        # the unit was removed while we waited
    try:
        yield fd
    finally:
        os.close(fd)


# --------------------------------------------------------------------- state

def look(folder: str) -> dict:
    """The state as recorded, corrected by what is true now. Never raises for a damaged file."""
    name = os.path.basename(folder)
    blank = {"name": name, "active": "inactive", "sub": "dead", "result": "", "about": {}}
    if not os.path.isdir(folder):
        return {**blank, "active": "not-found"}
    damaged = {**blank, "active": "failed", "sub": "failed", "result": "damaged"}
    try:
        state = load_state(folder)
    except (Refused, OSError) as e:
        fresh = isinstance(e, FileNotFoundError)
        try:
            unit = load_unit(folder)
        except (Refused, OSError) as e2:
            return {**damaged, "error": str(e2 if fresh else e)}
        facts = {k: unit[k] for k in ("digest", "kind", "port", "about")}
        return {**blank, **facts} if fresh else {**damaged, **facts, "error": str(e)}
    if state["active"] in ALIVE:
        main = named(state.get("main")) if state.get("boot_id") == boot_id() else None
        if state.get("boot_id") != boot_id():
            state.update(active="failed", sub="failed", result="lost-at-reboot")
        elif named(state.get("keeper")):
            if state["active"] == "active" and not main:    # its keeper is about to record the end
                state.update(active="deactivating", sub="stop-sigterm")
        elif main:
            state.update(active="active", sub="running", result="lost")
        else:
            state.update(active="failed", sub="failed", result="lost")
        state["pid"] = main.pid if main else None
    return state


def remains(folder: str, state: dict) -> list[Proc]:
    """Processes of a unit that no keeper looks after any more."""
    if state.get("result") == "damaged":
        return marked([f"{ROOT}={os.path.dirname(os.path.dirname(folder))}"], f"{MARK}={state['name']}:")
    return orphans(state)


# -------------------------------------------------------------------- keeper

def secrets(path: str) -> dict[str, str]:
    """`NAME="value"` lines; the value is escaped as in JSON and as systemd reads it."""
    if not path:
        return {}
    with open(path, encoding="utf-8") as f:
        pairs = [line.rstrip("\n").partition("=") for line in f if line.strip()]
    return {name: json.loads(value) for name, _, value in pairs}


class Keeper:
    """The process that stays: parent of main, adopter of what main leaves behind."""

    WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}

    def __init__(self, folder: str, unit: dict, previous: str | None):
        self.folder, self.unit, self.previous = folder, unit, previous
        self.state: dict = {}
        self.unsaved = False
        self.status: int | None = None                      # of main, as waitpid gives it
        self.asked: dict | None = None                      # the stop request in force
        self.stopped = False                                # it came while main still ran
        self.ending: Ending | None = None
        self.size, self.grew_at, self.torn = 0, 0.0, False

    # -- start

    def start(self) -> None:
        """Everything up to exec. Raises OSError or Refused when main does not run."""
        unit, folder = self.unit, self.folder
        me = proc(os.getpid())
        self.state = {k: unit[k] for k in ("name", "digest", "kind", "port", "about", "argv", "cwd")}
        self.state.update(active="activating", sub="start", result="success", boot_id=boot_id(), start_id=None,
                          previous=self.previous, keeper={"pid": me.pid, "start": me.start}, main=None, pid=None,
                          started_at=time.time(), ended_at=None, exit_code=None, signal=None, stopped_by=None)
        save(f"{folder}/state.json", self.state)            # start_id None: the log is being exchanged
        for name in ("log", "log.idx"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{folder}/{name}", f"{folder}/{name}.1")
        append = os.O_CREAT | os.O_APPEND
        self.log = os.open(f"{folder}/log", append | os.O_RDWR, 0o644)
        self.index = os.open(f"{folder}/log.idx", append | os.O_WRONLY, 0o644)
        self.state["start_id"] = os.urandom(6).hex()
        self.exec_main()

    def exec_main(self) -> None:
        """Fork main, record it, and only then let it exec; learn from a CLOEXEC pipe whether it did."""
        go_read, go_write = os.pipe()
        report_read, report_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            self.become_main(go_read, report_write)         # never returns
        os.close(go_read)
        os.close(report_write)
        os.setpgid(pid, pid)
        main = proc(pid)
        self.state.update(main={"pid": pid, "start": main.start}, pid=pid)
        try:
            save(f"{self.folder}/state.json", self.state)
        except OSError:
            os.close(go_write)                              # main sees the end of the pipe and leaves
            os.waitpid(pid, 0)
            raise
        os.write(go_write, b"!")
        os.close(go_write)
        said = b""
        while True:
            chunk = os.read(report_read, 4096)
            if not chunk:
                break
            said += chunk
        os.close(report_read)
        if said:
            os.waitpid(pid, 0)
            code, _, what = said.decode("utf-8", "replace").partition(" ")
            self.index_log()
            self.put(active="failed", sub="failed", result="exit-code", exit_code=int(code), pid=None,
                     ended_at=time.time(), error=what)
            raise Refused(NOT_STARTED, what)
        self.put(active="active", sub="running", started_at=time.time())

    def become_main(self, go: int, report: int) -> None:
        code, what = 203, ""
        try:
            if not os.read(go, 1):
                os._exit(203)
            for number in signal.valid_signals():
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)   # e.g. Python ignores SIGPIPE, nohup SIGHUP
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            unit = self.unit
            env = {k: v for k, v in os.environ.items() if k not in LOGIN_ONLY}
            env.update(unit["env"])
            env.update(secrets(unit["env_file"]))
            env[MARK] = f"{unit['name']}:{self.state['start_id']}"
            env[ROOT] = os.path.dirname(os.path.dirname(self.folder))
            os.dup2(self.log, 1)
            os.dup2(self.log, 2)                            # 0 is /dev/null already
            try:
                os.chdir(unit["cwd"] or os.path.expanduser("~"))
            except OSError as e:
                code, what = 200, f"cannot enter {unit['cwd']!r}: {e.strerror} (200/CHDIR)"
                raise
            try:
                os.execvpe(unit["argv"][0], unit["argv"], env)
            except OSError as e:
                what = f"cannot run {unit['argv'][0]!r}: {e.strerror} (203/EXEC)"
                raise
        except BaseException as e:
            what = what or f"cannot run: {e} (203/EXEC)"
            for fd, text in ((2, f"babysit: {what}\n"), (report, f"{code} {what}")):
                with contextlib.suppress(OSError):
                    os.write(fd, text.encode("utf-8", "replace"))
        os._exit(code)

    # -- keep

    def keep(self) -> None:
        """Until main and all it left behind have ended, and that is recorded."""
        self.grew_at = time.monotonic()                     # a start has much to say
        while self.status is None and self.asked is None:
            self.wait(0.1 if time.monotonic() < self.grew_at + 2 else 0.5)
        while self.children():                              # main, or what it left behind
            if not self.ending:
                timeout = self.asked["timeout_s"] if self.asked else self.unit["stop_timeout_s"]
                self.put(active="deactivating", sub="stop-sigterm", stopped_by=self.asked and self.asked["by"])
                self.ending = Ending(lambda: below({os.getpid()}), timeout)
            if self.ending.run(self.wait).left:             # e.g. state D, inside a driver
                self.put(sub="stop-sigkill", error=str(not_ended(self.ending.left)))
                self.wait(1.0)
                self.ending.deadline = time.monotonic()
            self.wait(0.01)
        self.index_log()
        self.put(**self.outcome())
        tries = 0
        while self.unsaved and not (self.asked and tries >= 3):     # a full disk: stay until there is room,
            self.wait(1.0)                                          # or somebody wants us gone
            tries += 1

    def outcome(self) -> dict:
        code = os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None
        result = "signal" if number else "exit-code" if code else "success"
        if self.stopped and self.ending and self.ending.killing:
            result = "timeout"
        elif self.stopped and self.unit["kind"] == "service":
            result = "success"                              # a job that was stopped did not do its work
        ok = result == "success" or self.stopped and result != "timeout"
        return {"active": "inactive" if ok else "failed", "sub": "dead" if ok else "failed", "result": result,
                "exit_code": code, "signal": signal_name(number), "pid": None, "ended_at": time.time(), "error": None,
                "stopped_by": self.asked and self.asked["by"]}

    def wait(self, seconds: float) -> None:
        """Sleep, but serve: reap children, take a stop request, note growth of the log."""
        info = signal.sigtimedwait(self.WATCHED, seconds)
        if info and info.si_signo != signal.SIGCHLD:
            self.asked = self.request(info)
            self.stopped = self.stopped or self.status is None
            if self.ending:                                 # asked again, perhaps with less patience
                self.ending.deadline = min(self.ending.deadline, time.monotonic() + self.asked["timeout_s"])
        self.children()
        self.index_log()
        if self.unsaved:
            self.put()

    def children(self) -> bool:
        """Reap; is there still one, living or not? Only the kernel's "no children" is a proof."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self.state["main"]["pid"]:
                self.status = status

    def request(self, info) -> dict:
        """Who asked for the stop: the file that `stop` left, else whoever sent the signal."""
        try:
            asked = load(f"{self.folder}/stop.json")
            if asked.get("start_id") == self.state["start_id"]:
                return {"by": str(asked["by"]), "timeout_s": float(asked["timeout_s"])}
        except (OSError, Refused, KeyError, TypeError, ValueError):
            pass                                            # no room for the file: the signal alone still stops
        return {"by": f"signal from pid {info.si_pid} uid {info.si_uid}", "timeout_s": self.unit["stop_timeout_s"]}

    def put(self, **changes) -> None:
        """Record; an error is tried again at every `wait` and never touches main."""
        self.state.update(changes)
        try:
            save(f"{self.folder}/state.json", self.state)
            self.unsaved = False
        except OSError:
            self.unsaved = True

    def index_log(self) -> None:
        seen = os.fstat(self.log)
        if seen.st_size == self.size:
            return
        line = b"%s%d %.3f\n" % (b"\n" if self.torn else b"", seen.st_size, seen.st_mtime)
        try:
            self.torn = os.write(self.index, line) < len(line)
            if not self.torn:
                self.size, self.grew_at = seen.st_size, time.monotonic()
        except OSError:
            pass                                            # full disk: these lines get their time later


def signal_name(number: int | None) -> str | None:
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return f"SIG{number}"                               # a real-time signal


def keeper_main(folder: str, unit: dict, previous: str | None, lock: int, report: int) -> None:
    """In the new process: cut every tie to the caller, start main, report, keep. Never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(f"{folder}/keeper.err", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        for fd, target in ((null, 0), (null, 1), (errors, 2)):
            os.dup2(fd, target)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in (lock, report):
                with contextlib.suppress(OSError):          # the listing's own
                    os.close(fd)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)       # ignored, it would reap for us
        signal.pthread_sigmask(signal.SIG_BLOCK, Keeper.WATCHED | {signal.SIGHUP, signal.SIGPIPE})
        import ctypes  # here, since it is slow to load and nobody else needs it
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl: cannot become subreaper")
        keeper = Keeper(folder, unit, previous)
        why, what = OK, ""
        try:
            keeper.start()
        except Refused as e:
            why, what = e.code, str(e)
        except OSError as e:
            why, what = os_error(e)
            keeper.put(active="failed", sub="failed", result="resources", pid=None, ended_at=time.time(), error=what)
        os.write(report, f"{why} {what}".encode("utf-8", "replace"))
        os.close(report)
        os.close(lock)
        if why == OK:
            keeper.keep()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()                               # into keeper.err
        sys.stderr.flush()
    os._exit(code)


def os_error(e: OSError) -> tuple[int, str]:
    full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return (NO_SPACE if full else OS_ERROR), f"{e.filename or 'the unit'}: {e.strerror or e}"


# ------------------------------------------------------------------ commands

def start(folder: str) -> None:
    with locked(folder) as lock:
        unit, state = load_unit(folder), look(folder)
        name = unit["name"]
        if state["active"] == "deactivating":
            state = until_ended(folder, unit["stop_timeout_s"] + KILL_GRACE_S)      # then a new start is welcome
        if state["active"] in ALIVE:
            if state.get("digest") != unit["digest"]:
                raise Refused(RUNNING, f"unit {name} is {state['active']} (pid {state.get('pid')}) with other settings")
            return
        left = remains(folder, state)
        if left and state["result"] == "damaged":
            raise Refused(DAMAGED, f"{state['error']}; and pid {left[0].pid} ({words(left[0].pid)}) of it still runs")
        if left:
            end_orphans(folder, state, unit["stop_timeout_s"])
        busy = holder(unit["port"])
        if busy:
            raise Refused(BUSY, f"port {unit['port']} is busy: {busy[0]}")
        code, what = launch(folder, unit, state.get("start_id"), lock)
        if code:
            raise Refused(code, what)


def launch(folder: str, unit: dict, previous: str | None, lock: int) -> tuple[int, str]:
    """Double fork; the keeper's report as (exit code, message)."""
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            keeper_main(folder, unit, previous, lock, write)
        os._exit(0)
    os.close(write)
    os.waitpid(middle, 0)
    with open(read, "rb") as f:
        code, _, what = f.read().decode("utf-8", "replace").partition(" ")
    if not code:
        return OS_ERROR, f"the babysitter ended early; see {folder}/keeper.err"
    return int(code), what


def until_ended(folder: str, seconds: float) -> dict:
    """The state once nothing runs and that is recorded (or cannot be), at the latest after so long."""
    deadline, empty_since = time.monotonic() + seconds, None
    while True:
        state, now = look(folder), time.monotonic()
        keeper = named(state.get("keeper"))
        if state["active"] not in ALIVE or not keeper or now > deadline:
            return state
        empty_since = None if below({keeper.pid}) else empty_since or now
        if empty_since and now > empty_since + 1.0:         # its keeper finds no room to write
            return state
        time.sleep(0.03)


def end_orphans(folder: str, state: dict, timeout_s: float) -> None:
    """What the keeper would have done; then record it."""
    ran = state["active"] in ALIVE
    ending = Ending(lambda: remains(folder, state), timeout_s).run(time.sleep)
    if ending.left:
        raise not_ended(ending.left)
    if ran:
        ok = not ending.killing
        result = "timeout" if not ok else "success" if state.get("kind") == "service" else "lost"
        state = {**state, "active": "inactive" if ok else "failed", "sub": "dead" if ok else "failed", "pid": None,
                 "result": result, "ended_at": time.time(), "stopped_by": asker()}
        try:
            save(f"{folder}/state.json", state)
        except OSError as e:                                # it has ended all the same
            print(f"babysit: not recorded: {os_error(e)[1]}", file=sys.stderr)


def asker() -> str:
    client = os.environ.get("SSH_CLIENT", "").partition(" ")[0]
    return f"{os.environ.get('USER') or 'uid ' + str(os.getuid())} from {client or 'this host'}"


def stop(folder: str, timeout_s: float | None) -> None:
    with locked(folder):
        state = look(folder)
        if timeout_s is None:
            timeout_s = 10.0
            with contextlib.suppress(Refused):
                timeout_s = load_unit(folder)["stop_timeout_s"]
        ran = state["active"] in ALIVE
        keeper = named(state.get("keeper")) if ran else None
        if keeper:
            with contextlib.suppress(OSError):              # no room: the signal alone still stops
                save(f"{folder}/stop.json", {"start_id": state.get("start_id"), "by": asker(),
                                             "timeout_s": timeout_s, "at": time.time()})
            send(keeper, signal.SIGTERM)
            state = until_ended(folder, timeout_s + KILL_GRACE_S + 2)
            left = below({keeper.pid}) if named(state.get("keeper")) else []
            if left:
                raise not_ended(left)
        left = remains(folder, state)
        if left or state["active"] in ALIVE:
            ran = True
            end_orphans(folder, state, timeout_s)
        prove_closed(folder, state, ran)


def prove_closed(folder: str, state: dict, ran: bool) -> None:
    """The port is closed; where nothing of ours ran, another unit of ours may have it."""
    port = state.get("port")
    deadline = time.monotonic() + 1.0
    while True:
        busy = holder(port)
        if not busy or (not ran and busy[1] not in ("", state["name"])):
            return
        if time.monotonic() > deadline:
            raise Refused(STILL_OPEN, f"unit {state['name']} has ended, but port {port} is still open: {busy[0]}")
        time.sleep(0.05)


def states(units: str, names: list[str]) -> list[dict]:
    if not names and os.path.isdir(units):      # a folder with none of these: a full disk came before the unit
        names = sorted(n for n in os.listdir(units) if not n.startswith(".")
                       and any(os.path.exists(f"{units}/{n}/{f}") for f in ("unit.json", "state.json", "lock")))
    return [look(f"{units}/{n}") for n in names]


def remove(folder: str) -> None:
    import shutil
    if not os.path.isdir(folder):
        return
    with locked(folder):
        state = look(folder)
        left = [] if state["active"] in ALIVE else remains(folder, state)
        if state["active"] in ALIVE or left:
            pid = state.get("pid") or (left[0].pid if left else "?")
            raise Refused(RUNNING, f"unit {state['name']} still runs (pid {pid}); stop it first")
        parent, name = os.path.split(folder)
        gone = f"{parent}/.{name}.{os.getpid()}"
        os.rename(folder, gone)                             # at once for everybody else
        shutil.rmtree(gone)


# -------------------------------------------------------------------- follow

class Closed(Exception):
    """Nobody reads our output any more."""


class Out:
    """Standard output that notices when its reader is gone, also while there is nothing to say."""

    def __init__(self, fd: int = 1):
        self.fd, self.poll = fd, select.poll()
        self.poll.register(fd, 0)                           # errors and hang-up are always told

    def wait(self, seconds: float) -> None:
        if self.poll.poll(seconds * 1000):
            raise Closed

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.fd, rest):]
            except BlockingIOError:
                select.select([], [self.fd], [])
            except (BrokenPipeError, ConnectionResetError):
                raise Closed from None


class Times:
    """When the log had grown to a size, read forward from log.idx; else the log's own last change."""

    def __init__(self, index: int | None, log: int):
        self.index, self.log = index, log
        self.rest, self.known = b"", []                     # known: [(size, time)…], nearest last
        self.at = 0

    def of(self, end: int) -> float:
        while True:
            while self.known and self.known[-1][0] < end:
                self.known.pop()
            if self.known:
                return self.known[-1][1]
            if not self.more():
                return os.fstat(self.log).st_mtime

    def more(self) -> bool:
        chunk = os.pread(self.index, PIECE, self.at) if self.index is not None else b""
        self.at += len(chunk)
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):           # torn by a full disk
                size, when = line.split()
                self.known.append((int(size), float(when)))
        self.known.reverse()                                # was empty
        return bool(chunk)


def shown(line: bytes) -> bytes:
    """Of a progress bar (carriage returns) what would be left on the screen."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def split(buf: bytes, pos: int) -> tuple[list[tuple[int, bytes]], bytes]:
    """Whole lines of a buffer that begins at offset pos: ([(end offset, line)…], rest).

    A line over PIECE bytes comes in pieces, cut between UTF-8 characters.
    """
    out, at = [], 0
    while True:
        end = buf.find(b"\n", at, at + PIECE + 1)
        if end >= 0:
            line, at = buf[at:end], end + 1
        elif len(buf) - at > PIECE:
            end = at + PIECE
            while end > at + PIECE - 3 and 0x80 <= buf[end] < 0xC0:
                end -= 1
            line, at = buf[at:end], end
        else:
            return out, buf[at:]
        out.append((pos + at, shown(line)))


def pump(log: int, times: Times, start_id: str, pos: int, ended, out: Out, wait: bool) -> None:
    """Frames from offset pos on, until `ended()` was true before the last read (or, not to wait, until here)."""
    buf, pause, flushed = b"", 0.05, time.monotonic()

    def emit(frames: list[tuple[int, bytes]]) -> None:
        out.write(b"".join(b"%s.%d %.3f %s\n" % (start_id.encode(), end, times.of(end), line) for end, line in frames))
    while True:
        done, grew = ended(), False
        if os.fstat(log).st_size < pos:                     # somebody emptied the log
            buf, pos, times = b"", 0, Times(None, log)
        while True:
            chunk = os.pread(log, PIECE, pos + len(buf))
            if not chunk:
                break
            grew = True
            whole = len(buf) + len(chunk)
            frames, buf = split(buf + chunk, pos)
            pos += whole - len(buf)
            emit(frames)
        if done and buf:
            emit([(pos + len(buf), shown(buf))])
        if done or not wait:
            return
        cut = buf.rfind(b"\r") + 1
        if cut and time.monotonic() > flushed + 0.5:        # a progress bar lives: show how far it is
            flushed = time.monotonic()
            if shown(buf[:cut]):
                emit([(pos + cut, shown(buf[:cut]))])
                buf, pos = buf[cut:], pos + cut
        pause = 0.05 if grew else min(pause * 1.5, 0.2)
        out.wait(pause)


def follow(folder: str, cursor: str, wait: bool) -> None:
    known, _, offset = cursor.rpartition(".")
    if cursor and not (known and offset.isdigit()):
        raise Refused(USAGE, f"no cursor of ours: {cursor!r}")
    out = Out()
    while True:                                             # open a log that surely belongs to its start_id
        state = look(folder)
        if state["active"] == "not-found":
            raise Refused(UNKNOWN, f"no unit {state['name']!r}: {folder} is missing")
        new, old = opened(folder, ""), opened(folder, ".1")
        start_id = state.get("start_id")
        if look(folder).get("start_id") == start_id and (start_id or state["active"] not in ALIVE):
            break
        for fd in (*new, *old):
            if fd is not None:
                os.close(fd)
        out.wait(0.02)

    def ended() -> bool:
        now = look(folder)
        return now["active"] not in ALIVE or now.get("start_id") != start_id
    with contextlib.suppress(Closed):
        if known and known == state.get("previous") and old[0] is not None:
            pump(old[0], Times(old[1], old[0]), known, int(offset), lambda: True, out, wait)
        if new[0] is not None:
            start_id = start_id or "unknown"
            pump(new[0], Times(new[1], new[0]), start_id, int(offset) if known == start_id else 0, ended, out, wait)


def opened(folder: str, suffix: str) -> list[int | None]:
    fds: list[int | None] = []
    for name in ("log", "log.idx"):
        try:
            fds.append(os.open(f"{folder}/{name}{suffix}", os.O_RDONLY))
        except FileNotFoundError:
            fds.append(None)
    return fds


# ---------------------------------------------------------------------- main

def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="babysit", description="keeps units alive without systemd")
    sub = parser.add_subparsers(dest="verb", required=True)
    for verb in ("start", "stop", "states", "follow", "remove"):
        p = sub.add_parser(verb)
        p.add_argument("--root", required=True, help="folder that the kit owns")
        p.add_argument("name", nargs="*" if verb == "states" else None)
        if verb == "stop":
            p.add_argument("--timeout", type=float, help="seconds between TERM and KILL")
        if verb == "follow":
            p.add_argument("--cursor", default="", help="continue after this frame")
            p.add_argument("--no-wait", action="store_true", help="print what is there, then end")
    return parser.parse_args(argv)


def reported(program: str, work) -> int:
    """Do it; what goes wrong is one line on stderr and an exit code."""
    try:
        work()
        return OK
    except Refused as e:
        code, what = e.code, str(e)
    except OSError as e:
        code, what = os_error(e)
    except KeyboardInterrupt:
        code, what = 130, "interrupted"
    print(f"{program}: {' '.join(what.split())}", file=sys.stderr)
    return code


def check_names(names: list[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
            raise Refused(USAGE, f"{name!r} is no unit name: lower-case letters, digits, dashes")


def main(argv: list[str]) -> int:
    while True:                                             # a caller may have closed 0, 1 or 2
        spare = os.open(os.devnull, os.O_RDWR)
        if spare > 2:
            os.close(spare)
            break
    args = arguments(argv)
    units = os.path.join(os.path.abspath(args.root), "units")
    names = args.name if isinstance(args.name, list) else [args.name]

    def work() -> None:
        check_names(names)
        folder = f"{units}/{names[0]}" if names else units
        if args.verb == "start":
            start(folder)
        elif args.verb == "stop":
            stop(folder, args.timeout)
        elif args.verb == "remove":
            remove(folder)
        elif args.verb == "follow":
            follow(folder, args.cursor, not args.no_wait)
        if args.verb in ("start", "stop", "states"):
            print(json.dumps(states(units, names)), flush=True)
    return reported("babysit", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
