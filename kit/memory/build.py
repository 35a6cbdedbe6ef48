"""Facts of two checkpoints and the settings of a launch → `MemoryPlan`. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kit.findings import Finding, Report
from kit.memory.budget import GIB, Budget, budget, context_gib, parse_engine, reserve_gib
from kit.memory.drafter import Drafting, drafting
from kit.memory.judge import Case, judge
from kit.memory.kv import PerToken, element_bytes, per_token
from kit.memory.plan import MemoryPlan
from kit.memory.weights import main_layers, weights_of
from kit.modelfacts import ModelFacts
from kit.spec import ALGORITHMS

WAYS = {name: name for name in (*ALGORITHMS, "dspark")} | {"standalone": "draft", "nextn": "mtp"}
LARGEST = 1 << 40           # no size or count that a user gives is above this
SPEC_REQUESTS = 48          # SGLang's own limit with speculation when none is given


def memory_plan(target: ModelFacts, drafter: ModelFacts | None = None, *, gpu_mib: int, tp: int = 1,
                engine: str = "sglang==0.5.12.post1", context: int | None = None,
                mem_fraction_static: float | None = None, max_running_requests: int | None = None,
                kv_dtype: str | None = None, algorithm: str = "none", steps: int = 3, topk: int = 1,
                verified: int | None = None, graphs: bool = True, used_mib: int = 0) -> MemoryPlan:
    """Where each GPU's memory goes, and how many tokens and requests fit. Bad values become findings, never errors.

    target, drafter  from `read_model(reader, every_header=True)`; with fewer headers the answer is an estimate
    gpu_mib          memory of one GPU (nvidia-smi memory.total); used_mib: what others hold of it
    context          tokens of a request; None: the target's own
    mem_fraction_static  as given to SGLang: the part, of the memory free before loading, that is for weights and KV
                     cache. The drafter is on top of it up to 0.5.13 and inside from 0.5.14 (`kit.memory.budget`).
                     None: the engine chooses, and the KV cache is not known.
    steps, topk, verified  SGLang's num-steps, eagle-topk and num-draft-tokens (None: steps + 1)
    graphs           CUDA graphs are captured

    >>> memory_plan(target, gpu_mib=143771, mem_fraction_static=0.5, context=2048).kv_bytes
    65536
    """
    counts = {"gpu_mib": gpu_mib, "tp": tp, "context": _or_1(context), "topk": topk, "verified": _or_1(verified),
              "max_running_requests": _or_1(max_running_requests)}
    wrong = [*_not_counts(counts, 1), *_not_counts({"steps": steps, "used_mib": used_mib}, 0),
             *_not_a_fraction(mem_fraction_static)]
    way = WAYS.get(str(algorithm).lower()) if isinstance(algorithm, str) else None
    if way is None:
        wrong.append(Finding("memory-input", "fail", f"no algorithm {_said(algorithm)} is known here",
                             fix=f"one of {', '.join(WAYS)}"))
    if wrong:
        return MemoryPlan(str(engine)[:80], report=Report(tuple(wrong), "memory"))
    if way != "none" and max_running_requests is None:
        max_running_requests = SPEC_REQUESTS
    name, version = parse_engine(engine)
    size = element_bytes(kv_dtype, target)
    weights = main_layers(weights_of(target), target.num_layers)
    kv = per_token(target, tp, size) if size else PerToken(None, why=f"how large a number of {str(kv_dtype)[:40]} is")
    draft = drafting(way, target, drafter, tp, size)
    rule = budget(name, version, draft.drafts)
    context = context or target.context_length
    in_flight = max(steps * topk, verified or steps + 1) if way != "none" else 0
    plan = MemoryPlan(
        engine=str(engine)[:80], gpu_gib=gpu_mib / 1024, tp=tp, mem_fraction_static=mem_fraction_static,
        free_gib=max(0.0, (gpu_mib - used_mib) / 1024 - context_gib(tp)),
        target_gib=weights.on_gpu(tp) / GIB if weights.known else None, target_basis=weights.basis,
        drafter_gib=_gib(draft.resident_bytes), drafter_load_gib=_gib(draft.load_bytes), drafter_basis=draft.basis,
        kv_bytes=kv.bytes, draft_kv_bytes=draft.kv.bytes, context=context,
        tokens_per_request=context + in_flight if context else None, max_running_requests=max_running_requests,
        reserve_gib=reserve_gib(gpu_mib, tp, graphs, max_running_requests))
    plan = replace(plan, kv_tokens=kv_tokens(plan, rule, kv, draft, way))
    case = Case(plan, target, drafter, weights, kv, draft, way, name, rule)
    return replace(plan, report=Report(tuple(judge(case)), "memory"))


def kv_tokens(plan: MemoryPlan, rule: Budget | None, kv: PerToken, draft: Drafting, way: str) -> int | None:
    """(free × fraction − weights) / bytes of a token; None when one of them is not known."""
    if rule is None or plan.mem_fraction_static is None or plan.target_gib is None or not kv.bytes:
        return None
    taken, cell = plan.target_gib, float(kv.bytes)
    inside = draft.drafts and rule.drafter_inside
    if inside and (not draft.layers or plan.drafter_load_gib is None):
        return None
    if inside:
        taken += plan.drafter_load_gib
    if inside or way in ("dflash", "dspark"):
        cell *= 1 + draft.layers / kv.layers        # as if each of its layers were one of the target's
    return max(0, int((plan.free_gib * plan.mem_fraction_static - taken) * GIB / cell))


def _gib(size: float | None) -> float | None:
    return None if size is None else size / GIB


def _or_1(value: Any) -> Any:
    return 1 if value is None else value


def _not_counts(values: dict[str, Any], least: int) -> list[Finding]:
    return [Finding("memory-input", "fail", f"{name} is {_said(value)}, which is no whole number from {least} up")
            for name, value in values.items() if type(value) is not int or not least <= value < LARGEST]


def _not_a_fraction(value: Any) -> list[Finding]:
    good = value is None or (type(value) in (int, float) and 0 < value < 1 and math.isfinite(value))
    return [] if good else [Finding(
        "memory-input", "fail", f"mem_fraction_static is {_said(value)}, which is not between 0 and 1",
        "it is the part of the free memory that weights and KV cache may take", "usual values are 0.75 to 0.9")]


def _said(value: Any) -> str:
    if type(value) is int and abs(value) >= LARGEST:
        return "a number past any size"
    return repr(value)[:40] if isinstance(value, (int, float, str)) else type(value).__name__
