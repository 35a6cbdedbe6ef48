"""SGLang's rules beyond the draft: scheduler, memory, graphs, GPUs, environment."""

from __future__ import annotations

import re

from kit.lint.case import rule
from kit.lint.sglang_spec import EAGLE_FAMILY, K, N, S, algorithm, numbers

SPEC_V2 = "SGLANG_ENABLE_SPEC_V2"
# targets for which 0.5.6 names a backend itself (server_args.py, _handle_model_specific_adjustments)
CHOOSES_0_5_6 = {"GptOssForCausalLM", "Llama4ForConditionalGeneration", "Olmo2ForCausalLM", "Qwen3NextForCausalLM"}
MLA = re.compile(r"Deepseek|DeepSeek|KimiK2|KimiVL|GlmMoeDsa|Glm4MoeLite|LongcatFlash|MistralLarge3|BailingMoeV2_5")


@rule("spec-concurrency-cap", "sglang")
def concurrency_cap(case, say):
    if algorithm(case) and not case.last("--max-running-requests"):
        yield say("warn", "at most 48 requests run at once", "Max running requests is reset to 48 for speculative "
                  "decoding; a baseline without speculation is not capped so, and the comparison is then unfair",
                  "--max-running-requests 64 (the same number in every arm)")


@rule("spec-mixed-chunk", "sglang")
def mixed_chunk(case, say):
    algo = algorithm(case)
    if not algo or not case.has("--enable-mixed-chunk"):
        return
    if case.before("0.4.9"):
        yield say("warn", "--enable-mixed-chunk with speculation is not handled by this release", "", "drop it")
    elif case.before("0.5.16"):
        yield say("warn", "--enable-mixed-chunk is switched off",
                  "Mixed chunked prefill is disabled because of using eagle speculative decoding.", "drop it")
    else:
        yield say("unknown", "--enable-mixed-chunk may be switched off", "newer releases keep it for some algorithms",
                  "look for 'Mixed chunked prefill is disabled' in the log")


@rule("spec-overlap", "sglang")
def overlap(case, say):
    got = numbers(case)
    algo = got.algorithm
    if not algo or case.has("--disable-overlap-schedule"):
        return
    v2 = case.env_true(SPEC_V2, default=case.since("0.5.11"))
    off = ""
    if algo in ("DFLASH", "FROZEN_KV_MTP", "NGRAM"):
        off = "" if case.since("0.5.14") else f"{algo} has no overlapped worker in this release"
    elif algo not in EAGLE_FAMILY:
        return
    elif case.before("0.5.3"):
        off = "Overlap scheduler is disabled because of using eagle speculative decoding."
    elif case.before("0.5.5"):
        off = "" if case.has("--enable-beta-spec") and algo == "EAGLE" else "only --enable-beta-spec turns it on"
    elif case.before("0.5.11"):
        able = algo == "EAGLE" or (algo == "EAGLE3" and case.since("0.5.7")) or case.since("0.5.8")
        if v2 and able and (got.topk or 0) > 1 and not got.auto and case.since("0.5.7"):
            yield say("fail", f"spec V2 ({SPEC_V2}) drafts chains only",
                      "ValueError: Spec v2 currently only supports topk = 1 for speculative decoding.",
                      f"{K} 1, or unset {SPEC_V2}")
            return
        off = "" if v2 and able else f"spec V2 is off unless {SPEC_V2}=True"
    elif case.before("0.5.13"):
        if (got.topk or 0) > 1 and not got.auto:
            off = "Spec v1 is used … because spec v2 currently only supports topk = 1"
        elif not v2:
            off = f"Spec v1 is used … because {SPEC_V2}=False"
    elif case.before("0.5.14") and not v2:
        off = "Non-overlap (synchronous) spec v2 is used"
    if off:
        chain = (got.topk or 0) > 1 and case.since("0.5.11") and algo in EAGLE_FAMILY
        yield say("warn", "the overlap scheduler is off, so the CPU's work is not hidden behind the GPU's", off,
                  f"{S} 3 {K} 1 {N} 4 keeps it" if chain else "measure it: it costs most at small batches")


@rule("env-spec-v2", "sglang")
def spec_v2_removed(case, say):
    if SPEC_V2 in case.env and case.since("0.5.14"):
        yield say("warn", f"{SPEC_V2} has no effect in {case.version}", f"{SPEC_V2} has been removed",
                  "drop it; --disable-overlap-schedule is what remains")
    elif SPEC_V2 in case.env and case.before("0.5.5"):
        yield say("warn", f"{SPEC_V2} has no effect in {case.version}", "it came with 0.5.5", "drop it")


@rule("env-overridden", "sglang")
def env_overridden(case, say):
    if case.env.get("CUDA_DEVICE_MAX_CONNECTIONS", "8") != "8":
        yield say("warn", "CUDA_DEVICE_MAX_CONNECTIONS is overwritten with 8", "SGLang sets it at start", "drop it")
    if "SGLANG_SIMULATE_ACC_LEN" in case.env:
        yield say("warn", "SGLANG_SIMULATE_ACC_LEN makes the text garbage", "the acceptance is forced, not earned",
                  "only for speed-against-acceptance curves; never for users")


