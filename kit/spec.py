"""What the user writes down: frozen, typed, checked at load.

    exp = Experiment.load("configs/laptop.yaml")
    exp.arm("eagle3").with_(**{"spec.steps": 5})

One `Experiment` is one target, one engine, one host and several *arms*; an arm
is a setting of the speculative parameters. `exp.spec` is the arm in force.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from kit import project
from kit.checkpoint import Checkpoint, Frozen
from kit.errors import SpecError
from kit.launch import Launch
from kit.masking import is_secret
from kit.yamlfile import mapping

NAME = r"^[a-z0-9][a-z0-9-]{0,40}$"
ALGORITHMS = ("none", "ngram", "draft", "eagle", "eagle3", "mtp", "dflash", "dspark", "suffix")


class Gpus(Frozen):
    """The GPUs that a config was written for; what a survey finds on the host counts before it."""

    count: int = Field(ge=1, le=1024, description="GPUs of the host")
    memory_mib: int = Field(ge=1024, le=1 << 24, description="of each, as nvidia-smi says memory.total")
    arch: str | None = Field(None, pattern=r"^sm_\d{2,3}$", description="compute capability, e.g. sm_120")


class HostSpec(Frozen):
    """Where it runs: a name that ssh knows, and where the kit may write. A config may name a file of this instead."""

    ssh: str = Field(min_length=1,
                     description="name in ~/.ssh/config, user@host:port, or 'rehearsal' for the embedded host")
    root: str = Field("~/.specbook", description="folder on the host that the kit owns")
    python: str = Field("python3", description="Python >= 3.9 on the host, for the kit's own helpers")
    supervisor: str = Field("process", description="who keeps the services: process, systemd, systemd-user")
    run_as: str = Field("", pattern=r"^([a-z_][a-z0-9_-]*)?$", description="user of the services (systemd only); "
                                                                           "default: who logs in")
    gpus: Gpus | None = Field(None, description="count, memory_mib and arch of its GPUs, for checks without the host")

    @field_validator("root")
    @classmethod
    def _folder_of_its_own(cls, v: str) -> str:
        """The kit makes bin/ and models/ there, and `removed` deletes what it made."""
        parts = v.rstrip("/").split("/")
        if parts in ([""], ["~"]) or ".." in parts or "\0" in v or re.match("~[^/]", v):
            raise ValueError("should be a folder of its own, e.g. ~/.specbook or /data/specbook")
        return v.rstrip("/")


class EngineSpec(Frozen):
    """The inference server."""

    name: str = Field(description="llamacpp, sglang")
    version: str | None = Field(None, pattern=r"^\d+(\.\d+){1,3}([.-]?(post|rc|dev|a|b)\d+)*$",
                                description="release that the flags are written and judged for, as pip names it")
    python: str | None = Field(None, description="interpreter that has the engine; default: the kit installs one")
    threads: int = Field(1, ge=1, le=512, description="CPU threads of the engine (SGLang: OMP_NUM_THREADS)")
    args: tuple[str, ...] = Field((), description="further flags, passed as they are")
    env: dict[str, str] = Field({}, description="environment of the server; never secrets")
    secrets: tuple[str, ...] = Field((), description="environment variables of this machine that the server gets too, "
                                                     "through a file that only its user reads, e.g. HF_TOKEN")
    launch: Launch | None = Field(None, description="what goes before the command: numactl, a conda environment")

    @model_validator(mode="after")
    def _can_be_passed(self) -> EngineSpec:
        if any("\0" in text for text in (*self.args, *self.env, *self.env.values())):
            raise ValueError("args and env cannot hold a NUL character")
        if bad := [name for name in self.env if not name or "=" in name]:
            raise ValueError(f"env: {bad[0]!r} is no name of a variable")
        if bad := [name for name, value in self.env.items() if is_secret(name, value)]:
            raise ValueError(f"env: {bad[0]} looks like a secret, and a unit file is read by every user of the host; "
                             "name the variable under secrets, and export it here")
        if bad := [name for name in self.secrets if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]:
            raise ValueError(f"secrets: {bad[0]!r} is no name of a variable; write the name here, never the value")
        return self

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before the engine's own command."""
        return self.launch.prefix() if self.launch else ()

    @property
    def release(self) -> str:
        """As pip names it: sglang==0.5.12.post1, or the name alone."""
        return f"{self.name}=={self.version}" if self.version else self.name


