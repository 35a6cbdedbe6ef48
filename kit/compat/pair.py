"""A target, its drafter and where they are to run: what every rule of `compat` sees, and how it answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kit.compat.classes import Support
from kit.errors import SpecError
from kit.findings import Finding, Verdict
from kit.lint.versions import Version, parse, show
from kit.modelfacts import ModelFacts, default_aux_layers

ENGINES = {"sglang": "SGLang", "vllm": "vLLM", "llamacpp": "llama.cpp", "any": "the engine"}
# every engine's word for a way of drafting → ours (kit.spec.ALGORITHMS)
ALGORITHMS = {"none": "none", "": "none", "ngram": "ngram", "suffix": "suffix", "eagle": "eagle", "eagle3": "eagle3",
              "dflash": "dflash", "dspark": "dspark", "mtp": "mtp", "nextn": "mtp", "draft": "draft",
              "standalone": "draft", "draft_model": "draft", "draft-simple": "draft", "draft-eagle3": "eagle3",
              "draft-mtp": "mtp", "draft-dflash": "dflash", "ngram-simple": "ngram", "ngram-mod": "ngram",
              "ngram-map-k": "ngram", "ngram-cache": "ngram"}
NEEDS = {"draft": ("plain",), "eagle": ("eagle",), "eagle3": ("eagle3",), "dflash": ("dflash",), "dspark": ("dspark",)}
FOR_PACKAGING = {"plain": "draft", "eagle": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
SPELLED = {"any": {}, "sglang": {"draft": "STANDALONE", "mtp": "NEXTN"}, "vllm": {"draft": "draft_model"},
           "llamacpp": {"draft": "draft-simple", "eagle3": "draft-eagle3"}}


@dataclass(frozen=True)
class Engine:
    """`sglang==0.5.12.post1`, `vllm`, `llamacpp`. version None: not said."""

    name: str
    version: Version | None = None

    @classmethod
    def parse(cls, text: str) -> Engine:
        """Raises `SpecError` for an engine or a version that cannot be one."""
        name, sep, number = text.strip().partition("==")
        name = re.sub(r"[^a-z]", "", name.lower())
        if name not in ENGINES:
            raise SpecError(f"no engine {text!r} is known here", where="engine",
                            next="one of sglang, vllm, llamacpp; or any, for what holds for every engine")
        version = parse(number) if number else None
        if sep and version is None:
            raise SpecError(f"{number!r} is no version", where="engine", next="write it as sglang==0.5.12")
        return cls(name, version)

    @property
    def title(self) -> str:
        return ENGINES[self.name]

    def __str__(self) -> str:
        return f"{self.title} {show(self.version)}" if self.version else self.title

    def spelled(self, algorithm: str) -> str:
        """Our word for an algorithm in this engine's own."""
        return SPELLED[self.name].get(algorithm, algorithm.upper() if self.name in ("sglang", "any") else algorithm)


@dataclass(frozen=True)
class Pair:
    """context: tokens per request, None: the target's own. tp: tensor-parallel size. args: further flags."""

    target: ModelFacts
    drafter: ModelFacts | None
    engine: Engine
    algorithm: str
    context: int | None = None
    tp: int = 1
    support: Support | None = None
    args: tuple[str, ...] = ()

    def flag(self, *names: str) -> str:
        """The last value of a flag that was given by one of these names, "" if none."""
        found = ""
        for word, after in zip(self.args, [*self.args[1:], ""], strict=False):
            name, equals, value = word.partition("=")
            if name in names:
                found = value if equals else after
        return found

    @property
    def head(self) -> ModelFacts | None:
        """The drafter where it is a head that is fed hidden states."""
        d = self.drafter
        return d if d and (d.is_head or self.algorithm in ("eagle", "eagle3")) else None

    def on(self, *engines: str) -> bool:
        return self.engine.name in engines

    def since(self, version: str) -> bool | None:
        """Is the engine at this release or later? None when its version was not said."""
        return None if self.engine.version is None else self.engine.version >= parse(version)

    @property
    def aux_layers(self) -> tuple[int, ...] | None:
        """Target layers (outputs, 0-based) that will be captured: the head's own list, else the engine's default."""
        head = self.head
        if head is None or head.packaging != "eagle3":
            return head.aux_layer_ids if head else None
        if head.aux_layer_ids is not None:
            return head.aux_layer_ids
        return default_aux_layers(self.target.num_layers) if self.target.num_layers else None


def algorithm_named(text: str | None) -> str:
    """>>> algorithm_named("STANDALONE")
    'draft'
    """
    name = ALGORITHMS.get((text or "").strip().lower())
    if name is None:
        raise SpecError(f"no algorithm {text!r} is known here", where="algorithm",
                        next=f"one of {', '.join(sorted(set(ALGORITHMS.values())))}")
    return name


Say = Callable[..., Finding]
RULES: list[tuple[str, Callable[[Pair, Say], Iterator[Finding]]]] = []


def rule(id: str) -> Callable:
    """Registers `def check(pair, say)` that yields `say(verdict, what, why, fix, evidence)`, under a stable id."""
    def add(check: Callable[[Pair, Say], Iterator[Finding]]) -> Callable:
        RULES.append((id, check))
        return check
    return add


def judge(pair: Pair) -> tuple[Finding, ...]:
    """Every rule's answer; a rule that does not apply says nothing."""
    found: list[Finding] = []
    for id, check in RULES:
        def say(verdict: Verdict, what: str, why: str = "", fix: str = "", evidence: str = "", id: str = id) -> Finding:
            return Finding(id, verdict, what, why, fix, evidence)
        found += check(pair, say)
    return tuple(found)
