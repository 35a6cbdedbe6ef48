"""What a rule sees of one command, and what it may say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.findings import Finding
from kit.lint.flags import Given, Parsed, Table, convert
from kit.lint.versions import parse, show

TRUE = {"1", "true", "yes", "y", "on"}


@dataclass(frozen=True)
class Target:
    """What is known of the model to be served; None is "not known", never "no".

    architecture    class name, "LlamaForCausalLM"
    config          its config.json
    dspark_folder   whether a drafter lies in its subfolder dspark/
    """

    architecture: str | None = None
    config: Mapping[str, Any] | None = None
    dspark_folder: bool | None = None

    @property
    def named(self) -> str | None:
        """The class, from the config where nobody said it."""
        listed = (self.config or {}).get("architectures")
        first = listed[0] if isinstance(listed, list) and listed else None
        return self.architecture or (first if isinstance(first, str) else None)


@dataclass
class Case:
    """One command under one release. Flags are asked for by any of their names."""

    engine: str
    table: Table
    parsed: Parsed
    env: dict[str, str] = field(default_factory=dict)
    sm: int | None = None               # compute capability × 10: 120 for sm_120
    user: str | None = None
    target: Target = Target()
    whole: bool = False                 # a complete command, not only flags
    config_read: bool = True            # False: names a --config file that we have not seen
    config_problems: tuple[str, ...] = ()
    env_written: bool = False           # the environment is part of the text that was pasted
    spec: dict[str, Any] = field(default_factory=dict)      # vLLM's speculative settings, from all their places
    spec_given: dict[str, Any] = field(default_factory=dict)    # … of --speculative-config alone
    spec_problems: list[str] = field(default_factory=list)
    asked: bool = False                 # set when a rule looked at the version

    @property
    def architecture(self) -> str | None:
        return self.target.named

    def last(self, name: str) -> Given | None:
        flag = self.table.by_name.get(name)
        return next((g for g in reversed(self.parsed.given) if g.flag is flag), None) if flag else None

    def has(self, name: str) -> bool:
        """Given, and not as its `--no-` form."""
        got = self.last(name)
        return bool(got) and not (got.flag.kind == "bool" and got.spelled.startswith("--no-"))

    def text(self, name: str, default: str | None = None) -> str | None:
        got = self.last(name)
        return got.words[-1] if got and got.words else default

    def texts(self, name: str) -> tuple[str, ...]:
        got = self.last(name)
        return got.words if got else ()

    def number(self, name: str, default: Any = None) -> Any:
        """As the flag's kind says; None where it was not given or does not read as a number."""
        got = self.last(name)
        if not got or not got.words:
            return default
        kind = got.flag.kind if got.flag.kind in ("int", "float", "size") else "float"
        return convert(kind, got.words[-1])

    def env_true(self, name: str, default: bool = False) -> bool:
        return self.env[name].strip().lower() in TRUE if name in self.env else default

    def since(self, version: str) -> bool:
        self.asked = True
        return self.table.version >= parse(version)

    def before(self, version: str) -> bool:
        return not self.since(version)

    @property
    def version(self) -> str:
        return show(self.table.version)


Say = Callable[..., Finding]
Rule = Callable[[Case], Iterator[Finding]]
RULES: dict[str, list[tuple[str, Rule]]] = {"sglang": [], "vllm": []}


def rule(id: str, *engines: str) -> Callable[[Callable[[Case, Say], Iterator[Finding]]], Rule]:
    """Registers a rule under a stable id. It gets the case and `say(verdict, what, why, fix, evidence)`."""
    def register(check):
        def run(case: Case) -> Iterator[Finding]:
            yield from check(case, lambda verdict, what, why="", fix="", evidence="":
                             Finding(id, verdict, what, why, fix, evidence)) or ()
        for engine in engines:
            RULES[engine].append((id, run))
        return run
    return register


def breaks_later(finding: Finding) -> bool:
    """A failure that the engine's own parser lets through, and that ends the launch (or the first request) later."""
    return finding.why.startswith("accepted by the parser")


def capability(gpu: str | None) -> int | None:
    """120 for "sm_120", "sm120", "12.0"; None where it does not read so."""
    if not gpu:
        return None
    if m := re.fullmatch(r"(?:sm_?|compute_)(\d{2,3})[af]?", gpu.strip().lower()):
        return int(m[1])
    if m := re.fullmatch(r"(\d{1,2})\.(\d)", gpu.strip()):
        return int(m[1]) * 10 + int(m[2])
    return None
