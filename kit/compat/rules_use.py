"""Rules on how the pair is to be used: context, tensor parallelism, tokenizer, template, special tokens."""

from __future__ import annotations

from collections.abc import Iterator

from kit.compat.pair import Pair, Say, rule
from kit.findings import Finding
from kit.modelfacts import ModelFacts

PADDING = 4096      # embeddings are padded to a multiple of some power of two, never by more than this


@rule("context")
def context(p: Pair, say: Say) -> Iterator[Finding]:
    own = p.target.context_length
    wanted = p.context or own
    if p.context and own and p.context > own:
        yield say("fail", f"{p.context} tokens are asked for, the target's limit is {own}", "",
                  f"ask for at most {own}, or scale its rope on purpose")
    if p.drafter is None or p.algorithm in ("none", "ngram", "suffix"):
        if not (p.context and own and p.context > own):
            yield say("pass" if own else "unknown", f"target: {own or 'not said'}; asked for: {p.context or 'its own'}")
        return
    limit = p.drafter.context_length
    if not limit or not wanted:
        yield say("unknown", f"context: {wanted or 'target’s not said'} against the drafter's {limit or 'not said'}",
                  "one of them is not said")
    elif wanted <= limit:
        yield say("pass", f"{wanted} tokens, the drafter goes to {limit}")
    elif p.on("sglang") and p.since("0.4.7") is not False:
        yield say("fail", f"the drafter goes to {limit} tokens, {wanted} would be served",
                  "the launch ends after the target was loaded: “Target model's context_length is greater than the "
                  "derived context_length”",
                  f"serve with --context-length {limit} or less; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 forces "
                  f"it, with few accepted drafts past {limit}")
    else:
        yield say("warn", f"the drafter goes to {limit} tokens, {wanted} would be served",
                  f"past {limit} tokens few drafts are accepted: it never saw such positions in training",
                  f"serve at most {limit} tokens, or measure with long prompts")


@rule("tensor-parallel")
def tensor_parallel(p: Pair, say: Say) -> Iterator[Finding]:
    if p.tp == 1:
        return
    for role, facts in (("target", p.target), ("drafter", p.drafter)):
        if facts is None:
            continue
        if not facts.num_heads:
            yield say("unknown", f"{role}: the number of its attention heads is not said, so neither whether "
                      f"{p.tp} GPUs divide it")
            continue
        bad = _undivided(facts, p.tp)
        if bad:
            yield say("fail", f"{role}: {bad} cannot be split over {p.tp} GPUs", "", "choose a size that divides it")
        else:
            yield say("pass", f"{role}: {facts.num_heads} heads over {p.tp} GPUs")


def _undivided(facts: ModelFacts, tp: int) -> str:
    kv = facts.num_kv_heads or facts.num_heads
    if facts.num_heads % tp:
        return f"{facts.num_heads} attention heads"
    if not facts.kv_lora_rank and kv % tp and tp % kv:      # fewer key-value heads than GPUs are replicated
        return f"{kv} key-value heads"
    if facts.intermediate_size and facts.intermediate_size % tp:
        return f"an intermediate size of {facts.intermediate_size}"
    return ""


@rule("tokenizer")
def tokenizer(p: Pair, say: Say) -> Iterator[Finding]:
    """Only a whole model drafts through its own tokenizer; heads speak the target's ids (see `vocab`)."""
    if p.algorithm != "draft" or p.drafter is None:
        return
    a, b = p.target.tokenizer, p.drafter.tokenizer
    sizes = p.target.vocab_size, p.drafter.vocab_size
    corrupt = "ids of one tokenizer would be accepted under another: corrupted text, without an error"
    if a and b and a.basis == b.basis == "tokens":
        differs = a.first_difference(b)
        if differs is not None:
            yield say("fail", f"the tokenizers differ: id {differs} is {a.tokens[differs]!r} in the target and "
                      f"{b.tokens[differs]!r} in the drafter", corrupt, "use a drafter of the same family")
        elif a.fingerprint == b.fingerprint and sizes[0] == sizes[1]:
            yield say("pass", f"the same {a.size} tokens")
        elif a.fingerprint == b.fingerprint:
            yield _padded(p, say, a.size)
        else:
            yield say("warn", f"the tokenizers agree in {min(a.size, b.size)} ids; one has {abs(a.size - b.size)} more",
                      "ids that only one side knows cannot be drafted or verified")
    elif a and b and a.basis == b.basis and a.kind == b.kind:
        if a.fingerprint == b.fingerprint:
            yield say("pass", f"the same {a.kind}")
        else:
            yield say("unknown", f"their {a.kind} differ as files; whether in a token was not read",
                      fix="a tokenizer.json in both folders would tell")
    elif sizes[0] and sizes[1] and abs(sizes[0] - sizes[1]) > PADDING:
        yield say("fail", f"the target knows {sizes[0]} token ids, the drafter {sizes[1]}", corrupt,
                  "use a drafter of the same family")
    else:
        yield say("unknown", "whether the tokenizers are the same cannot be told",
                  f"vocabularies of {sizes[0]} and {sizes[1]}; no tokenizer.json on both sides",
                  "give folders that hold tokenizer.json")