class Spec(Frozen):
    """Speculative parameters, in the field's terms. Per verify step of a chain (topk 1):

    steps        drafter forward passes (SGLang --speculative-num-steps)
    topk         branches kept per pass; > 1 makes a tree (SGLang --speculative-eagle-topk)
    draft_tokens tokens proposed (vLLM num_speculative_tokens); None: steps × 1 for a chain.
                 The target verifies draft_tokens + 1 (SGLang --speculative-num-draft-tokens).
    lookup       n-gram length that must match (ngram only)
    """

    algorithm: Literal[ALGORITHMS] = Field("none", description="how tokens are drafted")
    steps: int = Field(3, ge=1, le=32, description="drafter passes per verify step")
    topk: int = Field(1, ge=1, le=16, description="branches per pass (1: a chain)")
    draft_tokens: int | None = Field(None, ge=1, le=256, description="drafted tokens per step (verified: one more)")
    lookup: int = Field(4, ge=1, le=64, description="n-gram length that must match")

    @property
    def drafts(self) -> int:
        """Tokens drafted per verify step; 0 without speculation."""
        return 0 if self.algorithm == "none" else (self.draft_tokens or self.steps)

    @property
    def verified(self) -> int:
        """Tokens the target computes per step: the drafts and one of its own."""
        return self.drafts + 1

    @property
    def needs_drafter(self) -> bool:
        return self.algorithm in ("draft", "eagle", "eagle3", "dflash", "dspark")


class Serve(Frozen):
    """How the server listens and when we give up on it."""

    bind: str = Field("127.0.0.1", description="address on the host; reached through SSH")
    port: int = Field(30000, ge=1024, le=65535, description="port on the host")
    context: int = Field(4096, ge=64, description="context length, tokens per request")
    slots: int = Field(1, ge=1, le=1024, description="requests served at once (SGLang --max-running-requests)")
    tp: int = Field(1, ge=1, le=64, description="GPUs that share the model (tensor parallel)")
    mem_fraction: float | None = Field(None, gt=0, lt=1, description="part of the GPU for weights and KV cache (SGLang "
                                                                     "--mem-fraction-static)")
    healthy_within_s: float = Field(120.0, gt=0, le=86400, description="deadline from start to a generated answer")
    stop_within_s: float = Field(10.0, gt=0, le=3600, description="seconds between TERM and KILL")
    restart: bool = Field(False, description="started again when it fails (systemd only); not after a refused flag")
    at_boot: bool = Field(False, description="started with the host (systemd only)")


class Bench(Frozen):
    """The load: the same prompts, in the same order, at every concurrency and for every arm."""

    prompt_sets: tuple[str, ...] = Field(("chat", "repetitive"), min_length=1, description="files in data/prompts")
    prompts: int = Field(8, ge=1, le=10000, description="prompts of each set")
    concurrency: tuple[int, ...] = Field((1, 2), min_length=1, description="requests in flight, closed loop")
    output_tokens: int = Field(96, ge=1, le=100000, description="max_tokens of every request")
    warmup: int = Field(2, ge=0, le=1000, description="requests before each cell, of 16 tokens at most; "
                                                  "not counted")
    request_limit_s: float = Field(120.0, gt=0, le=86400, description="a request is counted as failed after this")

    @field_validator("concurrency")
    @classmethod
    def _positive(cls, v: tuple[int, ...]) -> tuple[int, ...]:
        if any(c < 1 or c > 4096 for c in v) or len(set(v)) != len(v):
            raise ValueError("each should be between 1 and 4096, and named once")
        return v


