"""Keeps one unit (a service or a job) under systemd, with the verbs, exit codes and JSON of babysit.py.

    unitctl.py start  NAME --root R --scope S      verified, installed, started; returns when it runs or failed
    unitctl.py stop   NAME --root R --scope S --timeout T     ended, and the port proven closed
    unitctl.py states [NAME…] --root R --scope S   JSON list
    unitctl.py follow NAME --root R --scope S --cursor C      frames `<cursor> <time_s> <raw line>` of the journal
    unitctl.py remove NAME --root R --scope S      forget a unit that does not run

Scope `system` needs root for start, stop and remove (and for following, where the journal is not readable);
scope `user` needs none, but lingering. Standard library, Python >= 3.9; babysit.py and journal.py lie beside it. What
the caller wrote, and what is known of the last run, is in R/units/NAME/:

    specbook-NAME.service   as it should be installed
    systemd.json            digest, kind, port, about, root
    ended                   `time result code status invocation` of the last end, by the unit itself
    invocation              of the last start: which lines of the journal are its own

Start is never trusted: `systemctl show` is asked until the unit has settled. A file of that name that was not
written by this kit, for this root, is never touched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import babysit  # noqa: E402
from babysit import BUSY, DAMAGED, NOT_ENDED, NOT_STARTED, RUNNING, STILL_OPEN, UNKNOWN, Refused  # noqa: E402
from journal import Reader, parsed  # noqa: E402

NOT_OURS, BAD_UNIT, NO_SYSTEMD = 19, 20, 21
ALIVE = ("active", "activating", "deactivating", "reloading")
SETTLE_S = 15.0             # from `start` until the program was exec'ed, or could not be
ASKED = ("ActiveState", "SubState", "Result", "MainPID", "ExecMainCode", "ExecMainStatus", "NRestarts", "LoadState",
         "InvocationID", "NeedDaemonReload", "UnitFileState", "ExecMainStartTimestampMonotonic", "DropInPaths")
# systemd's own exit codes (man systemd.exec), those that a user of this kit can meet
STATUS = {200: "the working folder cannot be entered (200/CHDIR)", 203: "the program cannot be run (203/EXEC)",
          209: "its output cannot be opened (209/STDOUT)", 214: "its priority cannot be set (214/SETSCHEDULER)",
          216: "its group is unknown (216/GROUP)", 217: "its user is unknown (217/USER)",
          226: "its file system view cannot be made (226/NAMESPACE)"}
MARK = "X-Specbook"


class Systemd:
    """One scope of systemd on this host, and the kit's folder."""

    def __init__(self, scope: str, root: str):
        self.scope, self.root, self.units = scope, root, os.path.join(root, "units")
        self.options = ["--user"] if scope == "user" else []
        self.files = "/etc/systemd/system" if scope == "system" else os.path.join(
            os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "systemd", "user")
        bus = f"/run/user/{os.getuid()}"
        if scope == "user" and not os.environ.get("XDG_RUNTIME_DIR") and os.path.isdir(bus):
            os.environ["XDG_RUNTIME_DIR"] = bus

    def call(self, *words: str, check: bool = True) -> str:
        """systemctl; Refused where systemd itself cannot be asked."""
        try:
            done = subprocess.run(["systemctl", *self.options, "--no-pager", "--no-ask-password", *words],
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=90)
        except FileNotFoundError:
            raise Refused(NO_SYSTEMD, "this host has no systemctl") from None
        except subprocess.TimeoutExpired:
            raise Refused(NO_SYSTEMD, f"systemctl {words[0]} gave no answer within 90 s") from None
        said = done.stderr.decode("utf-8", "replace").strip()
        if re.search("Failed to connect to (user scope |system scope )?bus|has not been booted with systemd", said):
            raise Refused(NO_SYSTEMD, f"systemd ({self.scope}) cannot be asked: {said.splitlines()[0]}")
        if check and done.returncode:
            denied = "Access denied" in said or "authentication required" in said
            raise Refused(babysit.OS_ERROR if denied else NOT_STARTED, f"systemctl {words[0]}: {said or 'failed'}")
        return done.stdout.decode("utf-8", "replace")

    def show(self, name: str) -> dict[str, str]:
        text = self.call("show", service(name), "--property", ",".join(ASKED))
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def path(self, name: str) -> str:
        return f"{self.files}/{service(name)}"

    def installed(self, name: str) -> str | None:
        """The text of the unit file that is there; None where there is none."""
        try:
            with open(self.path(name), encoding="utf-8", errors="surrogateescape") as f:
                return f.read()
        except FileNotFoundError:
            return None

    def require_ours(self, name: str) -> str | None:
        """The installed text, if it is ours or there is none. Refused: somebody else's."""
        text = self.installed(name)
        if text is not None and marked_root(text) != self.root:
            whose = marked_root(text)
            raise Refused(NOT_OURS, f"{self.path(name)} is not ours: " +
                          (f"it belongs to the kit's folder {whose}" if whose else "it was not written by this kit"))
        return text