def _padded(p: Pair, say: Say, real: int | None) -> Finding:
    sizes = f"{p.target.vocab_size} and {p.drafter.vocab_size}"
    what = f"the tokenizers are the same {real} tokens; the embeddings ({sizes}) differ by padding only"
    refuses = {"sglang": "0.5.15", "vllm": "0.18.1"}.get(p.engine.name)     # first read release that does
    if refuses and p.since(refuses) is not False:
        return say("fail" if p.since(refuses) else "unknown", what,
                   f"from {refuses} on {p.engine.title} refuses a draft model whose vocab_size differs",
                   "pad the smaller embedding and lm_head, and set its vocab_size")
    return say("warn", what, "some engines compare the sizes and refuse", "pad the smaller one, or try it")


@rule("special-tokens")
def special_tokens(p: Pair, say: Say) -> Iterator[Finding]:
    d, t = p.drafter, p.target
    if d is None or not (d.eos and t.eos):
        return
    if set(d.eos) & set(t.eos):
        yield say("pass", f"end of text: {sorted(set(d.eos) & set(t.eos))}")
    elif p.head is not None:
        yield say("pass", f"end of text is {list(t.eos)} in the target; the head's own {list(d.eos)} is not used")
    else:
        yield say("warn", f"end of text is {list(t.eos)} in the target and {list(d.eos)} in the drafter",
                  "the drafter will go on where the target stops, and lose those drafts")


@rule("chat-template")
def chat_template(p: Pair, say: Say) -> Iterator[Finding]:
    if p.target.chat_template is False:
        yield say("warn", "the target has no chat template", "chat requests fail, or are formatted by a guess; "
                  "acceptance on chat prompts then says little", "name one, or use plain completions")
    elif p.target.chat_template:
        yield say("pass", "the target has a chat template")


@rule("rope")
def rope(p: Pair, say: Say) -> Iterator[Finding]:
    d = p.drafter
    if d is None or d.rope.theta is None:
        return
    if d.rope.theta <= 0:
        yield say("fail", f"the drafter's rope base is {d.rope.theta:g}", "", "its config is damaged")
    else:
        own = p.target.rope
        theirs = f"target {own.theta:g} ({own.type})" if own.theta else "target not said"
        yield say("pass", f"drafter {d.rope.theta:g} ({d.rope.type}), {theirs}; they need not be equal")


@rule("quantisation")
def quantisation(p: Pair, say: Say) -> Iterator[Finding]:
    d, t = p.drafter, p.target
    if d is None:
        return
    own = d.quantization or d.dtype or "not said"
    if t.quantization and t.format == "hf" and not d.quantization and p.on("sglang"):
        yield say("pass", f"target {t.quantization}, drafter {own}: found in the target's config, so not inherited",
                  "an explicit --quantization would be applied to the drafter too",
                  "then add --speculative-draft-model-quantization unquant")
    else:
        yield say("pass", f"target {t.quantization or t.dtype or 'not said'}, drafter {own}")


def model_name(path: str) -> str:
    """The model's own name in a path, also in a hub cache.

    >>> model_name("/c/models--moonshotai--Kimi-K2.6/snapshots/0a1b")
    'Kimi-K2.6'
    """
    parts = path.replace(":", "/").rstrip("/").split("/")
    cached = [part for part in parts if part.startswith("models--")]
    return cached[-1].rsplit("--", 1)[-1] if cached else parts[-1]


@rule("base-model")
def base_model(p: Pair, say: Say) -> Iterator[Finding]:
    stated = {b.rstrip("/").rsplit("/", 1)[-1].lower() for b in p.drafter.base_models} if p.drafter else set()
    name = model_name(p.target.name).lower()
    if not stated or not name:
        return
    if any(name.startswith(s) or s.startswith(name) for s in stated):        # a quantised copy has a suffix
        yield say("pass", f"made for {', '.join(sorted(stated))}")
    else:
        yield say("warn", f"the drafter says it was made for {', '.join(sorted(stated))}, the target is {name}",
                  "a sibling generation of equal shape loads and runs, with fewer accepted drafts",
                  "compare its accept length with a drafter of the exact target")
