"""SGLang's rules about what excludes what: parallelism, disaggregation, block drafters, sampling, LoRA."""

from __future__ import annotations

from kit.lint.case import Case, rule
from kit.lint.sglang_rules import BACKENDS, DRAFT
from kit.lint.sglang_spec import K, N, S, adaptive, algorithm, numbers

BLOCK = ("DFLASH", "DSPARK")


def _pp(case: Case) -> float:
    return case.number("--pp-size") or case.number("--pipeline-parallel-size") or 1


def _dp_attention(case: Case) -> bool:
    return case.has("--enable-dp-attention") or (case.number("--attn-dp-size", 1) or 1) > 1


@rule("spec-pipeline", "sglang")
def pipeline(case, say):
    algo = algorithm(case)
    if not algo or _pp(case) <= 1:
        return
    if algo == "DFLASH":
        says = "ValueError: Currently DFLASH speculative decoding only supports pp_size == 1."
    elif case.before("0.5.21"):
        says = ("AssertionError: Pipeline parallelism is not compatible with overlap schedule, speculative decoding"
                + (", mixed chunked prefill." if case.before("0.5.12") else ""))
    elif algo == "EAGLE" and not case.has("--enable-multi-layer-eagle") and \
            (case.env_true("SGLANG_ENABLE_PP_SPEC") or case.text("--disaggregation-mode") == "prefill"):
        return
    elif algo == "DSPARK" and case.text("--disaggregation-mode") == "prefill":
        return
    else:
        says = ("AssertionError: Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative "
                "decoding, and without SGLANG_ENABLE_PP_SPEC only on --disaggregation-mode prefill")
    yield say("fail", "speculation and pipeline parallelism do not go together here", says, "--pp-size 1")


@rule("spec-dp-attention", "sglang")
def dp_attention(case, say):
    algo = algorithm(case)
    if not algo or not _dp_attention(case):
        return
    if algo in ("STANDALONE", "NGRAM"):
        yield say("fail", f"{algo} does not work with DP attention",
                  f"ValueError: Currently {algo.lower()} speculative decoding does not support dp attention.",
                  "drop --enable-dp-attention, or use EAGLE3")
    elif algo == "DFLASH" and (case.before("0.5.20") or (case.since("0.5.23") and not case.has("--enable-dp-lm-head"))):
        yield say("fail", "DFLASH does not work with this DP attention",
                  "ValueError: " + ("Currently DFLASH speculative decoding does not support dp attention."
                                    if case.before("0.5.20") else "DFLASH with dp attention requires "
                                    "--enable-dp-lm-head."),
                  "drop --enable-dp-attention" if case.before("0.5.23") else "--enable-dp-lm-head")
    elif algo == "DFLASH" and case.before("0.5.23"):
        yield say("fail", "DFLASH with DP attention works only on NPU in this release", "",
                  "drop --enable-dp-attention")
    elif algo == "DSPARK" and not case.has("--enable-dp-lm-head"):
        yield say("fail", "DSPARK with DP attention needs --enable-dp-lm-head",
                  "ValueError: DSpark with dp attention requires --enable-dp-lm-head.", "add --enable-dp-lm-head")


@rule("spec-disaggregation", "sglang")
def disaggregation(case, say):
    algo, mode = algorithm(case), case.text("--disaggregation-mode", "null")
    if algo == "DFLASH" and mode in ("prefill", "decode"):
        yield say("fail", "DFLASH has no prefill/decode disaggregation", "accepted by the parser; "
                  "AttributeError: 'NoneType' object has no attribute 'prepare_for_decode' on the first request",
                  "drop --disaggregation-mode, or EAGLE3 / DSPARK")
    if algo and mode == "decode" and case.has("--disaggregation-decode-enable-radix-cache") \
            and algo not in ("DSPARK", "EAGLE", "EAGLE3"):
        yield say("fail", f"{algo} excludes the radix cache on decode nodes", "ValueError: "
                  "--disaggregation-decode-enable-radix-cache is incompatible with speculative decoding",
                  "drop --disaggregation-decode-enable-radix-cache")


@rule("spec-block-size", "sglang")
def block_size(case, say):
    algo, verified = algorithm(case), case.number(N)
    if algo not in BLOCK:
        return
    name = "--speculative-dflash-block-size" if algo == "DFLASH" else "--speculative-dspark-block-size"
    block = case.number(name)
    if block is not None and block <= 0:
        yield say("fail", f"{name} {block} is not positive", f"ValueError: {algo} requires {name} to be positive",
                  f"{name} 16")
    elif algo == "DFLASH" and block and verified is not None and verified != block:
        yield say("fail", f"{N} {verified} and {name} {block} differ",
                  "ValueError: Both --speculative-num-draft-tokens "
                  "and --speculative-dflash-block-size are set but they differ. For DFLASH they must match.",
                  f"drop {N}")
    elif algo == "DSPARK" and block and verified is not None and verified != block + 1:
        yield say("fail", f"{N} {verified} is not gamma + 1 = {block + 1}",
                  "ValueError: DSpark speculative_num_draft_tokens must equal gamma + 1", f"drop {N}")
    for flag in (S, K):
        if case.number(flag) not in (None, 1):
            yield say("warn", f"{flag} {case.number(flag)} becomes 1", f"{algo} only supports 1; its unit is the block",
                      f"drop {flag}")


