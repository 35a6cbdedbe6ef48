"""Facts about a host: a few lines of shell each, and a parser for what they print. Pure.

All facts travel as one script, so a survey is one round trip. A fact's script
sees $root (the kit's folder), $python and $port; it must print something
parseable even where a tool is absent, and never change the host.
Fixtures: tests/fixtures/facts/NAME-*.txt.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kit.errors import ParseError


@dataclass(frozen=True)
class Fact:
    name: str
    script: str
    parse: Callable[[str], Any]


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    memory_mib: int
    used_mib: int
    driver: str
    compute_capability: str


@dataclass(frozen=True)
class Holder:
    """Who listens on a port; pid 0 when we may not see it."""
    pid: int
    command: str


@dataclass(frozen=True)
class Present:
    """A checkpoint folder on the host: its manifest (what was promised) and its files (what is there)."""
    manifest: dict | None
    sizes: dict[str, int]

    @property
    def complete(self) -> bool:
        """Every promised file is there at its promised size (the sha256 was checked on arrival)."""
        return bool(self.manifest and self.manifest.get("files")) and all(
            self.sizes.get(name) == entry.get("size") for name, entry in self.manifest["files"].items())


def _words(text: str) -> str:
    return " ".join(text.split())


def _python(text: str) -> tuple[int, ...] | None:
    digits = text.strip().split(".")
    return tuple(int(d) for d in digits[:3]) if len(digits) >= 2 and all(d.isdigit() for d in digits[:3]) else None


def _cpu(text: str) -> tuple[int, str]:
    count, _, model = text.strip().partition("\n")
    return int(count or 0), _words(model)


def _disk(text: str) -> int | None:
    """Free MiB from the last line of `df -Pk`."""
    row = text.strip().splitlines()[-1].split() if text.strip() else []
    return int(row[3]) // 1024 if len(row) >= 6 and row[3].isdigit() else None


def _gpus(text: str) -> tuple[Gpu, ...]:
    rows = [[c.strip() for c in line.split(",")] for line in text.strip().splitlines()]
    number = lambda s: int(s) if s.isdigit() else 0  # noqa: E731  "[N/A]" on shared-memory GPUs
    return tuple(Gpu(int(r[0]), r[1], number(r[2]), number(r[3]), r[4], r[5]) for r in rows
                 if len(r) == 6 and r[0].isdigit())


def _port(text: str) -> Holder | None:
    lines = text.strip().splitlines()
    if not lines or lines[0] == "free":
        return None
    return Holder(int(lines[1]) if len(lines) > 1 and lines[1].isdigit() else 0,
                  _words(lines[2]) if len(lines) > 2 else "")


def _sums(text: str) -> dict[str, str]:
    """`sha256sum` lines → {file name: sha256}."""
    rows = [line.split(None, 1) for line in text.strip().splitlines()]
    return {r[1].strip().lstrip("*").rsplit("/", 1)[-1]: r[0] for r in rows if len(r) == 2 and len(r[0]) == 64}


def _object(text: str) -> dict | None:
    """A JSON object; None where it is none: cut short by a full disk, it is as good as absent."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _engines(text: str) -> dict[str, dict]:
    """`folder JSON` lines → {folder: what is installed there}."""
    docs = {name: _object(doc) for name, _, doc in (line.partition(" ") for line in text.strip().splitlines())}
    return {name: doc for name, doc in docs.items() if doc is not None}


def _models(text: str) -> dict[str, Present]:
    """Blocks of `dir NAME`, `manifest JSON`, `file SIZE NAME`."""
    out: dict[str, tuple[list, dict]] = {}
    here: tuple[list, dict] | None = None
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "dir":
            here = out.setdefault(rest, ([], {}))
        elif kind == "manifest" and here:
            manifest = _object(rest) or {}
            files = manifest.get("files")
            good = isinstance(files, dict) and all(isinstance(entry, dict) for entry in files.values())
            here[0].append(manifest if good else None)
        elif kind == "file" and here:
            size, _, name = rest.partition(" ")
            here[1][name] = int(size)
    return {name: Present(m[0] if m else None, files) for name, (m, files) in out.items()}


