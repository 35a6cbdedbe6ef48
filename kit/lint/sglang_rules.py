"""SGLang's other rules about speculation: algorithm, drafter, backend, scheduler, parallelism, sampling."""

from __future__ import annotations

from kit.lint.case import Case, rule
from kit.lint.sglang_spec import EAGLE_FAMILY, K, N, S, adaptive, algorithm, numbers

DRAFT = "--speculative-draft-model-path"
BACKENDS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
# pages these backends force, whatever --page-size says (server_args.py, _handle_attention_backend_compatibility)
FORCED_PAGES = {"flashmla": (64,), "cutlass_mla": (128,), "trtllm_mla": (32, 64), "trtllm_mha": (16, 32, 64)}
ALGORITHMS = (("0.4.6", {"EAGLE", "EAGLE3", "NEXTN"}), ("0.5.3", {"STANDALONE", "NGRAM"}), ("0.5.11", {"DFLASH"}),
              ("0.5.12", {"FROZEN_KV_MTP"}), ("0.5.16", {"DSPARK"}), ("0.5.20", {"UNO"}))
# targets that carry their own MTP drafter; a path is then optional (since release)
BUNDLED_MTP = {"DeepseekV3ForCausalLM": "0.4.6", "Glm4MoeForCausalLM": "0.4.9", "DeepseekV32ForCausalLM": "0.5.3",
               "BailingMoeForCausalLM": "0.5.3", "BailingMoeV2ForCausalLM": "0.5.3",
               "MistralLarge3ForCausalLM": "0.5.6", "PixtralForConditionalGeneration": "0.5.6",
               "Glm4MoeLiteForCausalLM": "0.5.8", "GlmMoeDsaForCausalLM": "0.5.9",
               "BailingMoeV2_5ForCausalLM": "0.5.9", "HYV3ForCausalLM": "0.5.11", "DeepseekV4ForCausalLM": "0.5.12"}
BLOCK = ("DFLASH", "DSPARK")


def _pp(case: Case) -> float:
    return case.number("--pp-size") or case.number("--pipeline-parallel-size") or 1


def _dp_attention(case: Case) -> bool:
    return case.has("--enable-dp-attention") or (case.number("--attn-dp-size", 1) or 1) > 1


def page_size(case: Case) -> float:
    """KV page the release would use with these flags (1 unless asked, or forced by the backend)."""
    page = case.number("--page-size", 1) or 1
    for flag in ("--attention-backend", "--decode-attention-backend"):
        allowed = FORCED_PAGES.get(case.text(flag, ""), ())
        if allowed and page not in allowed:
            page = 64 if 64 in allowed else allowed[-1]
    return page


@rule("spec-algorithm", "sglang")
def known_algorithm(case, say):
    raw = case.text("--speculative-algorithm")
    if raw is None:
        return
    listed = case.before("0.5.12")
    known = set().union(*(names for since, names in ALGORITHMS if case.since(since)))
    name = raw if listed else raw.upper()
    if name not in known:
        later = next((since for since, names in ALGORITHMS if name.upper() in names), None)
        says = f"error: argument --speculative-algorithm: invalid choice: {raw!r} (exit 2)" if listed else \
            f"ValueError: Unknown speculative algorithm name: {raw.upper()}"
        hint = f"it is there since {later}" if later and name.upper() not in known else \
            f"write {name.upper()}" if name.upper() in known else "choose one of " + ", ".join(sorted(known))
        yield say("fail", f"SGLang {case.version} knows no speculative algorithm {raw[:40]!r}", says, hint)


@rule("spec-flags-without-algorithm", "sglang")
def without_algorithm(case, say):
    if not case.last("--speculative-algorithm"):
        given = [f for f in (S, K, N, DRAFT) if case.last(f)]
        if given:
            yield say("warn", f"{given[0]} has no effect without --speculative-algorithm",
                      "the server starts, and decodes one token at a time",
                      "--speculative-algorithm EAGLE3 (or another)")


@rule("spec-draft-path", "sglang")
def draft_path(case, say):
    algo = algorithm(case)
    if case.last(DRAFT) or not algo:
        return
    if algo == "DFLASH" and case.since("0.5.11"):
        yield say("fail", f"{DRAFT} is missing",
                  "ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path.",
                  f"add {DRAFT} DIR")
    elif algo in ("EAGLE3", "STANDALONE"):
        yield say("fail", f"{DRAFT} is missing", "accepted by the parser; dies when the drafter is loaded, after the "
                  "target's weights", f"add {DRAFT} DIR")
    elif algo in ("EAGLE", "DSPARK"):
        since = BUNDLED_MTP.get(case.architecture or "")
        if not (since and case.since(since)):
            yield say("unknown", f"no {DRAFT}: right only if the target carries its own drafter",
                      "ValueError otherwise: DSpark dense speculative decoding requires setting "
                      "--speculative-draft-model-path." if algo == "DSPARK" else
                      "MTP layers inside the checkpoint (DeepSeek, GLM …) need no path, every other target does",
                      f"add {DRAFT} DIR, or check the target with `kit compat`")


