"""The speculative numbers in both engines' words, so that nobody reads one as the other."""

from __future__ import annotations

from kit.lint.case import rule
from kit.lint.sglang_spec import EAGLE_FAMILY, numbers


@rule("spec-terms", "sglang")
def sglang_terms(case, say):
    got = numbers(case)
    if got.algorithm in EAGLE_FAMILY and got.tokens and got.steps is not None and got.topk:
        drafts = got.tokens - 1
        shape = "a chain" if got.topk == 1 else f"a tree, top-{got.topk} per step"
        yield say("pass", f"SGLang steps {got.steps}, top-k {got.topk}, verified {got.tokens} = vLLM "
                  f"num_speculative_tokens {drafts}" + ("" if got.topk == 1 else " (vLLM drafts chains only)"),
                  f"{shape}: at most {min(got.steps, drafts)} drafts and one own token are accepted per step; "
                  "SGLang counts verified tokens, vLLM drafts")
    elif got.algorithm in ("DFLASH", "DSPARK"):
        block = case.number("--speculative-dflash-block-size") if got.algorithm == "DFLASH" else None
        verified = case.number("--speculative-num-draft-tokens") or block
        if verified:
            yield say("pass", f"SGLang verified {verified:g} = vLLM num_speculative_tokens {verified - 1:g}",
                      "a block of drafts in one pass, one own token")


@rule("spec-terms", "vllm")
def vllm_terms(case, say):
    drafts = case.spec.get("num_speculative_tokens")
    if isinstance(drafts, int) and not isinstance(drafts, bool) and drafts > 0:
        yield say("pass",
                  f"vLLM num_speculative_tokens {drafts} = SGLang steps {drafts}, top-k 1, verified {drafts + 1}",
                  "vLLM counts drafts, SGLang the tokens verified (drafts + 1)",
                  evidence=f"--speculative-num-steps {drafts} --speculative-eagle-topk 1 "
                           f"--speculative-num-draft-tokens {drafts + 1}")
