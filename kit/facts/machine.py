"""The machine itself, and who listens on the port."""

from __future__ import annotations

from dataclasses import dataclass

from kit.facts.base import Fact, words
from kit.masking import masked


@dataclass(frozen=True)
class Holder:
    """Who listens on a port; pid 0 when we may not see it."""
    pid: int
    command: str


def _python(text: str) -> tuple[int, ...] | None:
    digits = text.strip().split(".")
    return tuple(int(d) for d in digits[:3]) if len(digits) >= 2 and all(d.isdigit() for d in digits[:3]) else None


def _cpu(text: str) -> tuple[int, str]:
    count, _, model = text.strip().partition("\n")
    return int(count or 0), words(model)


def _disk(text: str) -> int | None:
    """Free MiB from the last line of `df -Pk`."""
    row = text.strip().splitlines()[-1].split() if text.strip() else []
    return int(row[3]) // 1024 if len(row) >= 6 and row[3].isdigit() else None


def _port(text: str) -> Holder | None:
    lines = text.strip().splitlines()
    if not lines or lines[0] == "free":
        return None
    return Holder(int(lines[1]) if len(lines) > 1 and lines[1].isdigit() else 0,
                  masked(words(lines[2])) if len(lines) > 2 else "")


FACTS = (
    Fact("os", "uname -srm", words),
    Fact("hostname", "uname -n", words),
    Fact("user", "id -un", words),
    Fact("home", 'printf "%s\\n" "$HOME"', str.strip),
    Fact("boot_id", "cat /proc/sys/kernel/random/boot_id", words),
    Fact("clock_s", "date +%s", lambda t: int(t.strip() or 0)),
    Fact("python", '"$python" -c "import sys; print(\'.\'.join(map(str, sys.version_info[:3])))"', _python),
    Fact("cpu", "nproc; sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1", _cpu),
    Fact("load", "cut -d' ' -f1 /proc/loadavg", lambda t: float(t.strip() or 0)),
    Fact("mem_free_mib", "awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo", lambda t: int(t.strip() or 0)),
    Fact("disk_free_mib",
         'd=$root; while [ ! -d "$d" ]; do d=$(dirname -- "$d"); done; df -Pk -- "$d"', _disk),
    # Control characters of a stranger's command line must not end this fact and begin another.
    Fact("port_holder", """
hex=$(printf '%04X' "$port")
inode=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v p=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == p {print $10; exit}')
if [ -z "$inode" ]; then echo free; else
  echo busy
  dir=$(ls -l /proc/[0-9]*/fd 2>/dev/null |
        awk -v s="socket:[$inode]" '/^\\/proc/ {d = $1} index($0, s) {print d; exit}')
  pid=${dir#/proc/}; pid=${pid%%/*}
  [ -z "$pid" ] || { echo "$pid"; tr '\\000-\\037' ' ' < "/proc/$pid/cmdline"; echo; }
fi""", _port),
)
