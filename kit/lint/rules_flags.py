"""Rules about single flags, for every engine: what its parser refuses, renamed, or reads differently."""

from __future__ import annotations

import difflib
import json

from kit.lint.case import rule

BOTH = ("sglang", "vllm")
SUGGESTIONS = 5         # a search for look-alikes costs milliseconds

FOREIGN = {
    "sglang": {     # vLLM's words → what SGLang calls it
        "--speculative-config": "--speculative-algorithm, --speculative-draft-model-path, --speculative-num-steps, "
                                "--speculative-eagle-topk and --speculative-num-draft-tokens",
        "--num-speculative-tokens": "--speculative-num-steps K --speculative-eagle-topk 1 "
                                    "--speculative-num-draft-tokens K+1",
        "--speculative-model": "--speculative-draft-model-path (or --speculative-algorithm NGRAM for [ngram])",
        "--ngram-prompt-lookup-max": "--speculative-algorithm NGRAM with its --speculative-ngram-* flags",
        "--max-model-len": "--context-length", "--max-num-seqs": "--max-running-requests",
        "--gpu-memory-utilization": "--mem-fraction-static", "--enforce-eager": "--disable-cuda-graph",
        "--use-v2-block-manager": "nothing: SGLang has no such switch",
    },
    "vllm": {
        "--speculative-algorithm": '"method" in --speculative-config',
        "--speculative-algo": '"method" in --speculative-config',
        "--speculative-draft-model-path": '"model" in --speculative-config',
        "--speculative-num-steps": '"num_speculative_tokens" in --speculative-config',
        "--speculative-num-draft-tokens": '"num_speculative_tokens" in --speculative-config, one less',
        "--speculative-eagle-topk": "nothing: vLLM drafts a chain",
        "--speculative-model": '"model" in --speculative-config',
        "--num-speculative-tokens": '"num_speculative_tokens" in --speculative-config',
        "--context-length": "--max-model-len", "--max-running-requests": "--max-num-seqs",
        "--mem-fraction-static": "--gpu-memory-utilization", "--model-path": "the first word after `vllm serve`",
        "--disable-cuda-graph": "--enforce-eager", "--tp-size": "--tensor-parallel-size",
        "--tp": "--tensor-parallel-size",
    },
}

RENAMED = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode", "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--speculative-dflash-draft-window-size": "--speculative-draft-window-size",
    "--speculative-ngram-max-match-window-size": "--speculative-ngram-max-trie-depth",
    "--speculative-ngram-min-match-window-size": "--speculative-ngram-max-trie-depth",
    "--speculative-ngram-branch-length": "--speculative-ngram-max-trie-depth",
    "--enable-flashinfer-mla": "--attention-backend flashinfer", "--enable-flashmla": "--attention-backend flashmla",
    "--enable-ep-moe": "--ep-size N", "--enable-deepep-moe": "--moe-a2a-backend deepep",
    "--enable-beta-spec": "nothing: the overlap scheduler decides",
}


def _hint(case, name: str, suggest: bool = True) -> str:
    dashed = name.replace("_", "-")
    if dashed in FOREIGN[case.engine]:
        return f"in {case.engine} that is {FOREIGN[case.engine][dashed]}"
    if case.engine == "sglang":
        if dashed in RENAMED:
            return f"use {RENAMED[dashed]}"
        if dashed.startswith("--nsa-") and "--dsa-" + dashed[6:] in case.table.by_name:
            return f"use --dsa-{dashed[6:]}"
        if dashed in case.table.by_name:
            return f"write it with dashes: {dashed}"
    near = [n for n in case.table.by_name if n[:4] == name[:4] and abs(len(n) - len(name)) < 4] if suggest else []
    close = difflib.get_close_matches(name, near, 1, 0.8)
    return f"did you mean {close[0]}?" if close else f"{case.engine} {case.version} has no such flag; leave it out"


@rule("flag-unknown", *BOTH)
def unknown(case, say):
    case.asked = True
    for n, p in enumerate(p for p in case.parsed.problems if p.kind == "unknown"):
        if p.spelled.startswith("-"):
            yield say("fail", f"{case.engine} {case.version} does not know {p.spelled[:80]}",
                      f"error: {p.says[:400]} (exit 2)", _hint(case, p.spelled, n < SUGGESTIONS), p.spelled[:200])
        else:
            yield say("fail", f"a word that belongs to no flag: {p.spelled[:60]!r}", f"error: {p.says} (exit 2)",
                      "check the quoting, or the flag before it")


@rule("flag-ambiguous", *BOTH)
def ambiguous(case, say):
    case.asked = True
    for p in case.parsed.problems:
        if p.kind == "ambiguous":
            gone = RENAMED.get(p.spelled) if case.engine == "sglang" else None
            yield say("fail", f"{p.spelled} could be any of {len(p.candidates)} flags", f"error: {p.says} (exit 2)",
                      f"use {gone}" if gone else "write the flag out: " + ", ".join(p.candidates[:4]))