@rule("memory-with-drafter", "sglang")
def memory(case, say):
    got = case.number("--mem-fraction-static")
    if got is not None and not 0 < got < 1:
        yield say("fail", f"--mem-fraction-static {got:g} is not a fraction",
                  "accepted by the parser; it is a share of the GPU's memory, 0 … 1",
                  "--mem-fraction-static 0.85")
    elif got is not None and algorithm(case) not in ("", "NGRAM"):
        yield say("warn", f"--mem-fraction-static {got:g} is taken as it is, nothing is set aside for the drafter",
                  "a value tuned without a drafter can run out of memory with it: weights, graphs and a KV pool with "
                  "one slot per target token come on top", "lower it by the drafter's share, or see the memory plan")


@rule("grammar-none", "sglang")
def grammar(case, say):
    if case.text("--grammar-backend") == "none":
        yield say("warn", "requests for JSON, regex or a grammar will fail",
                  "Grammar-based generation (…) is not supported when the server is launched with "
                  "--grammar-backend none",
                  "--grammar-backend xgrammar, unless nobody asks for structured output")


@rule("moe-runner-spec", "sglang")
def moe_runner(case, say):
    if case.text("--speculative-moe-runner-backend") == "flashinfer_trtllm" and case.before("0.5.12") \
            and case.since("0.5.7") and algorithm(case):
        yield say("fail", "flashinfer_trtllm is refused as the drafter's MoE runner",
                  "AssertionError in _handle_speculative_decoding", "--speculative-moe-runner-backend auto")


@rule("draft-quantization", "sglang")
def draft_quantization(case, say):
    quant = case.text("--quantization")
    if quant and algorithm(case) in EAGLE_FAMILY and case.since("0.5.7") \
            and not case.last("--speculative-draft-model-quantization") and case.last("--speculative-draft-model-path"):
        yield say("warn", f"the drafter inherits --quantization {quant}",
                  "a BF16 drafter is then read as quantised; what config.json says is not inherited",
                  "--speculative-draft-model-quantization unquant")


@rule("token-map-ignored", "sglang")
def token_map(case, say):
    if algorithm(case) == "EAGLE3" and case.last("--speculative-token-map"):
        yield say("warn", "--speculative-token-map is ignored with EAGLE3", "the head carries its own map (d2t)",
                  "drop it")


@rule("graphs-off", "sglang")
def graphs_off(case, say):
    off = case.has("--disable-cuda-graph") or case.text("--cuda-graph-backend-decode") == "disabled"
    if off:
        yield say("warn", "CUDA graphs are off",
                  "launch overhead then dominates small batches, where speculation pays; "
                  "switch them off on a measurement, not on belief",
                  "measure both; turn off only what fails to capture")


@rule("graphs-narrow", "sglang")
def graphs_narrow(case, say):
    widest = case.number("--cuda-graph-max-bs") or case.number("--cuda-graph-max-bs-decode")
    bs = [b for b in case.texts("--cuda-graph-bs") or case.texts("--cuda-graph-bs-decode") if b.isdigit()]
    widest = max(map(int, bs)) if bs else widest
    running = case.number("--max-running-requests") or (48 if algorithm(case) else None)
    if widest and running and widest < running:
        yield say("warn", f"graphs cover batches up to {widest:g}, up to {running:g} requests run",
                  "larger batches decode without a graph, a step in the curve that is not the drafter's",
                  f"--cuda-graph-max-bs{'-decode' if case.since('0.5.14') else ''} {running:g}")


@rule("tree-at-concurrency", "sglang")
def tree_at_concurrency(case, say):
    got = numbers(case)
    running = case.number("--max-running-requests") or 48
    if got.algorithm in EAGLE_FAMILY and (got.topk or 0) > 1 and not got.auto and (got.tokens or 0) > 1 and running > 4:
        yield say("warn", f"each of up to {running:g} requests verifies {got.tokens} tokens per step",
                  f"a tree multiplies the target's work: up to {running * got.tokens:g} rows per step",
                  f"a chain ({S} 3 {K} 1 {N} 4) for concurrency, a tree for one or two requests")


