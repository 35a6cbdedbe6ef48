"""`folder:path`: a file or folder of this machine, sent to the host; what is right there already is not sent again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from kit import project
from kit.command import sh
from kit.errors import ChecksumError, FetchError, NoSpace
from kit.seams import Host, Progress
from kit.spec import Checkpoint

PICKLED = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}

# Free KiB, then `size sha256` of each named file, or `-`. In the order of the names, as names may hold anything.
LOOK = r"""
mkdir -p -- "$1" && cd -- "$1" && shift || exit 1
df -Pk . | awk 'END { print $(NF-2) }'
for f; do
  if [ -f "$f" ]; then echo "$(wc -c < "$f") $(sha256sum < "$f")"; else echo -; fi
done
"""
DROP = r'cd -- "$1" && shift && rm -f -- "$@"'


class Folder:
    """`kit.seams.Source` for files of this machine."""

    scheme = "folder"

    def fetch(self, checkpoint: Checkpoint, dest: str, host: Host, run_job: Callable[..., object],
              progress: Progress, python: str = "python3") -> dict[str, dict]:
        files = local_files(checkpoint)
        total, names = sum(f.stat().st_size for f in files.values()), list(files)
        sums = {name: digest(path) for name, path in files.items()}
        if checkpoint.sha256 and checkpoint.sha256 not in sums.values():
            raise ChecksumError(f"its sha256 is {' '.join(sums.values())}, pinned is {checkpoint.sha256}; not sent",
                                where=checkpoint.source, next="correct the pin, or take the right file")
        free, there = look(host, dest, names)
        kept, wrong = {}, []
        for name, found in there.items():
            if found and is_beginning(files[name], *found):
                kept[name] = found[0]
            elif found:
                wrong.append(name)
        needed = total - sum(kept.values()) - sum(there[name][0] for name in wrong)
        if needed > free:
            raise NoSpace(f"{needed:,} bytes are to be sent, {free:,} are free", where=f"{host.name}:{dest}",
                          next="free space on the host, or set host.root to a larger disk")
        if wrong:       # not the beginning of ours: continuing them would only mix two files
            host.run(sh(DROP, dest, *wrong)).check("remove files of another version")
        done = 0
        for name, path in files.items():
            size = path.stat().st_size
            if kept.get(name) != size or size == 0:
                host.put(str(path), f"{dest}/{name}", lambda d, _, note, before=done: progress(before + d, total, note))
            done += size
            progress(done, total, name)
        if any(kept.get(name) != path.stat().st_size for name, path in files.items()):
            self._verify(host, dest, sums)
        return {name: {"size": path.stat().st_size, "sha256": sums[name]} for name, path in files.items()}

    def changed(self, checkpoint: Checkpoint, files: Mapping[str, dict]) -> str:
        """A folder is what is in it now; where it is not on this machine, what was sent is all there is."""
        try:
            here = local_files(checkpoint)
            now = {name: {"size": f.stat().st_size, "sha256": _known_digest(f, *_stamp(f))} for name, f in here.items()}
        except (FetchError, OSError):
            return ""
        there = {name: {k: entry.get(k) for k in ("size", "sha256")} for name, entry in files.items()}
        other = sorted(name for name in now.keys() | there.keys() if now.get(name) != there.get(name))
        return f"{', '.join(other[:3])}: not as in {checkpoint.ref} here any more" if other else ""

    @staticmethod
    def _verify(host: Host, dest: str, sums: dict[str, str]) -> None:
        _, there = look(host, dest, list(sums))
        bad = [name for name, found in there.items() if not found or found[1] != sums[name]]
        if bad:
            host.run(sh(DROP, dest, *bad)).check("remove damaged files")
            raise ChecksumError(f"{', '.join(bad)}: what arrived is not what was sent; removed",
                                where=f"{host.name}:{dest}", next="fetch again; if it stays, check the host's disk")


def local_files(checkpoint: Checkpoint) -> dict[str, Path]:
    """{name below dest: local file}. Hidden files stay here. `FetchError` for nothing, and for pickles."""
    base = project.resolve(checkpoint.ref)
    if base.is_file():
        files = {base.name: base}
    else:
        found = sorted(p for p in base.rglob("*") if p.is_file()) if base.is_dir() else []
        files = {p.relative_to(base).as_posix(): p for p in found
                 if not any(part.startswith(".") for part in p.relative_to(base).parts)}
    if not files:
        raise FetchError("there is no such file or folder here, or nothing in it", where=str(base),
                         next="correct the source in the config")
    pickled = [name for name, p in files.items() if p.suffix in PICKLED]
    if pickled:
        raise FetchError(f"{pickled[0]} is a pickle: loading it runs whatever code is in it", where=str(base),
                         next="convert it to safetensors; or put it on the host yourself and name it host:/path")
    return files


def digest(path: Path, size: int | None = None) -> str:
    """sha256 of a file, or of its first `size` bytes."""
    found, left = hashlib.sha256(), path.stat().st_size if size is None else size
    try:
        with path.open("rb") as f:
            while left and (piece := f.read(min(left, 1 << 20))):
                found.update(piece)
                left -= len(piece)
    except OSError as e:
        raise FetchError(f"cannot read it: {e.strerror}", where=str(path), next="see its permissions") from None
    return found.hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


@lru_cache(maxsize=256)
def _known_digest(path: Path, size: int, mtime_ns: int) -> str:
    """Its sha256, read once as long as size and time stay: a survey asks at every step."""
    return digest(path)


def is_beginning(path: Path, size: int, sha256: str) -> bool:
    """Whether `size` bytes with that sha256 are what our file begins with."""
    return size <= path.stat().st_size and digest(path, size) == sha256


def look(host: Host, dest: str, names: list[str]) -> tuple[int, dict[str, tuple[int, str] | None]]:
    """(free bytes, {name: (size, sha256) on the host, or None}); one command. Makes the folder."""
    result = host.run(sh(LOOK, dest, *names, limit_s=None)).check(f"look at {dest}")
    free, *lines = result.text.splitlines()
    found = [re.match(r"(\d+) ([0-9a-f]{64})", line) for line in lines]
    return int(free) * 1024, {name: (int(m[1]), m[2]) if m else None for name, m in zip(names, found, strict=True)}


SOURCE = Folder()
