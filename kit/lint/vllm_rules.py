"""vLLM's rules: one JSON (--speculative-config) holds all speculative numbers."""

from __future__ import annotations

import difflib

from kit.lint.case import rule

NEEDS_MODEL = {"eagle", "eagle3", "draft_model", "medusa", "mlp_speculator", "dflash"}
NO_MODEL = {"ngram", "ngram_gpu", "suffix", "mtp", "dspark", "extract_hidden_states"}
EXAMPLE = '--speculative-config \'{"method": "eagle3", "model": "DIR", "num_speculative_tokens": 3}\''


def _method(case) -> str:
    method = case.spec.get("method")
    if method is None and case.spec.get("model") in ("ngram", "[ngram]"):
        method = "ngram"
    return method.strip("[]") if isinstance(method, str) else ""


@rule("spec-config-json", "vllm")
def config_json(case, say):
    for text in case.spec_problems:
        yield say("fail", "--speculative-config cannot be read", text,
                  f"{EXAMPLE}, or --speculative-config.method eagle3 and so on")


@rule("spec-config-key", "vllm")
def config_key(case, say):
    known = case.table.speculative.get("keys", ())
    case.asked = True
    for key in case.spec:
        if key == "tensor_parallel_size":
            yield say("fail", "tensor_parallel_size does not belong into --speculative-config", "ValueError: "
                      "'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass "
                      "'draft_tensor_parallel_size' instead.", "draft_tensor_parallel_size")
        elif key not in known:
            close = difflib.get_close_matches(key[:60], [*known], 1, 0.7)
            hints = {"num_steps": "num_speculative_tokens", "num_draft_tokens": "num_speculative_tokens (one less: "
                     "it counts drafts)", "draft_model_path": "model", "algorithm": "method", "topk":
                     "nothing: vLLM drafts a chain"}
            yield say("fail", f"vLLM {case.version} knows no {key[:60]!r} in --speculative-config",
                      "Unexpected keyword argument", hints.get(key.removeprefix("speculative_").removeprefix("eagle_"),
                                                              f"did you mean {close[0]}?" if close else "drop it"))


@rule("spec-method", "vllm")
def method(case, say):
    known = case.table.speculative.get("methods", ())
    given = case.spec.get("method")
    if given is None:
        return
    case.asked = True
    name = _method(case)
    if name not in known:
        lower = next((k for k in known if k == str(given).lower().replace("-", "")), None)
        yield say("fail", f"vLLM {case.version} knows no method {str(given)[:40]!r}",
                  "validation error: Input should be one of its method names",
                  f"write {lower!r}" if lower else "choose one of " + ", ".join(sorted(known)))
    elif name.endswith("_mtp"):
        yield say("warn", f"method {name} is now called mtp", f"method `{name}` is deprecated and replaced with mtp.",
                  '"method": "mtp"') if case.since("0.11.0") else None


@rule("spec-model", "vllm")
def model(case, say):
    name, path = _method(case), case.spec.get("model")
    if not case.spec:
        return
    if path is None and name in NEEDS_MODEL:
        yield say("fail", f'"model" is missing for method {name}',
                  "ValueError: num_speculative_tokens was provided but without speculative model.", '"model": "DIR"')
    elif path is None and not name and case.spec.get("num_speculative_tokens"):
        yield say("fail", 'neither "method" nor "model" is given',
                  "ValueError: num_speculative_tokens was provided but without speculative model.", EXAMPLE)
    looks = "".join(c for c in str(path or "").rsplit("/", 1)[-1].lower() if c.isalnum())
    if name == "eagle" and "eagle3" in looks:
        yield say("warn", "the drafter's name says eagle3, the method is eagle",
                  "an EAGLE-3 head wants three hidden states of the target", '"method": "eagle3"')