class Experiment(Frozen):
    """Everything one runbook is about. Frozen; `with_` and `arm` return checked copies.

    >>> Experiment.load("configs/laptop.yaml").arm("eagle3").spec.drafts
    3
    """

    name: str = Field(pattern=NAME, description="becomes part of unit names")
    host: HostSpec
    engine: EngineSpec
    target: Checkpoint
    drafter: Checkpoint | None = None
    serve: Serve = Serve()
    arms: dict[str, Spec] = Field({"baseline": Spec()}, min_length=1)
    bench: Bench = Bench()
    arm_name: str = Field("baseline", pattern=NAME, description="the arm in force")

    @field_validator("host", mode="before")
    @classmethod
    def _short_host(cls, v: Any) -> Any:
        return {"ssh": v} if isinstance(v, str) else v

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        bad = [a for a in self.arms if not re.match(NAME, a)]
        if bad:
            raise ValueError(f"arms.{bad[0]}: names are lower-case letters, digits and dashes")
        if self.arm_name not in self.arms:
            raise ValueError(f"arm_name: no arm {self.arm_name!r}; there are {', '.join(self.arms)}")
        lonely = [a for a, s in self.arms.items() if s.needs_drafter and self.drafter is None]
        if lonely:
            raise ValueError(f"arms.{lonely[0]}: needs a drafter, and the config names none")
        return self

    # -- reading and changing

    @classmethod
    def load(cls, path: str | Path, host: str = "") -> Experiment:
        """Read a YAML file. `SpecError` names the file and the dotted field.

        host   another host's ssh name, instead of the one in the file
        """
        path = project.resolve(path)
        data = mapping(path)
        written = data.get("host")
        if isinstance(written, str) and written.endswith((".yaml", ".yml")):
            data["host"] = written = mapping(project.resolve(written))
        if host:
            data["host"] = {**(written if isinstance(written, dict) else {}), "ssh": host}
        return cls._checked(data, str(path))

    @classmethod
    def _checked(cls, data: dict, where: str) -> Experiment:
        try:
            return cls.model_validate(data)
        except ValidationError as e:
            lines = [_explain(err) for err in e.errors()]
            raise SpecError("; ".join(lines), where=where, next="mend the field named first and load again") from None

    def with_(self, **changes: Any) -> Experiment:
        """A checked copy with some fields changed: `exp.with_(**{"serve.port": 9000})`.

        Dotted names reach inside; `spec.…` means the arm in force.
        """
        data = self.model_dump()
        for dotted, value in changes.items():
            *path, last = dotted.replace("__", ".").split(".")
            if path[:1] == ["spec"]:
                path = ["arms", self.arm_name, *path[1:]]
            place = data
            for part in path:
                place = place.get(part) if isinstance(place, dict) else None
                if not isinstance(place, dict):
                    raise SpecError(f"{dotted}: no such field", where=self.name, next="see kit.spec for the fields")
            if isinstance(value, BaseModel):
                value = value.model_dump()
            place[last] = value
        return self._checked(data, self.name)

    def arm(self, name: str) -> Experiment:
        """The same experiment with another arm in force."""
        return self.with_(arm_name=name)

    @property
    def spec(self) -> Spec:
        return self.arms[self.arm_name]

    @property
    def unit(self) -> str:
        """Name of this arm's service on the host."""
        return f"{self.name}-{self.arm_name}"

    def diff(self, other: Experiment) -> list[tuple[str, Any, Any]]:
        """Dotted fields that differ: (field, here, there)."""
        a, b = _flat(self.model_dump()), _flat(other.model_dump())
        return [(k, a.get(k), b.get(k)) for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]


def _flat(data: dict, prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + str(key)] = value
    return out


def _explain(err: dict) -> str:
    """One pydantic error as `dotted.path: what (got …)`."""
    path = ".".join(str(p) for p in err["loc"])
    what = err["msg"].removeprefix("Value error, ")
    if err["type"] == "extra_forbidden":
        return f"{path}: no such field"
    got = "" if err["type"] in ("missing", "value_error") and not isinstance(err["input"], (str, int, float)) \
        else f" (got {err['input']!r})"
    return f"{path}: {what}{got}" if path else what
