"""SGLang's rules about the algorithm, its drafter and the attention backend."""

from __future__ import annotations

from kit.lint.case import Case, rule
from kit.lint.sglang_spec import EAGLE_FAMILY, K, N, S, algorithm, numbers

DRAFT = "--speculative-draft-model-path"
BACKENDS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
# pages these backends force, whatever --page-size says (server_args.py, _handle_attention_backend_compatibility)
FORCED_PAGES = {"flashmla": (64,), "cutlass_mla": (128,), "trtllm_mla": (32, 64), "trtllm_mha": (16, 32, 64)}
ALGORITHMS = (("0.4.6", {"EAGLE", "EAGLE3", "NEXTN"}), ("0.5.3", {"STANDALONE", "NGRAM"}), ("0.5.11", {"DFLASH"}),
              ("0.5.12", {"FROZEN_KV_MTP"}), ("0.5.16", {"DSPARK"}), ("0.5.20", {"UNO"}))
# targets whose own MTP layers draft when no path is given (since release): the classes that `model_path or
# server_args.model_path` is turned into an MTP class for (configs/model_config.py), and those that default the path
OWN_MTP = {name: since for since, names in (
    ("0.4.6", "DeepseekV3ForCausalLM MiMoForCausalLM"),
    ("0.4.9", "Glm4MoeForCausalLM"),
    ("0.5.1", "Ernie4_5_MoeForCausalLM"),
    ("0.5.3", "DeepseekV32ForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM LongcatFlashForCausalLM "
              "Qwen3NextForCausalLM"),
    ("0.5.6", "MistralLarge3ForCausalLM PixtralForConditionalGeneration"),
    ("0.5.7", "MiMoV2FlashForCausalLM"),
    ("0.5.8", "Glm4MoeLiteForCausalLM NemotronHForCausalLM"),
    ("0.5.9", "GlmMoeDsaForCausalLM BailingMoeV2_5ForCausalLM ExaoneMoEForCausalLM GlmOcrForConditionalGeneration "
              "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration Step3p5ForCausalLM"),
    ("0.5.11", "HYV3ForCausalLM MiMoV2ForCausalLM"),
    ("0.5.12", "DeepseekV4ForCausalLM InternS2PreviewForConditionalGeneration"),
    ("0.5.13", "NemotronHPuzzleForCausalLM Qwen3MoeForCausalLM Step3p7ForConditionalGeneration"),
    ("0.5.16", "InklingForConditionalGeneration"),
    ("0.5.17", "Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM"),
    ("0.5.18", "InternS2MobiusForConditionalGeneration"),
    ("0.5.19", "BailingMoeV3ForCausalLM"),
    ("0.5.20", "HYV4ForCausalLM Qwen4ExpForConditionalGeneration Glm5NextForConditionalGeneration "
               "NemotronH_Omni_Reasoning_V3"),
    ("0.5.21", "GigaChat35ForCausalLM"),
    ("0.5.22", "ExaoneMoeForCausalLM")) for name in names.split()}
# any of these keys in the target's config.json: it carries its own DSPARK drafter (dspark_config.py)
BUNDLED_DSPARK = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")


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
    elif algo == "DSPARK":
        says, bundled = "DSpark dense speculative decoding requires setting --speculative-draft-model-path.", \
            carries_dspark(case)
        if bundled is None:
            yield say("unknown", f"no {DRAFT}: right only if the target carries its own drafter",
                      f"ValueError otherwise: {says}", f"add {DRAFT} DIR, or check the target with `kit compat`")
        elif not bundled:
            yield say("fail", f"{DRAFT} is missing, and the target carries no DSPARK drafter", f"ValueError: {says}",
                      f"add {DRAFT} DIR")
    elif algo == "EAGLE":
        since = OWN_MTP.get(case.architecture or "")
        if case.architecture is None:
            yield say("unknown", f"no {DRAFT}: right only if the target carries its own drafter",
                      "MTP layers inside the checkpoint (DeepSeek, GLM …) need no path, every other target does",
                      f"add {DRAFT} DIR, or check the target with `kit compat`")
        elif not (since and case.since(since)):
            later = f", or SGLang {since} and later, which draft with the target's own MTP layers" if since else ""
            yield say("warn", f"{DRAFT} is missing, and {case.architecture} has no MTP layers that this release knows",
                      "accepted, and the target itself is loaded a second time as the drafter, and is none",
                      f"add {DRAFT} DIR{later}", case.architecture)


def carries_dspark(case: Case) -> bool | None:
    """Whether this release finds a DSPARK drafter in the target; None where too little is known of the target."""
    config, folder = case.target.config, case.target.dspark_folder if case.since("0.5.23") else False
    keys = None if config is None else any(config.get(key) is not None for key in BUNDLED_DSPARK)
    return True if True in (keys, folder) else None if None in (keys, folder) else False


@rule("spec-algorithm-drafter", "sglang")
def algorithm_drafter(case, say):
    algo, path = algorithm(case), (case.text(DRAFT) or "").rstrip("/").rsplit("/", 1)[-1].lower()
    looks = next((k for k in ("eagle3", "dflash", "dspark") if k in path.replace("-", "").replace("_", "")), None)
    fits = {"eagle3": ("EAGLE3",), "dflash": ("DFLASH",), "dspark": ("DSPARK",)}
    if looks and algo and algo not in fits[looks]:
        ends = "runs without an error at an accept length near 1" if (algo, looks) == ("EAGLE", "eagle3") else \
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
    elif got.auto and any(c[1] > 1 for c in got.candidates):
        named = any(case.text(b) == "trtllm_mha" for b in BACKENDS)
        chosen = case.sm in (100, 103) and not any(case.text(b) for b in BACKENDS) \
            and case.since("0.5.6") and case.before("0.5.7")
        if named or chosen:
            yield say("unknown", "the automatic top-k may be 4, which trtllm_mha refuses",
                      "the numbers are chosen from the target's class" + ("" if named else ", and this release chooses "
                      "trtllm_mha on such a GPU, before them, for any target without MLA"), f"set {S} 3 {K} 1 {N} 4")


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
    else:
        good = {"flashinfer"} if case.before("0.5.6") else {"flashinfer", "fa3"} if case.before("0.5.13") else \
            {"flashinfer", "fa3", "triton"}
    if backend is None:
        yield say("unknown", f"top-k {topk:g} with page size {page:g} works only with {_list(good)}",
                  "the backend is chosen on the host", "name --attention-backend, or --page-size 1")
    elif backend not in good and case.before("0.5.3"):
        yield say("fail", f"top-k {topk:g} with page size {page:g} breaks on {backend}", "accepted by the parser; "
                  "crashes while decoding, and later releases refuse it", f"--page-size 1, or {K} 1")
    elif backend not in good:
        text = "speculative_eagle_topk > 1 with page_size > 1 is " + (
            "unstable and produces incorrect results for paged attention backends" if case.before("0.5.13")
            else f"only supported on ({_list(good)})")
        yield say("fail", f"top-k {topk:g} with page size {page:g} is refused for {backend}", f"ValueError: {text}",
                  f"--page-size 1, {K} 1 or --attention-backend {_list(good)}")


def _list(names) -> str:
    return ", ".join(sorted(names))
