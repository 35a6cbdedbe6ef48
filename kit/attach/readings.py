"""Flags of each engine → the fields of a config, and what no field can hold. Pure.

A reading is only kept where the engine renders it back to what was written; what does not come back stays as it is,
by hand, in `engine.args`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kit.attach.flags import Flags
from kit.engines import engine
from kit.engines.sglang.flags import TYPES as SGLANG
from kit.errors import SpecError
from kit.findings import Finding
from kit.masking import masked, secret_flag
from kit.spec import Serve, Spec

SPECULATIVE = ("--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk",
               "--speculative-num-draft-tokens")
# vLLM's methods that a config has a word for
VLLM = {"eagle": "eagle", "eagle3": "eagle3", "mtp": "mtp", "draft_model": "draft", "ngram": "ngram",
        "suffix": "suffix", "dflash": "dflash"}
LLAMA_TYPES = {"draft-eagle3": "eagle3", "draft-simple": "draft", "ngram-simple": "ngram"}


@dataclass
class Reading:
    """target, drafter: as the command names them. by_hand: its speculation is in args, not in an arm."""

    flags: Flags
    target: str = ""
    drafter: str = ""
    revision: str = ""
    served_as: str = ""
    serve: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None
    spec: Spec = field(default_factory=Spec)
    by_hand: bool = False
    secrets: list[str] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)

    def say(self, id: str, what: str, why: str = "", fix: str = "", verdict: str = "warn") -> None:
        self.found.append(Finding(id, verdict, what, why, fix))

    def field_(self, flag: str, name: str, kind: type, scale: float = 1) -> None:
        """A field of `serve`; what it cannot hold stays by hand, except for the port."""
        text = self.flags.take(flag)
        if text is None:
            return
        try:
            value: Any = kind(text) if kind is str else kind(float(text) / scale)
            Serve(**{name: value})
        except (ValueError, ValidationError):       # ValidationError is a ValueError; both are meant
            if name == "port":
                raise SpecError(f"port {text}: a config knows ports from 1024 to 65535",
                                next="this service cannot be adopted") from None
            self.say("adopt-by-hand", f"{flag} {text} has no place in serve.{name}",
                     "it is out of the field's bounds", "it stays in engine.args")
            return self.flags.restore(flag, text)
        self.serve[name] = value

    def without_secrets(self) -> None:
        """Keys are never carried: their flags are dropped, and named."""
        kept = []
        for group in self.flags.groups:
            flag = group.words[0].partition("=")[0]
            named = secret_flag(flag) or secret_flag(group.name)
            if (named and (group.values or len(group.words) > 1 or "=" in group.words[0])) \
                    or any(masked(word) != word for word in group.words):
                self.secrets.append(group.name or flag)
            else:
                kept.append(group)
        self.flags.groups = kept


def sglang(flags: Flags) -> Reading:
    it = Reading(flags)
    it.without_secrets()
    if flags.groups and not flags.groups[0].words[0].startswith("-"):       # sglang serve MODEL
        it.target = flags.groups.pop(0).words[0]
    it.target = flags.take("--model-path") or it.target
    it.served_as = flags.take("--served-model-name") or ""
    it.revision = flags.look("--revision") or ""
    flags.take("--enable-metrics")
    for flag, name, kind in (("--host", "bind", str), ("--port", "port", int), ("--tp-size", "tp", int),
                             ("--context-length", "context", int), ("--max-running-requests", "slots", int),
                             ("--mem-fraction-static", "mem_fraction", float)):
        it.field_(flag, name, kind)
    it.drafter = flags.look("--speculative-draft-model-path") or ""
    given = {flag: value for flag in SPECULATIVE if (value := flags.look(flag)) is not None}
    _arm(it, "sglang", given, _sglang_spec(given), "--speculative-draft-model-path")
    return it


def _sglang_spec(given: dict[str, str]) -> dict[str, Any]:
    """Fields of Spec, in the kit's terms: drafted tokens, one fewer than verified."""
    names = {word: name for name, word in SGLANG.items() if word}
    steps, topk, verified = (whole(given.get(flag)) for flag in SPECULATIVE[1:])
    fields: dict[str, Any] = {"algorithm": names.get(given.get(SPECULATIVE[0], "").upper(), "none")}
    fields |= {"steps": steps} if steps else {}
    fields |= {"topk": topk} if topk else {}
    if verified and not (topk == 1 and steps == verified - 1):
        fields["draft_tokens"] = verified - 1
    return fields


