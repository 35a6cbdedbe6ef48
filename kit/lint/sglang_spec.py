"""SGLang's rules for the speculative numbers: steps S, top-k K, verified tokens N.

Legal shapes: none of the three; S with K=1 (N becomes S+1); S with K>1 and N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kit.lint.case import Case, rule

EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
S, K, N = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
CHAIN = f"{S} 3 {K} 1 {N} 4"
LLAMA = (5, 4, 8)
SHORT_CHAIN = (3, 1, 4)
LONG_AUTO = {"LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"}
# targets with the short chain before 0.5.8 made it everybody's (since release)
SHORT_AUTO = {"DeepseekV3ForCausalLM": "0.4.9", "DeepseekV2ForCausalLM": "0.4.9", "GptOssForCausalLM": "0.5.1",
              "DeepseekV32ForCausalLM": "0.5.3", "BailingMoeForCausalLM": "0.5.3", "BailingMoeV2ForCausalLM": "0.5.3",
              "Glm4MoeForCausalLM": "0.5.6", "MistralLarge3ForCausalLM": "0.5.6",
              "PixtralForConditionalGeneration": "0.5.6", "MiMoV2FlashForCausalLM": "0.5.7"}


@dataclass(frozen=True)
class Numbers:
    """The speculative numbers as given, or (`auto`) as the engine would choose them; None: unset."""

    algorithm: str = ""
    steps: int | None = None
    topk: int | None = None
    tokens: int | None = None
    auto: bool = False
    candidates: tuple[tuple[int, int, int], ...] = ()   # auto triples, where the target's class decides


def algorithm(case: Case) -> str:
    """Upper case, NEXTN under its real name; "" without speculation."""
    name = (case.text("--speculative-algorithm") or "").upper()
    return "EAGLE" if name == "NEXTN" else name


def auto_triples(case: Case, algo: str) -> tuple[tuple[int, int, int], ...]:
    """What the release fills in when none of the three is given; two answers where the target decides."""
    if algo == "STANDALONE":
        return (SHORT_CHAIN,)
    arch = case.architecture
    if arch in LONG_AUTO or case.before("0.4.9"):
        return (LLAMA,)
    if arch is None:
        return (SHORT_CHAIN, LLAMA)
    return (SHORT_CHAIN,) if case.since(SHORT_AUTO.get(arch, "0.5.8")) else (LLAMA,)


def adaptive(case: Case) -> bool:
    """--speculative-adaptive that survives its support check (it then fills the numbers itself)."""
    return (case.has("--speculative-adaptive") and case.since("0.5.14")
            and algorithm(case) in ("EAGLE", "EAGLE3") and case.number(K, 1) == 1
            and not case.has("--enable-dp-attention") and not case.has("--enable-multi-layer-eagle")
            and not case.has("--enable-two-batch-overlap") and not case.has("--enable-pdmux"))


def numbers(case: Case) -> Numbers:
    """Given numbers after SGLang's own adjustments (rule: K == 1 makes N = S + 1)."""
    got = Numbers(algorithm(case), case.number(S), case.number(K), case.number(N))
    if got.algorithm not in EAGLE_FAMILY:
        return got
    if (got.steps, got.topk, got.tokens) == (None, None, None) and not adaptive(case):
        triples = auto_triples(case, got.algorithm)
        if len(triples) > 1:
            return replace(got, auto=True, candidates=triples)
        return Numbers(got.algorithm, *triples[0], auto=True, candidates=triples)
    if got.topk == 1 and got.steps is not None:
        return replace(got, tokens=got.steps + 1)
    return got


def _eagle(case: Case) -> Numbers | None:
    got = numbers(case)
    return got if got.algorithm in EAGLE_FAMILY else None


@rule("spec-steps-missing", "sglang")
def steps_missing(case, say):
    got = _eagle(case)
    if not got or got.steps is not None or (got.topk, got.tokens) == (None, None) or got.auto or adaptive(case):
        return
    given = " and ".join(f"{f} {v}" for f, v in ((K, got.topk), (N, got.tokens)) if v is not None)
    where = "arg_groups/speculative_hook.py" if case.table.version >= (0, 5, 13) else "server_args.py"
    depth = (got.tokens - 1) if got.tokens and got.tokens > 1 and got.topk in (None, 1) else 3
    fixes = [f"a chain: {S} {depth} {K} 1 {N} {depth + 1}"]
    if got.topk and got.topk > 1:
        fixes.append(f"or a tree: {S} 3 {K} {got.topk} {N} 16 (at most {_capacity(3, got.topk) + 1})")
    if got.tokens:
        fixes.append(f"{N} counts verified tokens = drafts + 1 (vLLM's num_speculative_tokens {got.tokens} "
                     f"would be {S} {got.tokens} {K} 1 {N} {got.tokens + 1})")
    yield say("fail", f"{S} is missing", f"with {given} given, SGLang raises a bare AssertionError with no text "
              f"({where}), before any log line", "; ".join(fixes), given)


@rule("spec-topk-missing", "sglang")
def topk_missing(case, say):
    got = _eagle(case)
    if got and got.steps is not None and got.topk is None and not adaptive(case):
        fix = f"add {K} 1 {N} {got.steps + 1}"
        if case.since("0.5.3"):
            yield say("fail", f"{K} is missing", "TypeError: '>' not supported between instances of "
                      "'NoneType' and 'int': only all three or none are filled in", fix, f"{S} {got.steps}")
        else:
            yield say("warn", f"{K} is missing", "this release does not refuse it and breaks later, on the first draft",
                      fix, f"{S} {got.steps}")