FACTS: tuple[Fact, ...] = (
    Fact("os", "uname -srm", _words),
    Fact("hostname", "uname -n", _words),
    Fact("user", "id -un", _words),
    Fact("home", 'printf "%s\\n" "$HOME"', str.strip),
    Fact("boot_id", "cat /proc/sys/kernel/random/boot_id", _words),
    Fact("clock_s", "date +%s", lambda t: int(t.strip() or 0)),
    Fact("python", '"$python" -c "import sys; print(\'.\'.join(map(str, sys.version_info[:3])))"', _python),
    Fact("cpu", "nproc; sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1", _cpu),
    Fact("load", "cut -d' ' -f1 /proc/loadavg", lambda t: float(t.strip() or 0)),
    Fact("mem_free_mib", "awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo", lambda t: int(t.strip() or 0)),
    Fact("disk_free_mib",
         'd=$root; while [ ! -d "$d" ]; do d=$(dirname -- "$d"); done; df -Pk -- "$d"', _disk),
    Fact("gpus",
         "nvidia-smi --query-gpu=index,name,memory.total,memory.used,driver_version,compute_cap "
         "--format=csv,noheader,nounits 2>/dev/null || true", _gpus),
    Fact("systemd", "[ -d /run/systemd/system ] && echo yes || echo no", lambda t: t.strip() == "yes"),
    Fact("port_holder", """
hex=$(printf '%04X' "$port")
inode=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v p=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == p {print $10; exit}')
if [ -z "$inode" ]; then echo free; else
  echo busy
  dir=$(ls -l /proc/[0-9]*/fd 2>/dev/null |
        awk -v s="socket:[$inode]" '/^\\/proc/ {d = $1} index($0, s) {print d; exit}')
  pid=${dir#/proc/}; pid=${pid%%/*}
  [ -z "$pid" ] || { echo "$pid"; tr '\\0\\n' '  ' < "/proc/$pid/cmdline"; echo; }
fi""", _port),
    Fact("shipped", 'cd "$root/bin" && sha256sum -- * 2>/dev/null || true', _sums),
    Fact("engines", """
for f in "$root"/engines/*/complete.json; do
  [ -f "$f" ] || continue
  d=${f%/complete.json}; printf '%s ' "${d##*/}"; tr -d '\\n' < "$f"; echo
done""", _engines),
    Fact("models", """
for d in "$root"/models/*/; do
  [ -d "$d" ] || continue
  n=${d%/}; printf 'dir %s\\n' "${n##*/}"
  if [ -f "$d/.specbook.json" ]; then printf 'manifest '; tr -d '\\n' < "$d/.specbook.json"; echo; fi
  find -L "$d" -type f ! -name .specbook.json -printf 'file %s %P\\n' 2>/dev/null
done""", _models),
)

_MARK = "\x1e"      # record separator: no fact prints it


def script() -> str:
    """All facts as one shell program; run as `sh -s -- ROOT PYTHON PORT STATES-ARGV…`.

    The rest of the arguments is the supervisor's own command for listing its
    units; it is only run once the host has units. Nothing may read the
    script's own stdin, hence </dev/null.
    """
    head = "root=$1 python=$2 port=$3; shift 3\n"
    body = "".join(f"printf '{_MARK}%s\\n' {f.name}\n( {f.script}\n) 2>/dev/null </dev/null\n" for f in FACTS)
    units = f"printf '{_MARK}%s\\n' units\n[ $# -gt 0 ] && [ -d \"$root/units\" ] && \"$@\" </dev/null\n"
    return head + body + units + f"printf '{_MARK}%s\\n' end\n"


def parse(text: str, where: str = "") -> dict[str, Any]:
    """What the script printed → {fact: value}, plus "units" as raw text. `ParseError` names the fact."""
    blocks = dict(block.partition("\n")[::2] for block in text.split(_MARK)[1:])
    if "end" not in blocks:
        raise ParseError("the survey broke off", where=where, next="survey again; is the host's /bin/sh a POSIX shell?")
    out: dict[str, Any] = {"units": blocks.get("units", "")}
    for fact in FACTS:
        try:
            out[fact.name] = fact.parse(blocks.get(fact.name, ""))
        except (ValueError, IndexError, KeyError) as e:
            raise ParseError(f"fact {fact.name} was not understood: {blocks.get(fact.name, '')[:200]!r} ({e})",
                             where=where, next="report it with this text") from None
    return out