def llamacpp(flags: Flags) -> Reading:
    it = Reading(flags)
    it.without_secrets()
    it.target, it.served_as = flags.take("--model") or "", flags.take("--alias") or ""
    flags.take("--metrics")
    it.field_("--host", "bind", str)
    it.field_("--port", "port", int)
    it.field_("--parallel", "slots", int)
    it.field_("--ctx-size", "context", int, it.serve.get("slots", 1))
    it.threads = whole(flags.take("--threads"))
    it.drafter = flags.look("--model-draft") or ""
    names = ("--spec-type", "--spec-draft-n-max", "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m")
    given = {flag: value for flag in names if (value := flags.look(flag)) is not None}
    deep = whole(given.get(names[1]) or given.get(names[3]))
    fields = {"algorithm": LLAMA_TYPES.get(given.get("--spec-type", ""), "none")} | ({"steps": deep} if deep else {})
    fields |= {"lookup": n} if (n := whole(given.get(names[2]))) else {}
    _arm(it, "llamacpp", {k: v for k, v in given.items() if v != "none"}, fields, "--model-draft")
    return it


def vllm(flags: Flags) -> Reading:
    """As far as a config goes: the kit has no vLLM to render it with, so its flags are read and judged, not written."""
    it = Reading(flags)
    it.without_secrets()
    if flags.groups and not flags.groups[0].words[0].startswith("-"):
        it.target = flags.groups.pop(0).words[0]
    it.target = flags.take("--model") or it.target
    it.served_as = flags.take("--served-model-name") or ""
    it.revision = flags.look("--revision") or ""
    for flag, name, kind in (("--host", "bind", str), ("--port", "port", int), ("--tensor-parallel-size", "tp", int),
                             ("--max-model-len", "context", int), ("--max-num-seqs", "slots", int),
                             ("--gpu-memory-utilization", "mem_fraction", float)):
        it.field_(flag, name, kind)
    it.serve.setdefault("bind", "0.0.0.0")
    config = flags.look("--speculative-config")
    if config is not None:
        it.by_hand = not _vllm_spec(it, config)
        if not it.by_hand:
            flags.take("--speculative-config")
    return it


def _vllm_spec(it: Reading, config: str) -> bool:
    """An arm from --speculative-config; False where it says more than an arm can."""
    try:
        said = json.loads(config)
        method, tokens, model = said.pop("method", ""), said.pop("num_speculative_tokens", None), said.pop("model", "")
    except (ValueError, AttributeError):
        return False
    it.drafter = model if isinstance(model, str) else ""
    try:
        it.spec = Spec(algorithm=VLLM.get(method, "none"), steps=tokens)
    except ValidationError:
        return False
    return it.spec.algorithm != "none" and not said and bool(it.drafter or not it.spec.needs_drafter)


def _arm(it: Reading, name: str, given: dict[str, str], fields: dict[str, Any], drafter: str) -> None:
    """The arm whose flags are exactly those given, else all of them stay by hand."""
    if not given and not it.drafter:
        return
    try:
        spec = Spec(**fields)
        same = engine(name).terms(spec) == {k: v.upper() if k == SPECULATIVE[0] else v for k, v in given.items()}
    except (ValidationError, SpecError):
        spec, same = Spec(), False
    it.by_hand = not (same and spec.needs_drafter == bool(it.drafter))
    if not it.by_hand:
        it.spec = spec
        for flag in (*given, drafter):
            it.flags.take(flag)


def whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,9}", text) else None


READERS = {"sglang": sglang, "llamacpp": llamacpp, "vllm": vllm}
