"""Findings of a memory plan: what fits, what does not, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kit.findings import Finding
from kit.memory.budget import GIB, Budget, newest
from kit.memory.drafter import Drafting
from kit.memory.kv import PerToken
from kit.memory.plan import MemoryPlan
from kit.memory.weights import Weights
from kit.modelfacts import ModelFacts

DOUBT = 0.05                # how far an estimate may be off
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Case:
    plan: MemoryPlan
    target: ModelFacts
    drafter: ModelFacts | None
    weights: Weights
    kv: PerToken
    draft: Drafting
    algorithm: str
    engine: str
    rule: Budget | None


def judge(case: Case) -> Iterator[Finding]:
    yield from _heads(case)
    yield from _headers(case)
    yield from _weights(case)
    yield from _fraction(case)
    yield from _cache(case)
    yield from _requests(case)
    yield from _drafter(case)
    yield from _left(case)


def divides(heads: int | None, kv_heads: int | None, latent: bool, tp: int) -> bool:
    """Can attention be split? Heads must divide; key-value heads must divide or be repeated evenly."""
    if heads and heads % tp:
        return False
    return latent or not kv_heads or kv_heads % tp == 0 or tp % kv_heads == 0


def _heads(c: Case) -> Iterator[Finding]:
    for role, facts in (("target", c.target), ("drafter", c.drafter)):
        if facts is None or (role == "drafter" and not c.draft.drafts):
            continue
        heads, kv, tp = facts.num_heads, facts.num_kv_heads, c.plan.tp
        if not divides(heads, kv, bool(facts.kv_lora_rank), tp):
            yield Finding("memory-heads", "fail", f"the {role}'s {heads} heads and {kv} key-value heads do not divide "
                          f"over {tp} GPUs", "attention is split by heads", "choose a tp that divides them")
        elif tp > 1 and facts.kv_lora_rank:
            yield Finding("memory-heads", "pass", f"the {role}'s latent cache is whole on each of {tp} GPUs")
        elif tp > 1 and kv and kv < tp:
            yield Finding("memory-heads", "pass", f"the {role}'s {kv} key-value heads are repeated over {tp} GPUs: "
                          f"a token takes as much on each as with tp {kv}")


def _headers(c: Case) -> Iterator[Finding]:
    for role, basis, note in (("target", c.weights.basis, c.weights.note), ("drafter", c.draft.basis, c.draft.note)):
        if basis in ("estimate", "file sizes"):
            yield Finding("memory-headers", "unknown", f"the {role}'s weights are an estimate, by "
                          + ("its config alone" if basis == "estimate" else "its file sizes and its config"), note,
                          "read every header of the checkpoint")


def _weights(c: Case) -> Iterator[Finding]:
    p = c.plan
    if p.target_gib is None:
        yield Finding("memory-weights", "unknown", "how much the target's weights take is not known", c.weights.note,
                      "give the folder with its config and safetensors files")
        return
    sure = c.weights.basis == "headers"
    total = f"{c.weights.total_bytes / 1e9:,.1f} GB" + ("" if sure else f" (by {c.weights.basis})")
    text = f"{total} of target weights: {p.target_gib:,.2f} GiB on each GPU at tp {p.tp}, {p.free_gib:,.2f} GiB free"
    if p.target_gib <= p.free_gib * (1 if sure else 1 - DOUBT):
        yield Finding("memory-weights", "pass", text)
    elif sure or p.target_gib > p.free_gib * (1 + DOUBT):
        yield Finding("memory-weights", "fail", text, f"{p.tp} × {p.gpu_gib:,.1f} GiB cannot hold it", _enough(c))
    else:
        yield Finding("memory-weights", "unknown", text, "too close for an estimate", "read every header")


def _enough(c: Case) -> str:
    """How many such GPUs hold the weights with a tenth to spare."""
    fits = (n for n in SIZES if n > c.plan.tp and c.weights.on_gpu(n) / GIB <= 0.9 * c.plan.free_gib
            and divides(c.target.num_heads, c.target.num_kv_heads, bool(c.target.kv_lora_rank), n))
    enough = next(fits, None)
    fewer = "a stronger quantisation, or GPUs with more memory"
    return f"tp {enough} of such GPUs, {fewer}" if enough else fewer


def _fraction(c: Case) -> Iterator[Finding]:
    p = c.plan
    if c.engine != "sglang":
        yield Finding("memory-fraction", "unknown", f"how {p.engine or 'the engine'} divides memory is not modelled",
                      "only SGLang's rule was read", "weights and KV per token hold for it too")
    elif c.rule is None:
        yield Finding("memory-fraction", "unknown", f"what the fraction covers in {p.engine} is not known",
                      f"releases 0.4.6 to {newest()} were read, and they differ in whether the drafter is inside",
                      "name the release, e.g. sglang==0.5.12.post1")
    elif p.mem_fraction_static is None:
        yield Finding("memory-fraction", "unknown", "the engine chooses mem-fraction-static itself",
                      "it depends on flags and GPU", "give --mem-fraction-static")
    else:
        where = "" if not c.draft.drafts else ", the drafter included" if c.rule.drafter_inside else \
            "; the drafter's weights and KV cache come on top"
        yield Finding("memory-fraction", "pass", f"{p.mem_fraction_static:g} of {p.free_gib:,.2f} GiB, "
                      f"{p.mem_fraction_static * p.free_gib:,.2f} GiB, are for weights and KV cache{where}",
                      f"{p.gpu_gib - p.free_gib:,.1f} GiB of each GPU are taken before: by others, and by driver and "
                      "communication as measured on H200 with SGLang 0.5.12 and one or two GPUs")


def _cache(c: Case) -> Iterator[Finding]:
    p = c.plan
    if p.kv_bytes is None:
        yield Finding("memory-kv", "unknown", "what a token of context takes is not known", c.kv.why)
    elif p.kv_tokens is None:
        yield Finding("memory-kv", "unknown", f"a token takes {p.kv_bytes:,} B on each GPU; how many fit is not known",
                      "weights, fraction or release are not known")
    elif p.target_gib > p.free_gib:
        return
    elif p.kv_tokens == 0:
        yield Finding("memory-kv", "fail", "the weights leave no room for a KV cache within the fraction",
                      "SGLang would say: Not enough memory. Please try to increase --mem-fraction-static.", _raise(c))
    elif p.tokens_per_request and p.kv_tokens < p.tokens_per_request:
        yield Finding("memory-kv", "fail", f"{p.kv_tokens:,} tokens fit, one request may have {p.tokens_per_request:,}",
                      "a request of the whole context can never be served", _raise(c))
    else:
        yield Finding("memory-kv", "pass",
                      f"{p.kv_tokens:,} tokens of {p.kv_bytes:,} B: {p.kv_gib:,.2f} GiB on each GPU")


def _raise(c: Case) -> str:
    """The smallest fraction with which one request fits."""
    p = c.plan
    inside = p.drafter_load_gib or 0.0 if c.rule and c.rule.drafter_inside else 0.0
    need = (p.target_gib + inside + (p.tokens_per_request or 1) * p.kv_bytes / GIB) / p.free_gib if p.free_gib else 2.0
    return f"--mem-fraction-static above {need:.3f}, or a shorter context" if need < 0.99 else \
        "more GPUs, a shorter context or a stronger quantisation: no fraction is enough"


def _requests(c: Case) -> Iterator[Finding]:
    p = c.plan
    if not p.requests or not p.max_running_requests:
        return
    text = f"{p.requests:,} requests of {p.tokens_per_request:,} tokens fit at once, {p.max_running_requests:,} may run"
    if p.requests >= p.max_running_requests:
        yield Finding("memory-requests", "pass", text)
    else:
        yield Finding("memory-requests", "warn", text, "when they grow longer than "
                      f"{p.kv_tokens // p.max_running_requests:,} tokens on average, some start again",
                      "benchmark with the lengths you expect, or allow fewer requests")


def _drafter(c: Case) -> Iterator[Finding]:
    p, layers = c.plan, c.draft.layers
    if not c.draft.drafts:
        return
    if p.drafter_gib is None:
        yield Finding("memory-drafter", "unknown", "how much the drafter's weights take is not known", c.draft.note,
                      "give the drafter's folder")
    elif p.draft_kv_gib is not None:
        weights = f"weights {p.drafter_gib:,.2f} (while loading {p.drafter_load_gib:,.2f})"
        yield Finding("memory-drafter", "pass", f"the drafter takes {p.drafter_gib + p.draft_kv_gib:,.2f} GiB on each "
                      f"GPU: {weights}, KV {p.draft_kv_gib:,.2f}")
    if p.draft_kv_bytes is None:
        yield Finding("memory-draft-kv", "unknown", "what a token takes in the drafter's cache is not known",
                      c.draft.kv.why)
        return
    if c.rule and c.rule.drafter_inside and p.kv_tokens and c.kv.layers:
        over = p.kv_tokens * (p.draft_kv_bytes - p.kv_bytes * layers / c.kv.layers) / GIB
        if over > 0.1:
            yield Finding("memory-draft-kv", "warn", f"the drafter's cache takes {over:,.2f} GiB more than budgeted",
                          "SGLang counts each of its layers as one of the target's, and they are wider",
                          "leave that much more beside the fraction")


def _left(c: Case) -> Iterator[Finding]:
    p = c.plan
    if p.left_gib is None or not p.kv_tokens:
        return
    text = f"{p.left_gib:,.2f} GiB are left on each GPU for activations and CUDA graphs"
    rule = f"SGLang's own cautious rule of thumb is {p.reserve_gib:,.2f} GiB for such settings"
    if p.left_gib < 0:
        yield Finding("memory-left", "fail", f"{-p.left_gib:,.2f} GiB more are needed than each GPU has",
                      "weights, caches and drafter together; loading ends out of memory", _lower(c))
    elif p.left_gib < p.reserve_gib:
        yield Finding("memory-left", "warn", text, f"{rule}; less can do, until a long prefill or a capture fails",
                      _lower(c))
    else:
        yield Finding("memory-left", "pass", text, rule)


def _lower(c: Case) -> str:
    """The largest fraction that leaves the reserve, with the drafter paid for."""
    p, ratio, fixed = c.plan, 0.0, 0.0
    if c.rule and not c.rule.drafter_inside and p.kv_bytes:
        ratio, fixed = (p.draft_kv_bytes or 0) / p.kv_bytes, p.drafter_gib or 0.0
    if not p.free_gib or p.target_gib is None:
        return ""
    most = (p.free_gib - fixed + ratio * p.target_gib - p.reserve_gib) / (p.free_gib * (1 + ratio))
    least = p.target_gib / p.free_gib
    return f"--mem-fraction-static up to {most:.3f} leaves that much" if most > least else \
        "no fraction leaves that much: a smaller prefill chunk, fewer graphs, or more GPUs"
