"""What the kit has on this host: its programs, engines, models; and the notes of all who use the GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kit.facts.base import Fact, json_object, words

LEASES = "/tmp/specbook.lock.d"         # one for all users of a host


@dataclass(frozen=True)
class Present:
    """A checkpoint folder on the host: its manifest (what was promised) and its files (what is there).

    since_s   when its fetch ended, seconds since the epoch by the host's clock
    """
    manifest: dict | None
    sizes: dict[str, int]
    since_s: int | None = None

    @property
    def complete(self) -> bool:
        """Every promised file is there at its promised size (the sha256 was checked on arrival)."""
        return bool(self.manifest and self.manifest.get("files")) and all(
            self.sizes.get(name) == entry.get("size") for name, entry in self.manifest["files"].items())


@dataclass(frozen=True)
class Lease:
    """A note on the host that says who uses its GPUs. Anyone there can write one: text to show, not to trust.

    since_s   seconds since the epoch, host's clock; None where it does not say
    boot_id   of the boot it was written in: after a reboot it means nothing
    """
    path: str
    who: str
    experiment: str
    unit: str
    root: str
    port: int | None
    boot_id: str
    since_s: int | None


def _sums(text: str) -> dict[str, str]:
    """`sha256sum` lines → {file name: sha256}."""
    rows = [line.split(None, 1) for line in text.strip().splitlines()]
    return {r[1].strip().lstrip("*").rsplit("/", 1)[-1]: r[0] for r in rows if len(r) == 2 and len(r[0]) == 64}


def _engines(text: str) -> dict[str, dict]:
    """`folder JSON` lines → {folder: what is installed there}."""
    docs = {name: json_object(doc) for name, _, doc in (line.partition(" ") for line in text.strip().splitlines())}
    return {name: doc for name, doc in docs.items() if doc is not None}


def _models(text: str) -> dict[str, Present]:
    """Blocks of `dir NAME`, `manifest JSON`, `since SECONDS`, `file SIZE NAME`."""
    out: dict[str, tuple[list, dict, list]] = {}
    here: tuple[list, dict, list] | None = None
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "dir":
            here = out.setdefault(rest, ([], {}, []))
        elif kind == "manifest" and here:
            manifest = json_object(rest) or {}
            files = manifest.get("files")
            good = isinstance(files, dict) and all(isinstance(entry, dict) for entry in files.values())
            here[0].append(manifest if good else None)
        elif kind == "since" and here and rest.isdigit():
            here[2].append(int(rest))
        elif kind == "file" and here:
            size, _, name = rest.partition(" ")
            here[1][name] = int(size)
    return {name: Present(m[0] if m else None, files, since[0] if since else None)
            for name, (m, files, since) in out.items()}


def _leases(text: str) -> tuple[Lease, ...]:
    """`path JSON` lines; one that is no lease, or cut short, is passed over."""
    docs = [(path, json_object(doc)) for path, _, doc in (line.partition(" ") for line in text.splitlines())]
    return tuple(_lease(path, doc) for path, doc in docs if doc is not None)


def _lease(path: str, doc: dict[str, Any]) -> Lease:
    def text(name: str) -> str:
        value = doc.get(name)
        return words("".join(c if c.isprintable() else " " for c in value))[:200] if isinstance(value, str) else ""

    def whole(name: str) -> int | None:
        value = doc.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return Lease(path, text("who"), text("experiment"), text("unit"), text("root"), whole("port"), text("boot_id"),
                 whole("since_s"))


def _unit_files(text: str) -> dict[str, str]:
    """Lines `SUPERVISOR NAME "ROOT"` → {supervisor/name: root}; root "" where the file does not say whose it is."""
    rows = [line.split(" ", 2) for line in text.splitlines()]
    return {f"{r[0]}/{r[1]}": _string(r[2]) for r in rows if len(r) == 3}


def _string(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


# Names and bytes are strangers': neither may end this fact and begin another, nor be endless.
NOTES = Fact("leases", f"""
for f in {LEASES}/*.json; do
  case ${{f##*/}} in *[!A-Za-z0-9._-]*) continue ;; esac
  [ -f "$f" ] && [ -r "$f" ] || continue
  printf '%s ' "$f"; head -c 4096 -- "$f" | tr '\\000-\\037' ' '; echo
done""", _leases)
FACTS = (
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
  if [ -f "$d/.specbook.json" ]; then printf 'manifest '; tr -d '\\n' < "$d/.specbook.json"; echo
    echo "since $(stat -c %Y -- "$d/.specbook.json" 2>/dev/null)"; fi
  find -L "$d" -type f ! -name .specbook.json -printf 'file %s %P\\n' 2>/dev/null
done""", _models),
    # Where systemd looks for them: also those that the kit's folder knows nothing of.
    Fact("unit_files", """
for kind in systemd systemd-user; do
  case $kind in systemd) d=/etc/systemd/system ;; *) d=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user ;; esac
  for f in "$d"/specbook-*.service; do
    n=${f##*/specbook-}; n=${n%.service}
    case $n in *[!a-z0-9-]*) continue ;; esac
    [ -f "$f" ] || continue
    whose=$(sed -n '/^\\[X-Specbook]/,$ s/^Root=//p' "$f" 2>/dev/null | head -n 1 | tr -d '\\000-\\037')
    printf '%s %s %s\\n' "$kind" "$n" "$whose"
  done
done""", _unit_files),
    NOTES,
)
