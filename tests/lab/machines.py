"""The lab's hosts from outside: what is seen and done here goes into the host's namespaces, not over SSH."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

LAB = Path(os.environ.get("SPECBOOK_LAB", "/run/lab"))      # set by enter.sh
SSH_CONFIG = LAB / "home/.ssh/config"
PAT_PASSWORD = (Path(__file__).parent / "pat-password").read_text().rstrip("\n")
ADDRESSES = {"alpha": "10.99.0.11", "beta": "10.99.0.12"}
PROXY_PORTS = {"alpha": 2211, "beta": 2212}                 # of the names alpha-slow and beta-slow
UP_S = 60.0


def eventually(true, seconds=8.0):
    """What `true()` says once it is truthy; its last answer when the time is over."""
    end = time.monotonic() + seconds
    while not (answer := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return answer


class Machine:
    """One host of the lab: alpha or beta."""

    def __init__(self, name):
        self.name, self.address = name, ADDRESSES[name]
        self._heals = None

    def __repr__(self):
        return f"Machine({self.name!r})"

    def leader(self):
        """The pid of the host's systemd, as seen from here; None while it is off."""
        for top in os.environ["LAB_CGROUPS"].splitlines():
            try:
                return int(Path(top, self.name, "payload/init.scope/cgroup.procs").read_text().split()[0])
            except (OSError, IndexError):       # not in this hierarchy, or between two boots
                continue
        return None

    def _inside(self, *spaces):
        leader = eventually(self.leader, UP_S)
        assert leader, f"{self.name} is off"
        return ["nsenter", "--target", str(leader), *spaces]

    def shell(self, script, *args, check=True, stdin=""):
        """A shell script as root on the host, `args` are $1, $2 …; gives stdout. With check=False the process."""
        done = subprocess.run(
            [*self._inside("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wdns=/"),
             "/usr/bin/env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
             "/bin/sh", "-c", script, "sh", *map(str, args)], input=stdin, capture_output=True, text=True)
        if not check:
            return done
        assert done.returncode == 0, f"{self.name}: exit {done.returncode}: {done.stderr.strip()}"
        return done.stdout

    # -- faults

    def cut(self, seconds=10.0):
        """Every packet to and from the host vanishes, until `heal` or for so long."""
        self.heal()
        for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
            self._iptables("-I", chain, side, "host0", "-j", "DROP")
        self._heals = threading.Timer(seconds, self.heal)
        self._heals.daemon = True
        self._heals.start()

    def heal(self):
        if self._heals:
            self._heals.cancel()
        self._heals = None
        self._iptables("-F")

    def _iptables(self, *args):
        subprocess.run([*self._inside("--net"), "iptables", "-w", *args], check=True)

    def kill_sshd_sessions(self):
        """kill -9 of every sshd but the listener, as the OOM killer would."""
        self.shell('main=$(systemctl show --property MainPID --value ssh); '
                   'for pid in $(pgrep -x sshd); do [ "$pid" = "$main" ] || kill -9 "$pid" || true; done')

    def fill_disk(self, leave=0):
        """All of the host's disk in one file, but for `leave` bytes (and a page or two)."""
        self.shell('free=$(df --output=avail -B1 / | tail -n 1); '
                   '[ "$free" -le "$1" ] || fallocate -l $((free - $1)) /var/filler; '
                   '[ "$1" -gt 0 ] || cat /dev/zero >>/var/filler 2>/dev/null || true', leave)

    def free_disk(self):
        self.shell("rm -f /var/filler")

    def reboot(self):
        """A real reboot; comes back when the host is up again, by what systemd says, and sshd answers."""
        before = self.leader()
        self.shell("systemctl reboot --no-block")
        assert eventually(lambda: self.leader() not in (None, before), UP_S), f"{self.name} does not come back"
        assert eventually(self._answers, UP_S), f"{self.name}: no SSH after the reboot"

    def _answers(self):
        state = self.ssh("systemctl is-system-running --wait", user="root", check=False).stdout.strip()
        return state in ("running", "degraded")

    # -- looking

    def ssh(self, command, user="deploy", check=True, stdin=""):
        """By the ordinary ssh client: the finished process, with text."""
        return subprocess.run(["ssh", "-F", str(SSH_CONFIG), "-o", "ConnectTimeout=2", f"{self.name}-{user}", command],
                              input=stdin, capture_output=True, text=True, check=check)

    def snapshot(self):
        """What a careful guest leaves as it was: {"files": {path: what}, "units": …, "processes": …, "ports": …}."""
        return json.loads(self.shell("exec python3 -", stdin=SNAPSHOT))


def changes(before, after):
    """Two snapshots compared: ["files: + /etc/systemd/system/x.service", "ports: - 8000", …]."""
    out = []
    for part in before:
        for name in sorted({*before[part], *after[part]}):
            was, now = before[part].get(name), after[part].get(name)
            if was != now:
                out.append(f"{part}: {'+' if was is None else '-' if now is None else '~'} {name}")
    return out


# Runs on the host. What comes and goes with a login, by itself, is left out.
SNAPSHOT = r'''
import collections, hashlib, json, os, re, stat, subprocess

TOPS = "/etc /home /root /opt /srv /usr/local /tmp /var/tmp /var/lib/systemd/linger".split()
COMING_AND_GOING = re.compile(r"sshd: |\(sd-pam\)|/lib/systemd/systemd --user|/usr/lib/systemd/systemd$|"
                              r"/lib/systemd/systemd-(hostnamed|timedated|localed|userwork|user-runtime-dir)|"
                              r"dbus-daemon --session|/usr/lib/openssh/sftp-server|python3 -$|\(|$")

def what(path):
    s = os.lstat(path)
    kind = stat.filemode(s.st_mode) + " %d:%d" % (s.st_uid, s.st_gid)
    if stat.S_ISLNK(s.st_mode):
        return kind + " -> " + os.readlink(path)
    if stat.S_ISREG(s.st_mode):
        with open(path, "rb") as f:
            return kind + " " + hashlib.sha256(f.read()).hexdigest()
    return kind

def files():
    for top in TOPS:
        for folder, folders, names in os.walk(top):
            folders[:] = [f for f in folders if not f.startswith("systemd-private-")]
            for path in [folder] + [os.path.join(folder, n) for n in names]:
                yield path, what(path)

def units():
    for line in run("systemctl", "list-unit-files", "--no-legend", "--plain"):
        name, state = line.split()[:2]
        if not re.match(r"session-[0-9]+\.scope$", name):
            yield name, state
    for line in run("systemctl", "list-units", "--no-legend", "--plain", "--all", "--type=service,timer"):
        name, load, active = line.split()[:3]
        if load == "loaded" and not re.match(r"(user|user-runtime-dir)@|systemd-", name):
            yield "loaded " + name, active

def processes():
    found = collections.Counter()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid) as f:
                line = f.read().replace("\0", " ").strip()
        except OSError:
            continue
        if not COMING_AND_GOING.match(line) and int(pid) != os.getpid():
            found[line] += 1
    return found

def ports():
    for line in run("ss", "-Hltun"):
        protocol, _, _, _, local = line.split()[:5]
        yield protocol + " " + local, "listens"

def run(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()

print(json.dumps({"files": dict(files()), "units": dict(units()), "processes": processes(), "ports": dict(ports())}))
'''