@rule("flag-value", *BOTH)
def value(case, say):
    case.asked = True
    for p in case.parsed.problems:
        if p.kind in ("value", "missing-value", "explicit"):
            yield say("fail", {"value": f"{p.spelled} has a value of the wrong kind",
                               "missing-value": f"{p.spelled} lacks its value",
                               "explicit": f"{p.spelled} takes no value"}[p.kind], f"error: {p.says} (exit 2)",
                      "mend that value")


@rule("flag-choice", *BOTH)
def choice(case, say):
    case.asked = True
    for p in case.parsed.problems:
        if p.kind == "choice" and p.spelled not in ("--speculative-algorithm", "--speculative-algo"):
            yield say("fail", f"{p.spelled}: {case.engine} {case.version} does not offer this value",
                      f"error: {p.says} (exit 2)", "choose one of " + ", ".join(p.candidates))


@rule("flag-gone", *BOTH)
def gone(case, say):
    case.asked = True
    for p in case.parsed.problems:
        if p.kind == "gone":
            hint = p.says if "use" in p.says.lower() or "set" in p.says.lower() else _hint(case, p.spelled)
            yield say("fail", f"{p.spelled} is retired in {case.engine} {case.version}", f"refused: {p.says}", hint)


@rule("flag-deprecated", *BOTH)
def deprecated(case, say):
    case.asked = True
    for g in case.parsed.given:
        if g.flag.message and g.flag.kind != "gone":
            says = g.flag.message
            yield say("warn", f"{g.flag.name} is deprecated in {case.engine} {case.version}",
                      "still accepted, and goes in a later release",
                      f"use {says}" if says.startswith("-") else says if " " in says else "leave it out")


@rule("flag-abbreviated", *BOTH)
def abbreviated(case, say):
    case.asked = True
    for g in case.parsed.given:
        spelled = g.spelled.replace("_", "-") if case.engine == "vllm" else g.spelled
        if spelled not in case.table.by_name and g.origin == "argv" and "." not in spelled:
            full = next((n for n in g.flag.names if n.startswith(spelled)), g.flag.name)
            yield say("warn", f"{g.spelled} is read as {full}",
                      "a unique prefix today; the next release may add a second flag that begins so", f"write {full}")


@rule("flag-repeated", *BOTH)
def repeated(case, say):
    seen: dict[str, list] = {}
    for g in case.parsed.given:
        if g.origin == "argv":
            seen.setdefault(g.flag.name, []).append(g.words)
    for name, words in seen.items():
        if len(words) > 1:
            same = all(w == words[0] for w in words)
            secret = "key" in name or "token" == name.rsplit("-", 1)[-1]
            last = "***" if secret else " ".join(words[-1])[:80]
            yield say("warn", f"{name} is given {len(words)} times" + (" with the same value" if same else ""),
                      "the last one counts" + (f": {last}" if last else ""), "keep one")


@rule("flag-required", *BOTH)
def required(case, say):
    if case.whole and case.config_read:
        model = case.last("--model-path") or case.last("--model") or case.parsed.positional
        if not model and case.engine == "sglang" and not case.has("--help"):
            yield say("fail", "no model is named", "error: the following arguments are required: --model-path/--model",
                      "add --model-path")
        elif not model and not case.has("--help"):
            yield say("warn", "no model is named", "vLLM then serves its built-in default model",
                      "name it right after `vllm serve`")


@rule("config-not-merged", *BOTH)
def config_equals(case, say):
    got = case.last("--config")
    if got and not got.glued and not case.config_read:
        yield say("unknown", "the --config file was not read, so its flags are not judged", "",
                  "run lint where the file is, or pass its content", got.words[-1] if got.words else "")
    if got and got.glued:
        yield say("fail", "--config=FILE is accepted and then ignored",
                  f"accepted by the parser; {case.engine} merges the file only for --config as a word of its own",
                  "write --config FILE with a space")


@rule("config-file", *BOTH)
def config_file(case, say):
    for text in case.config_problems:
        yield say("fail", "the --config file cannot be used", text, "mend the file")


@rule("json-value", *BOTH)
def json_value(case, say):
    for g in case.parsed.given:
        if g.flag.name.endswith(("-config", "-args", "-kwargs", "-overrides")) and g.words \
                and g.words[-1].lstrip().startswith("{") and g.flag.name != "--speculative-config":
            try:
                json.loads(g.words[-1])
            except (ValueError, RecursionError) as e:
                yield say("fail", f"{g.flag.name} is not JSON", str(e)[:120],
                          "quote it once, with double quotes inside: '{\"a\": 1}'")
