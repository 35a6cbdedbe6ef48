"""`hf:org/name@revision`: a repository of the Hugging Face hub, fetched *on* the host by kit/remote/hub_fetch.py.

    hf:org/name@0123abc…              a commit; a branch or tag moves, the fetch says what to pin
    hf:org/name@main#*Q8_0.gguf       weights that match the patterns (comma-separated) instead of *.safetensors

A host without network gets the files through this machine, one after the other: the very same program downloads
each to .cache/hub, it is sent over SFTP, and removed here once it is right there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kit import project, shipping
from kit.command import sh
from kit.errors import ChecksumError, FetchError, KitError, NoSpace
from kit.seams import Host, Progress, Unit
from kit.sources.folder import DROP, is_beginning, look
from kit.spec import Checkpoint

PROGRAM = "hub_fetch.py"
AGAIN = "fetch again: it goes on where it stopped"
TOKEN = "HF_TOKEN, or the file ~/.cache/huggingface/token"
# kind of hub_fetch.py → (error, what to do about it); {at} is "on the host" or "on this machine"
ERRORS = {
    "fetch": (FetchError, AGAIN),
    "checksum": (ChecksumError, "fetch again; if it stays, something on the way changes files, or the pin is wrong"),
    "no-space": (NoSpace, f"free space {{at}} (or set host.root to a larger disk), then {AGAIN}"),
    "no-network": (FetchError, "check network and proxy variables {at}, or bring it there yourself: host:/path"),
    "gated": (FetchError, f"ask for access on its page, and put a token {{at}}: {TOKEN}"),
    "missing": (FetchError, f"correct the name in the config; if it is private, put a token {{at}}: {TOKEN}"),
    "token": (FetchError, f"make a new token on the hub, and put it {{at}}: {TOKEN}"),
    "format": (FetchError, "take a repository with safetensors; or ask for others: hf:org/name@revision#*.gguf "
                           "(pickles run whatever code is in them: #*.bin)"),
    "hostile": (FetchError, "do not use this repository"),
}


class HuggingFace:
    """`kit.seams.Source` for the hub. Each file of the manifest also names its commit."""

    scheme = "hf"

    def fetch(self, checkpoint: Checkpoint, dest: str, host: Host, run_job: Callable[..., object],
              progress: Progress, python: str = "python3") -> dict[str, dict]:
        repo, revision, patterns = parse(checkpoint)
        heard = Heard(progress)
        words = [w for p in patterns for w in ("--weights", p)]
        words += ["--sha256", checkpoint.sha256] if checkpoint.sha256 else []
        job = Unit(f"fetch-{hashlib.sha256(dest.encode()).hexdigest()[:8]}", kind="job",
                   argv=(python, shipping.path(PROGRAM, host.root), repo, revision, dest, *words),
                   about={"source": checkpoint.source})
        ended = run_job(job, heard)
        if heard.kind == "no-network":
            commit, files = through_here(checkpoint, dest, host, progress, heard.what)
        else:
            commit, files = heard.result(f"{host.name}:{dest}", ended)
        if checkpoint.sha256 and checkpoint.sha256 not in {f["sha256"] for f in files.values()}:
            raise ChecksumError(f"no file of {repo}@{commit[:12]} has the pinned sha256 {checkpoint.sha256}",
                                where=checkpoint.source, next="correct the pin, or leave it out: a commit pins it too")
        total = sum(f["size"] for f in files.values())
        progress(total, total, f"commit {commit}" if revision == commit else
                 f"{revision} is commit {commit} and may move; pin it: {pinned(checkpoint, commit)}")
        return {name: {**about, "commit": commit} for name, about in files.items()}

    def changed(self, checkpoint: Checkpoint, files: Mapping[str, dict]) -> str:
        return ""


def parse(checkpoint: Checkpoint) -> tuple[str, str, list[str]]:
    """(org/name, revision, patterns) of a `hf:` source.

    >>> parse(Checkpoint(source="hf:org/name@v1#*.gguf"))
    ('org/name', 'v1', ['*.gguf'])
    """
    ref, _, patterns = checkpoint.ref.removeprefix("//").partition("#")
    repo, at, revision = ref.partition("@")
    if not re.fullmatch(r"(?!.*(\.\.|--))\w[\w.-]*(/\w[\w.-]*)?", repo, re.A) \
            or not re.fullmatch(r"(?!.*\.\.)\w[\w./+-]*", revision if at else "main", re.A) \
            or any(p.startswith("-") for p in patterns.split(",")):
        raise FetchError(f"{checkpoint.ref!r} names no repository of the hub", where=checkpoint.source,
                         next="write hf:org/name@revision, e.g. with a commit as revision")
    return repo, revision if at else "main", [p for p in patterns.split(",") if p]


def pinned(checkpoint: Checkpoint, commit: str) -> str:
    """The same source at that commit, as a config should name it."""
    ref, hash_, patterns = checkpoint.source.partition("#")
    return f"{ref.partition('@')[0]}@{commit}{hash_}{patterns}"


class Heard:
    """Reads the lines of hub_fetch.py: progress and notes go on, the outcome is kept."""

    def __init__(self, progress: Progress):
        self.progress, self.at, self.files = progress, (0, 0), {}
        self.kind = self.what = self.commit = self.last = ""

    def __call__(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if moved := re.match(r"progress (\d+) (\d+) (.*)", text):
            self.at = int(moved[1]), int(moved[2])
            self.progress(*self.at, moved[3])
        elif word == "note":
            self.progress(*self.at, rest)
        elif word == "file":
            about = json.loads(rest)
            self.files[about["path"]] = {"size": about["size"], "sha256": about["sha256"]}
        elif word == "result":
            self.commit = json.loads(rest)["commit"]
        elif word == "error":
            self.kind, _, self.what = rest.partition(" ")
        elif text.strip():
            self.last = text.strip()

    def result(self, where: str, ended: object) -> tuple[str, dict[str, dict]]:
        """(commit, manifest), or the error that the lines tell."""
        if self.commit:
            return self.commit, self.files
        if self.kind:
            raise explained(self.kind, self.what, where, "on the host")
        how = getattr(ended, "signal", None) or getattr(ended, "result", None) or "no outcome"
        raise FetchError(f"the fetch ended without a result ({how}): {self.last or 'it said nothing'}", where=where,
                         next=AGAIN)


def explained(kind: str, what: str, where: str, at: str) -> FetchError:
    error, advice = ERRORS[kind]
    return error(what, where=where, next=advice.format(at=at))


# ------------------------------------------------------------- through this machine

@cache
def program() -> ModuleType:
    """hub_fetch.py as it travels to hosts, run in this process: one program downloads everywhere."""
    module = ModuleType("hub_fetch")
    exec(compile(shipping.content(PROGRAM), PROGRAM, "exec"), module.__dict__)
    return module


@contextmanager
def here(token: list[str]):
    """What the program raises, as errors of the kit about this machine; `token` (of one or none) is masked."""
    try:
        yield
    except KitError:        # some are OSErrors too
        raise
    except program().Failed as e:
        raise explained(e.kind, program().masked(str(e), "".join(token)), "this machine", "on this machine") from None
    except OSError as e:
        raise FetchError(f"{e.strerror or e}: {e.filename or ''}", where="this machine", next=AGAIN) from None


def through_here(checkpoint: Checkpoint, dest: str, host: Host, progress: Progress,
                 why: str) -> tuple[str, dict[str, dict]]:
    """(commit, manifest). File by file, so that this machine needs room for the largest one only."""
    repo, revision, patterns = parse(checkpoint)
    folder, token = project.root() / ".cache" / "hub" / checkpoint.slug, []
    progress(0, 0, f"no network on the host ({why}): through this machine")
    heard = Heard(lambda done, total, note: progress(0, 0, note))
    with here(token):
        settings = program().Settings(os.environ)
        token.append(settings.token)
        hub = program().Hub(repo, settings, heard)
        files = program().prepare(hub, revision, str(folder), patterns, checkpoint.sha256)
        free, there = look(host, dest, [f.path for f in files])
        _require_room(hub, files, there, free, folder, f"{host.name}:{dest}")
        done, total, told = 0, sum(f.size for f in files), {}
        for f in files:
            def at(some: int, doing: str, f=f, before=done) -> None:
                progress(before + some, total, f"{f.path}: {doing}")

            found = there[f.path]
            if not found or found != (f.size, f.sha256):
                heard.progress = lambda some, size, _, at=at: at(0, f"{some:,} of {size:,} bytes are on this machine")
                told |= hub.bring([f], str(folder))
                _send(folder / f.path, told[f.path], f"{dest}/{f.path}", found, host, at)
            else:
                told[f.path] = {"size": f.size, "sha256": f.sha256}
            done += f.size
            at(f.size, "is on the host")
    return hub.commit, told


def _require_room(hub: Any, files: list, there: dict, free: int, folder: Path, where: str) -> None:
    """Both disks, before anything is downloaded."""
    needed = sum(f.size - min(f.size, (there[f.path] or (0,))[0]) for f in files)
    if needed > free:
        raise NoSpace(f"{needed:,} bytes are to come, {free:,} are free", where=where,
                      next="free space on the host, or set host.root to a larger disk")
    missing = [f.size for f in files if there[f.path] != (f.size, f.sha256)]
    hub.room(str(folder), max(missing, default=0), "the largest file")


def _send(local: Path, about: dict, path: str, found: tuple | None, host: Host, at: Callable) -> None:
    """One file to the host, going on from what is there; removed here once it is right there."""
    folder, name = path.rsplit("/", 1)
    if found != (about["size"], about["sha256"]):
        if found and not is_beginning(local, *found):
            host.run(sh(DROP, folder, name)).check("remove a file of another version")
        host.put(str(local), path, lambda some, _total, _note: at(some, "to the host"))
        _, arrived = look(host, folder, [name])
        if arrived[name] != (about["size"], about["sha256"]):
            host.run(sh(DROP, folder, name)).check("remove a damaged file")
            raise ChecksumError(f"{name}: what arrived is not what was sent; removed", where=f"{host.name}:{path}",
                                next="fetch again; if it stays, check the host's disk")
    local.unlink()


SOURCE = HuggingFace()
