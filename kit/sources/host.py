"""`host:/models/x`: already on the host. Nothing is brought; what is pinned is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kit.command import sh
from kit.errors import ChecksumError, FetchError
from kit.seams import Host, Progress
from kit.spec import Checkpoint

# `size name` of each file, then the sha256 of the one that is pinned
LOOK = r"""
[ -e "$1" ] || exit 3
find -L "$1" -type f -exec sh -c 'for f; do printf "%s %s\n" "$(wc -c < "$f")" "$f"; done' sh {} +
[ -z "$2" ] || sha256sum < "$1"
"""


class OnHost:
    """`kit.seams.Source` for what is there already."""

    scheme = "host"

    def fetch(self, checkpoint: Checkpoint, dest: str, host: Host, run_job: Callable[..., object],
              progress: Progress, python: str = "python3") -> dict[str, dict]:
        path, where = checkpoint.ref, f"{host.name}:{checkpoint.ref}"
        result = host.run(sh(LOOK, path, checkpoint.sha256 or "", limit_s=None))
        if result.exit == 3:
            raise FetchError("it is not on the host", where=where, next="correct the path, or choose another source")
        lines = result.check(f"look at {path}", next="see whether the path is readable there").text.splitlines()
        found = lines.pop().split()[0] if checkpoint.sha256 else ""
        if found != (checkpoint.sha256 or ""):
            raise ChecksumError(f"its sha256 is {found}, pinned is {checkpoint.sha256}", where=where,
                                next="correct the pin, or put the right file there")
        sizes = {name[len(path):].lstrip("/") or path.rsplit("/", 1)[-1]: int(size)
                 for size, name in (line.split(" ", 1) for line in lines)}
        progress(sum(sizes.values()), sum(sizes.values()), "already on the host")
        return {name: {"size": size, "sha256": found} for name, size in sizes.items()}

    def changed(self, checkpoint: Checkpoint, files: Mapping[str, dict]) -> str:
        return ""


SOURCE = OnHost()