@rule("spec-tokens", "vllm")
def tokens(case, say):
    count = case.spec.get("num_speculative_tokens")
    name = _method(case)
    if not case.spec or case.spec_problems:
        return
    if count is None and name == "suffix":
        return
    if count is None and name in ("ngram", "ngram_gpu", "medusa", "eagle", "eagle3", "draft_model",
                                  "extract_hidden_states"):
        yield say("fail", "num_speculative_tokens is missing",
                  "ValueError: num_speculative_tokens must be provided with "
                  "speculative model unless the draft model config contains an n_predict parameter.",
                  '"num_speculative_tokens": 3')
    elif count is None:
        yield say("unknown", "num_speculative_tokens is missing", "right only if the drafter's config has n_predict",
                  '"num_speculative_tokens": 3')
    elif isinstance(count, bool) or not isinstance(count, int):
        yield say("fail", f"num_speculative_tokens is not a whole number: {str(count)[:40]!r}",
                  "validation error: Input should be a valid integer", '"num_speculative_tokens": 3')
    elif count <= 0:
        yield say("fail", f"num_speculative_tokens {count} is not positive",
                  f"Expected num_speculative_tokens to be greater than zero ({count}).", '"num_speculative_tokens": 3')
    elif count > 16 and name in ("eagle", "eagle3", "draft_model", "mtp"):
        yield say("warn", f"{count} drafts one after another", "each is a pass of the drafter, and the late ones are "
                  "rarely accepted", "start at 3, and sweep")


@rule("spec-lookup", "vllm")
def lookup(case, say):
    if _method(case) not in ("ngram", "ngram_gpu"):
        return
    low, high = case.spec.get("prompt_lookup_min"), case.spec.get("prompt_lookup_max")
    for key, v in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if v is not None and (isinstance(v, bool) or not isinstance(v, int) or v < 1):
            yield say("fail", f"{key} {str(v)[:20]!r} is not a positive number",
                      "Input should be greater than or equal to 1",
                      f'"{key}": 2')
            return
    if low and high and low > high:
        yield say("fail", f"prompt_lookup_min {low} is above prompt_lookup_max {high}",
                  f"ValueError: prompt_lookup_min={low} must be <= prompt_lookup_max={high}",
                  f'"prompt_lookup_min": {high}')
    elif low is None and high is None:
        yield say("warn", "the n-gram length is left to vLLM", "5 to 5 tokens must match",
                  '"prompt_lookup_max": 4, "prompt_lookup_min": 2')


@rule("spec-draft-tp", "vllm")
def draft_tp(case, say):
    draft, tp = case.spec.get("draft_tensor_parallel_size"), case.number("--tensor-parallel-size", 1)
    if draft is not None and draft not in (1, tp):
        yield say("fail", f"draft_tensor_parallel_size {str(draft)[:20]} is neither 1 nor {tp:g}",
                  "ValueError: speculative_draft_tensor_parallel_size cannot be other value than 1 or target model "
                  "tensor_parallel_size", f'"draft_tensor_parallel_size": {tp:g}')


@rule("spec-exclusive", "vllm")
def exclusive(case, say):
    for flag, key in (("--spec-method", "method"), ("--spec-model", "model"),
                      ("--spec-tokens", "num_speculative_tokens")):
        if case.last(flag) and key in case.spec_given:
            yield say("fail", f"{flag} and {key!r} in --speculative-config exclude each other",
                      f"{flag} and --speculative-config['{key}'] are mutually exclusive", f"drop {flag}")


@rule("spec-batched-tokens", "vllm")
def batched_tokens(case, say):
    drafts, seqs = case.spec.get("num_speculative_tokens"), case.number("--max-num-seqs")
    budget = case.number("--max-num-batched-tokens")
    if isinstance(drafts, int) and seqs and budget and budget < seqs * (drafts + 1):
        sure = case.has("--enable-lora")
        yield say("fail" if sure else "warn",
                  f"{budget:g} tokens per step cannot verify {seqs:g} requests × {drafts + 1}",
                  "ValueError: Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens" if sure
                  else "requests then wait for their turn to verify",
                  f"--max-num-batched-tokens {int(seqs * (drafts + 1))}")


@rule("spec-suffix", "vllm")
def suffix(case, say):
    if _method(case) == "suffix":
        yield say("unknown", "suffix decoding needs the package arctic-inference on the host",
                  "ImportError: Arctic Inference is required for suffix decoding.",
                  "pip install arctic-inference==0.1.1")


@rule("graphs-off", "vllm")
def graphs_off(case, say):
    if case.has("--enforce-eager"):
        yield say("warn", "--enforce-eager switches graphs and compilation off",
                  "launch overhead then dominates small batches, where speculation pays", "measure both")


@rule("memory-fraction", "vllm")
def memory(case, say):
    got = case.number("--gpu-memory-utilization")
    if got is not None and not 0 < got <= 1:
        yield say("fail", f"--gpu-memory-utilization {got:g} is not a fraction",
                  "accepted by the parser; it is a share of the GPU's memory, 0 … 1",
                  "--gpu-memory-utilization 0.9")
