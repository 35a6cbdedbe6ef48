"""From typed fields to widgets and back, and the speculative parameters in each engine's terms.

Bounds, choices and help come from the models of `kit.spec`: there is no second
list of them. Nothing here touches a host.
"""

from __future__ import annotations

import typing
from typing import Any

import ipywidgets as W
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from traitlets import validate

from kit.errors import SpecError
from kit.registry import lookup
from kit.seams import Engine
from kit.spec import Bench, Experiment, Serve, Spec

FIELDS = ("spec.algorithm", "spec.steps", "spec.topk", "spec.draft_tokens", "spec.lookup",
          "bench.concurrency", "serve.slots", "serve.context")
MODELS: dict[str, type[BaseModel]] = {"spec": Spec, "bench": Bench, "serve": Serve}
NO_BOUND = 2**31 - 1    # what a browser's number field holds exactly everywhere


class WholeNumber(W.BoundedIntText):
    """The browser stops at the bounds; a value set beyond them is kept, to be explained instead of bent."""

    @validate("value")
    def _validate_value(self, proposal):
        return proposal["value"]


def engine_of(exp: Experiment) -> Engine | None:
    """The engine of the experiment, None where the kit has no such engine."""
    try:
        return lookup("kit.engines", exp.engine.name, "ENGINE")
    except SpecError:
        return None


def field_of(dotted: str) -> FieldInfo:
    section, name = dotted.split(".")
    return MODELS[section].model_fields[name]


def bounds(info: FieldInfo) -> tuple[int | None, int | None]:
    """Smallest and largest allowed value, as the model says."""
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    return low, high


def help_of(dotted: str) -> str:
    """The field's description and bounds: "drafter passes per verify step, 1 to 32"."""
    info = field_of(dotted)
    low, high = bounds(info)
    limits = f"{low} to {high}" if high is not None else f"at least {low}" if low is not None else ""
    empty = "empty: automatic" if type(None) in typing.get_args(info.annotation) else ""
    return ", ".join(part for part in (info.description, limits, empty) if part)


def widget_of(dotted: str, value: Any, choices: tuple[str, ...] = ()) -> W.Widget:
    """A field with a name a screen reader can say: dropdown for choices, number for an int, text for the rest."""
    info = field_of(dotted)
    named = {"description": dotted.split(".")[1].replace("_", " "), "tooltip": help_of(dotted),
             "style": {"description_width": "8em"}, "layout": {"width": "18em"}}
    if typing.get_origin(info.annotation) is typing.Literal:
        allowed = choices or typing.get_args(info.annotation)
        return W.Dropdown(options=allowed if value in allowed else (*allowed, value), value=value, **named)
    if info.annotation is int:
        low, high = bounds(info)
        return WholeNumber(value=value, min=0 if low is None else low, max=NO_BOUND if high is None else high, **named)
    return W.Text(value=shown(value), continuous_update=False, **named)


def shown(value: Any) -> Any:
    """A field's value as its widget holds it: None is empty, a tuple is `1, 2`."""
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def read(dotted: str, raw: Any) -> Any:
    """The inverse of `shown`, without judging: the model says what is wrong with it."""
    if not isinstance(raw, str):
        return raw
    annotation = field_of(dotted).annotation
    if typing.get_origin(annotation) is tuple:
        return tuple(raw.replace(",", " ").split())
    return None if not raw.strip() and type(None) in typing.get_args(annotation) else raw.strip()


def terms(spec: Spec, engine: Engine | None) -> dict[str, dict[str, str]]:
    """{engine: {flag: value}} side by side, because 3 drafts are 4 verified tokens for SGLang and 3 for vLLM.

    SGLang counts in --speculative-num-draft-tokens what the target verifies, drafts + 1; vLLM's
    num_speculative_tokens counts the drafts (both: their command line references).
    """
    sglang, vllm = {}, {}
    if spec.drafts:
        if spec.algorithm in ("draft", "eagle", "eagle3", "mtp"):
            sglang = {"--speculative-num-steps": str(spec.steps), "--speculative-eagle-topk": str(spec.topk)}
        sglang["--speculative-num-draft-tokens"] = str(spec.verified)
        vllm["num_speculative_tokens"] = str(spec.drafts)
        if spec.algorithm == "ngram":
            vllm["prompt_lookup_max"] = str(spec.lookup)
    table = {"SGLang": sglang, "vLLM": vllm}
    if engine is not None:
        table.pop({"sglang": "SGLang", "vllm": "vLLM"}.get(engine.name, ""), None)
        table[f"{engine.name} (this host's engine)"] = dict(engine.terms(spec))
    return table


def as_text(value: Any) -> str:
    """A result for people without a browser: a frame in full, a figure by its title, the rest by its repr."""
    if value is None:
        return ""
    if hasattr(value, "to_plotly_json"):
        title = value.layout.title.text or "without a title"
        return f"figure: {title} ({len(value.data)} traces); show it with `controls.result` in a cell"
    if hasattr(value, "to_string"):
        return value.to_string()
    return value if isinstance(value, str) else repr(value)