@rule("spec-algorithm-drafter", "sglang")
def algorithm_drafter(case, say):
    algo, path = algorithm(case), (case.text(DRAFT) or "").rstrip("/").rsplit("/", 1)[-1].lower()
    looks = next((k for k in ("eagle3", "dflash", "dspark") if k in path.replace("-", "").replace("_", "")), None)
    fits = {"eagle3": ("EAGLE3",), "dflash": ("DFLASH",), "dspark": ("DSPARK",)}
    if looks and algo and algo not in fits[looks]:
        ends = "runs without an error at accept len 1.00, for ever" if (algo, looks) == ("EAGLE", "eagle3") else \
            "resolves without an error and fails or drafts garbage later"
        yield say("warn", f"the drafter's name says {looks}, the algorithm is {algo}",
                  f"SGLang does not compare them: {ends}", f"--speculative-algorithm {fits[looks][0]}", path[:80])


@rule("spec-attention-topk", "sglang")
def attention_topk(case, say):
    got = numbers(case)
    if got.algorithm in EAGLE_FAMILY and (got.topk or 0) > 1 and not got.auto and case.since("0.5.1") \
            and any(case.text(b) == "trtllm_mha" for b in BACKENDS):
        yield say("fail", "trtllm_mha drafts chains only",
                  "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.", f"{K} 1")
    elif got.auto and any(c[1] > 1 for c in got.candidates) and any(case.text(b) == "trtllm_mha" for b in BACKENDS):
        yield say("unknown", "the automatic top-k may be 4, which trtllm_mha refuses",
                  "the numbers are chosen from the target's class", f"set {S} 3 {K} 1 {N} 4")


@rule("spec-attention-backend", "sglang")
def attention_backend(case, say):
    if not algorithm(case):
        return
    for flag in BACKENDS:
        backend = case.text(flag)
        if backend == "flex_attention" and flag == "--attention-backend" and case.since("0.5.3"):
            yield say("fail", "flex_attention cannot verify drafts",
                      "AssertionError: Speculative decoding is currently "
                      "not supported with Flex Attention backend", "--attention-backend triton or flashinfer")
        elif backend in ("torch_native", "flex_attention"):
            yield say("fail", f"{backend} cannot verify drafts", "accepted by the parser; crashes in warm-up after the "
                      "weights are loaded (AttributeError: 'NoneType' object has no attribute 'shape', or EAGLE is not "
                      "supported in decode attention backend)", f"{flag} triton or flashinfer")


@rule("spec-topk-page", "sglang")
def topk_page(case, say):
    got = numbers(case)
    page = page_size(case)
    topk = got.topk
    if got.algorithm == "NGRAM" and case.since("0.5.3"):
        topk = case.number("--speculative-ngram-max-bfs-breadth", 10)
    elif got.algorithm not in EAGLE_FAMILY:
        return
    if (topk or 0) <= 1 or page <= 1:
        return
    backend = case.text("--attention-backend")
    if got.algorithm == "NGRAM":
        good = {"flashinfer"}
    elif case.before("0.4.9"):
        yield say("warn", f"{K} {int(topk)} becomes 1", f"page size {page:g} forces chains in this release", f"{K} 1")
        return
    elif case.before("0.5.3"):
        return
    else:
        good = {"flashinfer"} if case.before("0.5.6") else {"flashinfer", "fa3"} if case.before("0.5.13") else \
            {"flashinfer", "fa3", "triton"}
    if backend is None:
        yield say("unknown", f"top-k {topk:g} with page size {page:g} works only with {_list(good)}",
                  "the backend is chosen on the host", "name --attention-backend, or --page-size 1")
    elif backend not in good:
        text = "speculative_eagle_topk > 1 with page_size > 1 is " + (
            "unstable and produces incorrect results for paged attention backends" if case.before("0.5.13")
            else f"only supported on ({_list(good)})")
        yield say("fail", f"top-k {topk:g} with page size {page:g} is refused for {backend}", f"ValueError: {text}",
                  f"--page-size 1, {K} 1 or --attention-backend {_list(good)}")


def _list(names) -> str:
    return ", ".join(sorted(names))


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
        if algo in EAGLE_FAMILY and algo == "STANDALONE" or algo == "FROZEN_KV_MTP":
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