@rule("spec-uno", "sglang")
def uno(case, say):
    if algorithm(case) != "UNO":
        return
    if not case.last("--uno-lora-path"):
        yield say("fail", "--uno-lora-path is missing", "UNO drafts with a LoRA of the target",
                  "add --uno-lora-path DIR")
    if case.last(DRAFT):
        yield say("fail", f"UNO takes no {DRAFT}", "its drafter is the target with a LoRA", f"drop {DRAFT}")
    if (case.number("--tp-size", 1) or 1) * _pp(case) > 1:
        yield say("fail", "UNO runs on one GPU", "ValueError: UNO requires TP=PP=1.", "--tp-size 1 --pp-size 1")
    if any(case.text(b) not in (None, "fa3") for b in BACKENDS):
        yield say("fail", "UNO needs fa3", "ValueError: UNO requires FA3 for both prefill and decode attention",
                  "--attention-backend fa3")


@rule("spec-ngram-corpus", "sglang")
def ngram_budget(case, say):
    if algorithm(case) == "NGRAM" and case.last("--speculative-ngram-external-corpus-path"):
        budget, drafts = case.number("--speculative-ngram-external-sam-budget"), (case.number(N) or 12) - 1
        if budget is not None and budget > drafts:
            yield say("fail", f"--speculative-ngram-external-sam-budget {budget} exceeds {drafts} drafts",
                      "ValueError: speculative_ngram_external_sam_budget must be less than or equal to "
                      "speculative_num_draft_tokens - 1", f"at most {drafts}")


@rule("spec-sampling", "sglang")
def sampling(case, say):
    algo, got = algorithm(case), numbers(case)
    thresholds = [f for f in ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc")
                  if case.number(f) not in (None, 1.0)]
    if algo and case.has("--speculative-use-rejection-sampling"):
        if algo in ("STANDALONE", "FROZEN_KV_MTP"):
            yield say("fail", f"rejection sampling is not there for {algo}", "NotImplementedError: "
                      "--speculative-use-rejection-sampling is only supported for EAGLE / EAGLE3 / NEXTN", "drop it")
        elif algo in ("EAGLE", "EAGLE3"):
            if got.topk is not None and got.topk != 1 and not got.auto:
                yield say("fail", "rejection sampling needs a chain",
                          "ValueError: --speculative-use-rejection-sampling "
                          "requires --speculative-eagle-topk=1.", f"{K} 1")
            if thresholds:
                yield say("fail", f"rejection sampling excludes {thresholds[0]}", "ValueError: "
                          "--speculative-use-rejection-sampling is incompatible with the accept thresholds",
                          f"drop {thresholds[0]}")
            if case.has("--enable-deterministic-inference"):
                yield say("fail", "rejection sampling excludes --enable-deterministic-inference",
                          "ValueError: --speculative-use-rejection-sampling is incompatible with "
                          "--enable-deterministic-inference", "drop one of them")
            yield say("unknown", "rejection sampling needs a drafter with the target's whole vocabulary",
                      "checked at worker start: most reduced-vocabulary EAGLE-3 heads are refused",
                      "compare draft_vocab_size with vocab_size")
    blockwise = ("", "EAGLE", "EAGLE3", "DFLASH", "DSPARK")
    if case.has("--speculative-use-block-verification") and algo not in blockwise:
        yield say("fail", f"block verification is not there for {algo}", "ValueError: "
                  "--speculative-use-block-verification only supports EAGLE / EAGLE3 / NEXTN / DFLASH / DSPARK.",
                  "drop it")
    if algo and thresholds and any((case.number(f) or 0) < 1 for f in thresholds):
        yield say("warn", f"{thresholds[0]} {case.number(thresholds[0]):g} makes the output lossy",
                  "drafts are accepted that the target would not have chosen", f"drop {thresholds[0]}")


@rule("spec-lora", "sglang")
def lora(case, say):
    algo = algorithm(case)
    if not algo or not (case.has("--enable-lora") or case.last("--lora-paths")) or algo in ("NGRAM", "UNO"):
        return
    if case.since("0.5.6") and case.before("0.5.19"):
        yield say("fail", f"LoRA and {algo} exclude each other",
                  "ValueError: Currently LoRA is only compatible with NGRAM speculative decoding.", "drop one of them")
    elif case.since("0.5.19") and (algo == "STANDALONE" or adaptive(case)):
        yield say("fail", f"LoRA and {algo}{' adaptive' if adaptive(case) else ''} exclude each other",
                  "LoRA is only compatible with NGRAM, EAGLE, NEXTN, EAGLE3, DFLASH and DSPARK, not adaptive",
                  "drop one of them")


@rule("lora-shape", "sglang")
def lora_shape(case, say):
    if case.has("--enable-lora") and not case.last("--lora-paths") and case.since("0.4.9") \
            and not (case.last("--max-lora-rank") and case.last("--lora-target-modules")):
        yield say("fail", "--enable-lora does not say how large its adapters may be",
                  "AssertionError: When no initial --lora-paths is provided, you need to specify both --max-lora-rank "
                  "and --lora-target-modules for LoRA initialization.", "--lora-paths, or --max-lora-rank 64 "
                  "--lora-target-modules all")