def service(name: str) -> str:
    return f"specbook-{name}.service"


def marked_root(text: str) -> str | None:
    """Whose it is: `Root=` of the section that systemd passes over."""
    found = re.search(rf"^\[{MARK}\]\n(?:.*\n)*?Root=(.*)$", text, re.M)
    return json.loads(found[1]) if found else None


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def wanted(folder: str) -> tuple[dict, str]:
    """(systemd.json, unit text) as the caller wrote them."""
    name = os.path.basename(folder)
    if not os.path.exists(f"{folder}/systemd.json"):
        raise Refused(UNKNOWN, f"no unit {name!r}: {folder}/systemd.json is missing")
    about, text = babysit.load(f"{folder}/systemd.json"), read(f"{folder}/{service(name)}")
    if about.get("name") != name or not isinstance(about.get("digest"), str) or not text:
        raise Refused(DAMAGED, f"{folder}: systemd.json or {service(name)} is damaged")
    return about, text


# --------------------------------------------------------------------- state

def look(sd: Systemd, name: str) -> dict:
    """The state in systemd's words; what systemd has forgotten comes from the unit's own record."""
    folder = f"{sd.units}/{name}"
    state: dict = {"name": name, "active": "not-found", "sub": "dead", "result": "", "about": {}}
    try:
        about, _ = wanted(folder)
    except (Refused, OSError) as e:
        if os.path.isdir(folder):
            state.update(active="failed", sub="failed", result="damaged", error=str(e))
        return state
    state.update({k: about.get(k) for k in ("digest", "kind", "port")}, about=about.get("about") or {})
    text = sd.installed(name)
    if text is None:
        return {**state, "active": "inactive"}
    if marked_root(text) != sd.root:
        return {**state, "active": "failed", "sub": "failed", "result": "not-ours",
                "error": f"{sd.path(name)} was replaced by a file that is not ours"}
    now = sd.show(name)
    mono = int(now.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    started = time.time() - (uptime() - mono) if mono else None
    state.update(active=now["ActiveState"], sub=now["SubState"], result=now["Result"], text=text, started_at=started,
                 pid=int(now.get("MainPID") or 0) or None, restarts=int(now.get("NRestarts") or 0),
                 dropins=[p for p in now.get("DropInPaths", "").split() if f"/{service(name)}.d/" in p])
    code, status = now.get("ExecMainCode"), int(now.get("ExecMainStatus") or 0)
    if code == "1":
        state["exit_code"] = status
    elif code in ("2", "3"):
        state["signal"] = babysit.signal_name(status)
    if now.get("SubState") == "exited":                     # a job that is done: it stays loaded to be asked
        state.update(active="inactive", sub="dead", pid=None)
    if state["active"] not in ALIVE:
        recall(state, folder)
    if now.get("NeedDaemonReload") == "yes":
        state["error"] = "its file was changed after systemd read it"
    return state


def recall(state: dict, folder: str) -> None:
    """How it ended: systemd forgets units that are not loaded, and all at a reboot."""
    words = read(f"{folder}/ended").split()
    if len(words) >= 4:
        when, result, code, status = words[:4]
        with contextlib.suppress(ValueError):
            state["ended_at"] = float(when)
        if not state.get("exit_code") and not state.get("signal"):
            if code == "exited" and status.isdigit():
                state["exit_code"] = int(status)
            elif code in ("killed", "dumped"):
                state["signal"] = f"SIG{status}"
            if result != "success":
                state.update(active="failed", sub="failed", result=result)
    elif read(f"{folder}/invocation") and not state.get("started_at"):
        state.update(active="failed", sub="failed", result="lost-at-reboot")     # started, and never ended


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def states(sd: Systemd, names: list[str]) -> list[dict]:
    if not names and os.path.isdir(sd.units):
        names = sorted(n for n in os.listdir(sd.units) if os.path.exists(f"{sd.units}/{n}/systemd.json"))
    return [look(sd, n) for n in names]


# ------------------------------------------------------------------ commands

def start(sd: Systemd, name: str) -> None:
    folder = f"{sd.units}/{name}"
    about, text = wanted(folder)
    before, state = sd.require_ours(name), look(sd, name)
    if state["active"] in ALIVE:
        if before != text:
            raise Refused(RUNNING, f"unit {name} is {state['active']} (pid {state.get('pid')}) with other settings")
        return
    busy = babysit.holder(about.get("port"))
    if busy:
        raise Refused(BUSY, f"port {about['port']} is busy: {busy[0]}")
    verify(sd, name)
    install(sd, name, text)
    for old in ("ended", "invocation"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{old}")
    sd.call("reset-failed", service(name), check=False)     # else earlier starts count against the start limit
    if "\n[Install]\n" in text:
        sd.call("enable", service(name))
    sd.call("start", "--no-block", service(name))
    settle(sd, name)


def verify(sd: Systemd, name: str) -> None:
    """systemd-analyze's opinion of the file, before it is installed: where the caller wrote it."""
    folder = f"{sd.units}/{name}"
    try:
        done = subprocess.run(["systemd-analyze", *sd.options, "verify", f"{folder}/{service(name)}"],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return                                              # a host without it: systemd itself will say
    said = [line.replace(f"{folder}/", "") for line in done.stderr.decode("utf-8", "replace").splitlines()
            if service(name) in line]
    if done.returncode and said:
        raise Refused(BAD_UNIT, "; ".join(said))


def install(sd: Systemd, name: str, text: str) -> None:
    if sd.installed(name) != text:
        os.makedirs(sd.files, exist_ok=True)
        fresh = f"{sd.path(name)}.new"
        try:
            write(fresh, text)
            os.replace(fresh, sd.path(name))
        except OSError:                                     # a full disk: nothing half-written stays
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise
    sd.call("daemon-reload")


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())


def settle(sd: Systemd, name: str) -> None:
    """Until the program was exec'ed (Type=exec), or that failed."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = sd.show(name)
        if now.get("InvocationID"):
            with contextlib.suppress(OSError):
                write(f"{sd.units}/{name}/invocation", now["InvocationID"])
        status, looping = int(now.get("ExecMainStatus") or 0), now["SubState"] == "auto-restart"
        if now["ActiveState"] == "active" or now["ActiveState"] == "inactive" and now["Result"] == "success" \
                and now.get("ExecMainCode") not in ("", "0"):
            return
        if now["ActiveState"] == "failed" or looping:
            if status in STATUS and now.get("ExecMainCode") == "1":
                raise Refused(NOT_STARTED, f"unit {name}: {STATUS[status]}{last_words(sd, now)}")
            if now["Result"] in ("resources", "start-limit-hit", "protocol"):
                raise Refused(NOT_STARTED, f"unit {name} was not started: {now['Result']}{last_words(sd, now)}")
            return                                          # it ran, and ended: its state says how
        if time.monotonic() > deadline:
            raise Refused(NOT_STARTED, f"unit {name} is still {now['ActiveState']} ({now['SubState']}) after "
                          f"{SETTLE_S:.0f} s")
        time.sleep(0.05)


def last_words(sd: Systemd, now: dict) -> str:
    """What systemd said about this start, for the message."""
    said = [text for _, _, text in entries(sd, now.get("InvocationID", ""), lines=4)]
    return f": {' | '.join(t.decode('utf-8', 'replace') for t in said)}" if said else ""


def stop(sd: Systemd, name: str, timeout_s: float) -> None:
    text = sd.require_ours(name)
    state = look(sd, name)
    port = state.get("port")
    if text is not None and state["active"] in ALIVE:
        sd.call("stop", "--no-block", service(name))
        deadline, killing = time.monotonic() + timeout_s, False
        while (now := sd.show(name))["ActiveState"] in ALIVE and now["SubState"] != "exited":
            if time.monotonic() > deadline:
                if killing:
                    raise Refused(NOT_ENDED, f"does not end: pid {now.get('MainPID')} of unit {name}")
                sd.call("kill", "--signal=KILL", service(name), check=False)
                killing, deadline = True, time.monotonic() + babysit.KILL_GRACE_S
            time.sleep(0.05)
        if now["SubState"] == "exited":
            sd.call("stop", service(name))
    deadline = time.monotonic() + 1.0
    while state["active"] in ALIVE and (busy := babysit.holder(port)):
        if time.monotonic() > deadline:
            raise Refused(STILL_OPEN, f"unit {name} has ended, but port {port} is still open: {busy[0]}")
        time.sleep(0.05)


def remove(sd: Systemd, name: str) -> None:
    folder, text = f"{sd.units}/{name}", sd.require_ours(name)
    if text is not None:
        state = sd.show(name)
        if state["ActiveState"] in ALIVE and state["SubState"] != "exited":
            raise Refused(RUNNING, f"unit {name} still runs (pid {state.get('MainPID')}); stop it first")
        if state["SubState"] == "exited":
            sd.call("stop", service(name))
        sd.call("disable", service(name), check=False)
        os.unlink(sd.path(name))
        sd.call("daemon-reload")
        sd.call("reset-failed", service(name), check=False)
        with contextlib.suppress(OSError):                  # ours alone, when nothing else is in it
            if sd.scope == "user":
                os.removedirs(sd.files)
    if os.path.isdir(folder):
        shutil.rmtree(folder)


# ------------------------------------------------------------------- journal

def journal(sd: Systemd, invocation: str, *words: str) -> list[str]:
    """Only lines of this start: its own, and what systemd says about it."""
    fields = ("_SYSTEMD_INVOCATION_ID", "INVOCATION_ID", "USER_INVOCATION_ID")
    match = [w for f in fields for w in ("+", f"{f}={invocation}")][1:]
    return ["journalctl", *sd.options, "--no-pager", "--quiet", "--output=json", "--all", *words, *match]


def entries(sd: Systemd, invocation: str, lines: int):
    """The last lines that are there: (cursor, time, text)."""
    if not invocation:
        return
    done = subprocess.run(journal(sd, invocation, f"--lines={lines}"), stdin=subprocess.DEVNULL, capture_output=True)
    for line in done.stdout.splitlines():
        if one := parsed(line):
            yield one[0], one[1], b" ".join(one[2])


def invocation_of(sd: Systemd, name: str) -> str:
    """Of the start that runs, or of the last one."""
    text = sd.installed(name)
    now = sd.show(name).get("InvocationID", "") if text is not None else ""
    ended = read(f"{sd.units}/{name}/ended").split()
    return now or (ended[4] if len(ended) > 4 else "") or read(f"{sd.units}/{name}/invocation").strip()


def follow(sd: Systemd, name: str, cursor: str, wait: bool) -> None:
    if look(sd, name)["active"] == "not-found":
        raise Refused(UNKNOWN, f"no unit {name!r}: {sd.units}/{name} is missing")
    with contextlib.suppress(babysit.Closed):
        out = babysit.Out()

        def frame(at: str, when: float, text: bytes) -> None:
            out.write(b"%s %.6f %s\n" % (at.encode(), when, babysit.shown(text)))
        reader = Reader(frame, out.wait, cursor, sd.options)
        while True:
            invocation = invocation_of(sd, name)

            def over(mine: str = invocation) -> bool:
                return look(sd, name)["active"] not in ALIVE or invocation_of(sd, name) != mine

            def command(*words: str, mine: str = invocation) -> list[str]:
                return journal(sd, mine, *words)
            if invocation and wait and not over():
                reader.live(command, over)
            elif invocation:
                reader.there(command)
            if not wait or look(sd, name)["active"] not in ALIVE:
                return
            out.wait(0.2)                          # between two starts of a unit that restarts


# ---------------------------------------------------------------------- main

def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="unitctl", description="keeps units under systemd")
    sub = parser.add_subparsers(dest="verb", required=True)
    for verb in ("start", "stop", "states", "follow", "remove"):
        p = sub.add_parser(verb)
        p.add_argument("--root", required=True, help="folder that the kit owns")
        p.add_argument("--scope", choices=("system", "user"), required=True)
        p.add_argument("name", nargs="*" if verb == "states" else None)
        if verb == "stop":
            p.add_argument("--timeout", type=float, default=10.0, help="seconds between TERM and KILL")
        if verb == "follow":
            p.add_argument("--cursor", default="", help="continue after this frame")
            p.add_argument("--no-wait", action="store_true", help="print what is there, then end")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = arguments(argv)
    sd = Systemd(args.scope, os.path.abspath(args.root))
    names = args.name if isinstance(args.name, list) else [args.name]

    def work() -> None:
        babysit.check_names(names)
        if args.verb == "start":
            start(sd, names[0])
        elif args.verb == "stop":
            stop(sd, names[0], args.timeout)
        elif args.verb == "remove":
            remove(sd, names[0])
        elif args.verb == "follow":
            follow(sd, names[0], args.cursor, not args.no_wait)
        if args.verb in ("start", "stop", "states"):
            print(json.dumps(states(sd, names)), flush=True)
    return babysit.reported("unitctl", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