@rule("spec-tokens-missing", "sglang")
def tokens_missing(case, say):
    got = _eagle(case)
    if got and got.steps is not None and got.topk and got.topk > 1 and got.tokens is None:
        yield say("fail", f"{N} is missing", f"accepted by the parser; with {K} {got.topk} nothing fills it, "
                  "and the worker fails on it after the weights are loaded",
                  f"add {N} 16 (2 … {_capacity(got.steps, got.topk) + 1}), or {K} 1")


@rule("spec-tokens-adjusted", "sglang")
def tokens_adjusted(case, say):
    got = _eagle(case)
    given = case.number(N)
    if got and got.steps is not None and got.topk == 1 and given is not None and given != got.steps + 1:
        less = given < got.steps + 1
        yield say("warn", f"{N} {given} becomes {got.steps + 1}",
                  "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when "
                  "speculative_eagle_topk == 1; it counts verified tokens, drafts + 1",
                  f"for {given - 1 if less else given} drafts set {S} {given - 1 if less else given} "
                  f"{N} {given if less else given + 1}" if given > 1 else f"set {N} {got.steps + 1}")


@rule("spec-tree-too-wide", "sglang")
def tree_too_wide(case, say):
    got = _eagle(case)
    if not got or None in (got.steps, got.topk, got.tokens) or got.topk < 1 or got.steps < 1:
        return
    most = _capacity(got.steps, got.topk)
    if got.tokens - 1 > most:
        yield say("fail", f"{N} {got.tokens} is more than the tree holds",
                  f"accepted by the parser; {got.steps} steps of top-{got.topk} "
                  f"draft {most} candidates, of which {got.tokens - 1} are asked: "
                  "RuntimeError: selected index k out of range, at graph capture or warm-up",
                  f"{N} {most + 1} or less")


@rule("spec-depth-wasted", "sglang")
def depth_wasted(case, say):
    got = _eagle(case)
    if not got or None in (got.steps, got.topk, got.tokens) or got.auto:
        return
    if got.steps < 1:
        yield say("warn", f"{S} {got.steps} drafts nothing", "accepted, and every step verifies one token",
                  f"{CHAIN}, or leave speculation out")
    elif got.topk > 1 and got.tokens <= got.steps:
        yield say("warn", f"{got.steps} steps are drafted, at most {got.tokens - 1} can be accepted",
                  f"{N} {got.tokens} verifies {got.tokens - 1} drafts and one token of the target's own",
                  f"{N} {got.steps + 1} or more, or {S} {max(1, got.tokens - 1)}")


@rule("spec-numbers-range", "sglang")
def numbers_range(case, say):
    got = _eagle(case)
    for flag, value, least in ((S, got and got.steps, 0), (K, got and got.topk, 1), (N, got and case.number(N), 1)):
        if value is not None and value < least:
            yield say("fail", f"{flag} {value} makes no sense", "accepted by the parser; breaks in the worker",
                      f"{flag} {max(least, 1)} or more")
        elif value is not None and value > 512:
            yield say("warn", f"{flag} {value} is far beyond what pays", "work grows with it, acceptance does not",
                      CHAIN)


@rule("spec-auto", "sglang")
def auto(case, say):
    got = _eagle(case)
    if got and got.auto:
        shown = " or ".join("/".join(map(str, t)) for t in got.candidates)
        tail = "" if len(got.candidates) == 1 else " (the latter for Llama and Grok" + \
            (")" if case.since("0.5.8") else " and all but the DeepSeek family)")
        yield say("pass", f"SGLang {case.version} chooses steps/top-k/verified {shown}{tail}",
                  fix="set the three yourself to compare runs across releases")


@rule("spec-adaptive", "sglang")
def adaptive_rule(case, say):
    if not case.has("--speculative-adaptive"):
        return
    if not adaptive(case):
        yield say("warn", "--speculative-adaptive has no effect here",
                  "speculative_adaptive disabled: it needs EAGLE or EAGLE3, top-k 1, no DP attention, no multi-layer "
                  "EAGLE, no two-batch overlap, no pdmux" + ("" if case.since("0.5.14") else
                                                             "; before 0.5.14 it fills no numbers"),
                  f"drop it and set {CHAIN}")
        return
    steps = (0, 1, 3, 5, 7) if case.since("0.5.20") else (0, 1, 3, 7)   # union of the built-in table's candidates
    if case.number(S) is not None and not case.has("--speculative-adaptive-config") and case.number(S) not in steps:
        yield say("fail", f"{S} {case.number(S)} is not one of the adaptive steps",
                  f"ValueError: --speculative-num-steps={case.number(S)} is not in the adaptive config "
                  f"candidate_steps {list(steps)}",
                  f"{S} 3, or a --speculative-adaptive-config that lists it")


@rule("spec-multi-layer", "sglang")
def multi_layer(case, say):
    got = _eagle(case)
    if not got or not case.has("--enable-multi-layer-eagle"):
        return
    for steps, _, tokens in (got.candidates if got.auto else ((got.steps, got.topk, got.tokens),)):
        if steps is not None and tokens is not None and tokens != steps + 1:
            sure = len(got.candidates) < 2
            doubt = "" if sure else ": refused if the target is a Llama"
            chosen = " (chosen automatically)" if got.auto else ""
            yield say("fail" if sure else "unknown", f"multi-layer EAGLE verifies exactly steps + 1 tokens{doubt}",
                      "accepted by the parser; AssertionError: multi-layer EAGLE requires speculative_num_draft_tokens "
                      f"== speculative_num_steps + 1, got {tokens} and {steps}{chosen}",
                      f"{CHAIN}; the flag is for checkpoints with several MTP layers, not for a plain Llama")


def _capacity(steps: int, topk: int) -> int:
    """Drafted candidates of a tree: K + (S-1)·K² (SGLang speculative/eagle_utils.py, organize_draft_results)."""
    return topk + max(0, steps - 1) * topk * topk