@rule("gpu-backend", "sglang")
def gpu_backend(case, say):
    if case.sm is None:
        return
    named, sm_100, consumer = f"sm_{case.sm}", 100 <= case.sm < 110, case.sm in (120, 121)
    for phase, flag, backend in backends(case):
        other = f"{flag} flashinfer or triton"
        if backend == "trtllm_mha" and not sm_100:
            since = {"prefill": "0.5.19", "decode": "0.5.10", "draft": "0.5.10"}[phase]
            if not ((case.sm == 90 or consumer) and case.since(since)):
                gate = f"for {phase} is" if case.since("0.5.10") else "is"
                says = "accepted by the parser; its kernels are built for sm_100" if phase == "draft" else \
                    f"ValueError: TRTLLM MHA backend {gate} only supported on Blackwell GPUs (SM100)."
                yield say("fail", f"{named} is not sm_100: trtllm_mha is not for this GPU", says, other)
            elif phase == "draft" and case.before("0.5.19"):
                yield say("warn", f"trtllm_mha for the drafter: {named} is not sm_100",
                          "its prefill kernels, which extend the drafts, are built for sm_100", other)
            elif phase == "prefill" and consumer and case.text("--kv-cache-dtype") == "fp8_e4m3":
                yield say("fail", f"{named} is not sm_100: trtllm_mha prefill has no fp8_e4m3 KV cache there",
                          "ValueError: TRTLLM FMHAv2 prefill on SM120 does not support fp8_e4m3 KV cache", other)
            elif phase == "prefill":
                yield say("warn", f"trtllm_mha: {named} is not sm_100, other kernels run there",
                          "accepted since 0.5.19, refused before", f"measure it against {other}")
        elif backend == "trtllm_mla" and not sm_100 and not (consumer and case.since("0.5.5")):
            yield say("fail", f"{named} is not sm_100: trtllm_mla is not for this GPU",
                      "ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs", other)
        elif backend == "trtllm_mla" and consumer:
            yield say("warn", f"trtllm_mla on {named}: accepted, its prefill kernels are built for sm_100",
                      "'Unsupported architecture' in TllmGenFmhaRunner was seen", other)
        elif backend == "fa3" and not 80 <= case.sm < 100:
            yield say("fail", f"fa3 is built for sm_8x and sm_90, not {named}",
                      "accepted by the parser; its kernels do not run there", other)
        elif backend is None and consumer and phase == "prefill" and MLA.match(case.architecture or ""):
            yield say("warn", f"no attention backend is named for an MLA target on {named}",
                      "one built for sm_100 may be chosen: 'Unsupported architecture' in TllmGenFmhaRunner was seen",
                      "--attention-backend triton or flashinfer")
    if consumer and case.since("0.5.6") and case.before("0.5.7") and _left_to_itself(case):
        what = f"no attention backend is named, and this release chooses trtllm_mha on {named}"
        says = "ValueError: TRTLLM MHA backend is only supported on Blackwell GPUs (SM100): chosen for any Blackwell " \
               "and a target without MLA, then refused on all but sm_100"
        fix = "--attention-backend flashinfer or triton, or SGLang 0.5.7 and later"
        if case.architecture is None:
            yield say("unknown", f"{what}, unless the target has MLA", says, fix)
        elif not MLA.match(case.architecture) and case.architecture not in CHOOSES_0_5_6:
            yield say("fail", what, says, fix, case.architecture)


def _left_to_itself(case) -> bool:
    """0.5.6 chooses among all backends: nothing is named for both phases, and no tree is drafted."""
    phases = {case.text("--prefill-attention-backend"), case.text("--decode-attention-backend")}
    if case.text("--attention-backend") or (len(phases) == 1 and None not in phases):
        return False
    topk = case.number(K) if algorithm(case) else None
    return topk is None or (topk == 1 and case.number("--page-size", 1) == 1)


def backends(case) -> list[tuple[str, str, str | None]]:
    """(phase, flag that names it, backend) for prefill, decode and the drafter. Up to 0.5.9 every flag counts for
    itself, even where another one overrides it."""
    both, out = case.text("--attention-backend"), []
    for phase in ("prefill", "decode"):
        flag = f"--{phase}-attention-backend"
        own = case.text(flag)
        out.append((phase, flag, own) if own else (phase, "--attention-backend", both))
        if own and both and case.before("0.5.10"):
            out.append((phase, "--attention-backend", both))
    if len({(flag, backend) for _, flag, backend in out}) == 1:
        out = out[:1]       # one flag for both: said once, by the stricter of the two
    if algorithm(case) and (draft := case.text("--speculative-draft-attention-backend")):
        out.append(("draft", "--speculative-draft-attention-backend", draft))
    return out


@rule("parallel-sizes", "sglang")
def parallel_sizes(case, say):
    tp = case.number("--tp-size") or case.number("--tensor-parallel-size") or 1
    pp, nodes = case.number("--pp-size") or 1, case.number("--nnodes") or 1
    if nodes > 0 and (tp * pp) % nodes:
        yield say("fail", f"tp {tp:g} × pp {pp:g} does not divide over {nodes:g} nodes",
                  "AssertionError: tp_size must be divisible by number of nodes",
                  f"--tp-size {int(nodes * max(1, tp // nodes))}")
    devices = [d for d in case.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if d.strip()]
    if devices and tp * pp / nodes > len(devices):
        yield say("fail", f"{tp * pp / nodes:g} GPUs are asked, CUDA_VISIBLE_DEVICES shows {len(devices)}",
                  "accepted by the parser; the missing ranks fail at start", f"--tp-size {len(devices)}, or show more")


@rule("context-unset", "sglang")
def context_unset(case, say):
    if case.whole and algorithm(case) in EAGLE_FAMILY and not case.last("--context-length") \
            and case.last("--speculative-draft-model-path") \
            and "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" not in case.env:
        yield say("unknown", "without --context-length the drafter must reach the target's whole context",
                  "else ValueError: Target model's context_length … is greater than the derived context_length, after "
                  "the target has loaded", "--context-length 32768 (what you serve), or compare the two configs")
