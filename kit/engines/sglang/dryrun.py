"""What SGLang itself says about a command, out of kit/remote/sglang_dryrun.py's answer: findings with what to do.

Every way in which the question can go wrong ends in a finding of its own; only a refusal of the flags counts as the
parser's word (`DryRun.accepted` False), which `kit.dryrun` holds against lint.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kit.command import Result
from kit.findings import Finding
from kit.seams import DryRun
from kit.spec import Experiment

MARK = "@@DRYRUN "
S, K, N = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
SPEC_FRAMES = ("_handle_speculative_decoding", "_handle_eagle_family", "__post_init__")
NUMBERS_NONE = re.compile(r"speculative_(eagle_topk|num_draft_tokens) is None")
NO_FILE = re.compile(r"(?P<path>/[^\s'’`:]+)['’`]?: "
                     r"(?P<why>No such file|not found|[Pp]ermission denied|Not a directory)")
SIGNALS = {134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}

# (stage or "", pattern in "Type: message", id, what, fix). The first that fits; what it was in SGLang's words is `why`.
KNOWN = (
    ("files", r"the (\w+) is not there", "model-missing", "the {0}'s folder is not on the host",
     "fetch it first, or mend the path"),
    ("", r"does not appear to have a file named config\.json|Repo id must be|is not a local folder|"
         r"Can't load the configuration|Unrecognized model in", "model-missing", "a model's folder holds no checkpoint",
     "fetch it again, or mend the path"),
    ("import", r"Error: No module named '?sglang'?$", "engine-missing", "this Python has no SGLang",
     "engine.python: name the python of the environment that has it, or install SGLang there"),
    ("import", r"^SyntaxError|requires a different Python|requires-python|cannot import name '\w+' from 'typing'",
     "python-wrong", "this SGLang is not made for Python {python}", "an environment with Python 3.11 or 3.12"),
    ("import", r"already used by a Transformers config", "engine-broken",
     "the transformers there ({transformers}) is too new for this SGLang", "install the transformers that it pins"),
    ("import", r"No module named '?([\w.]+)|cannot import name '(\w+)'", "engine-broken",
     "SGLang cannot be imported: {0} is missing", "install SGLang's requirements in that environment"),
    ("import", r"", "engine-broken", "SGLang cannot be imported", "repair that environment: its own words say what"),
    ("", r"No accelerator|nvidia-smi (failed|not found)", "no-gpu", "SGLang sees no GPU on this host",
     "look at the driver, and at CUDA_VISIBLE_DEVICES in engine.env"),
    ("", r"LocalEntryNotFound|OfflineMode|couldn't connect to|We have no connection", "offline",
     "a model is named by its hub name, and the dry run reads local files only",
     "name a folder on the host, or let the kit fetch it (source: hf:…)"),
    ("", r"trust_remote_code", "remote-code", "the model brings code of its own", "engine.args: [--trust-remote-code]"),
    ("", r"does not recognize this architecture|Model architectures .* are not supported", "architecture",
     "this SGLang, or its transformers ({transformers}), does not know the model", "a newer SGLang"),
    ("", r"context_length \((\d+)\) is greater than the derived context_length \((\d+)\)", "context",
     "the context of {0} tokens is longer than the {1} that the {role} was made for",
     "serve.context: {1} or less; or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 in engine.env, if it can do more"),
    ("", r"sglang-kernel|sgl[-_]kernel", "engine-broken", "SGLang's kernel package does not fit it",
     "install the sglang-kernel that this SGLang pins"),
)
# These are about the host, its environment or the models: they say nothing about the flags, nor about lint.
CIRCUMSTANCES = {"model-missing", "engine-missing", "engine-broken", "python-wrong", "no-gpu", "offline", "remote-code",
                 "architecture", "context"}


def read(result: Result, exp: Experiment) -> DryRun:
    """SGLang's answer as findings. `result.command` is what `Engine.dry_run` made."""
    answer = _answer(result)
    if answer is None:
        return DryRun("", None, "", (_no_answer(result, exp),))
    version = str(answer.get("versions", {}).get("sglang") or "")
    argv = list(result.command.argv)
    argv = argv[argv.index("-") + 1:] if "-" in argv else []
    if answer.get("ok"):
        said = f"SGLang {version} accepts the command"
        took = answer.get("took_s")
        found = [Finding("dry-run", "pass", said + (f" ({took:g} s)" if isinstance(took, (int, float)) else ""),
                         evidence=json.dumps(answer.get("resolved", {})))]
        if answer.get("drafter"):
            found.append(Finding("dry-run-drafter", "unknown", "the drafter's own context was not checked",
                                 str(answer["drafter"])))
        return DryRun(version, True, said, (*found, *_changed(answer.get("resolved") or {}, argv, exp)))
    error = answer.get("error") or {}
    finding, about_flags = _refused(answer, error, argv, exp, version)
    return DryRun(version, False if about_flags else None, _words(error), (finding,))


def _answer(result: Result) -> dict[str, Any] | None:
    lines = [line[len(MARK):] for line in result.text.splitlines() if line.startswith(MARK)]
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    fits = isinstance(answer, dict) and isinstance(answer.get("versions", {}), dict) \
        and isinstance(answer.get("error") or {}, dict) and isinstance(answer.get("resolved") or {}, dict)
    return answer if fits else None


def _no_answer(result: Result, exp: Experiment) -> Finding:
    """The program never came to its answer."""
    said, python = result.complaint, exp.engine.python or "python"
    if result.exit in (126, 127):
        where = NO_FILE.search(said)
        path = where["path"] if where else python
        missing = not where or "ermission" not in where["why"]
        if path != python:
            return Finding("dry-run-program", "fail", f"{path} is not there, and the command starts with it", said,
                           "install it, or take it out of engine.launch")
        if missing:
            return Finding("dry-run-python", "fail", f"engine.python is not there: {path}", said,
                           f"install {exp.engine.release} on the host, and name its environment's python")
        return Finding("dry-run-python", "fail", f"engine.python cannot be run: {path}", said,
                       "name the python itself, and let the login user run it")
    if result.exit == 124:
        return Finding("dry-run-timeout", "unknown", f"SGLang had not read the command after "
                       f"{result.command.limit_s:g} s", said, "look at the host's load and disks, then try again")
    if result.exit in SIGNALS or (result.exit or 0) < 0:
        name = SIGNALS.get(result.exit, f"signal {-(result.exit or 0)}")
        killed = name == "SIGKILL"
        return Finding("dry-run-killed", "fail", f"SGLang's parser was ended by {name}", said,
                       "mostly the host's memory did not suffice to import torch: look at dmesg" if killed else
                       "a library crashed on import: repair that environment")
    return Finding("dry-run-garbage", "fail", f"{python} did not answer as a Python with SGLang would "
                   f"(exit {result.exit})", said[-600:] or "it said nothing",
                   "engine.python: name the python of the environment that has SGLang")


def _refused(answer: dict, error: dict, argv: list[str], exp: Experiment, version: str) -> tuple[Finding, bool]:
    """(finding, whether it is about the flags)."""
    kind, stage, given = str(error.get("type", "")), str(answer.get("stage", "")), _given(argv)
    versions = {k: str(v) for k, v in answer.get("versions", {}).items()}
    named = f"SGLang {version}" if version else "SGLang"
    text = _words(error)
    if kind == "Timeout":
        return Finding("dry-run-timeout", "unknown", f"{named} had not answered in the stage {stage}: {text}", "",
                       "look at the host's load and disks, then try again"), False
    if stage == "python":
        return Finding("dry-run-python-wrong", "fail", f"engine.python is {error.get('msg')}", "SGLang needs 3.10 or "
                       "newer, from 0.5.22 on 3.11", "name the python of an environment that has SGLang"), False
    if kind == "SystemExit":
        return Finding("dry-run-flag", "fail", f"{named} refuses a flag: {error.get('msg')}", "its parser ends with 2",
                       f"correct engine.args for {version or 'the release that is installed'}"), True
    at = f"{error.get('file')}:{error.get('line')} {error.get('func')}"
    if steps := _numbers_missing(error, given):
        return _with_numbers(steps, given, f"{named} refuses it with {text} ({at})"), True
    for only, pattern, id, what, fix in KNOWN:
        found = re.search(pattern, text)
        if found and only in ("", stage):
            words = {"python": versions.get("python", "?"), "transformers": versions.get("transformers", "?"),
                     "role": "drafter" if stage == "drafter" else "target"}
            parts = [g for g in found.groups() if g] or [error.get("module") or "a module"]
            verdict = "unknown" if id == "offline" else "fail"
            return Finding(f"dry-run-{id}", verdict, what.format(*parts, **words), f"{named}: {text[:600]} ({at})",
                           fix.format(*parts, **words)), id not in CIRCUMSTANCES
    return Finding("dry-run-refused", "fail", f"{named} refuses the command: {text[:300]}", f"raised in {at}: "
                   f"{error.get('src') or 'no source line'}", "change the flag or value it names; kit.lint knows the "
                   "rules of each release"), True


def _words(error: dict) -> str:
    """Type: message; a bare assertion has only the line that failed."""
    kind, message = str(error.get("type", "")), str(error.get("msg", "")).strip()
    if kind == "SystemExit":
        return message
    return f"{kind}: {message}" if message else f"{kind} without a text"


def _numbers_missing(error: dict, given: dict[str, str]) -> str:
    """The speculative number that is missing; "" when that is not the cause. No message says so: the frame does."""
    if error.get("func") not in SPEC_FRAMES:
        return ""
    src, kind = str(error.get("src") or ""), error.get("type")
    if kind == "AssertionError" and not error.get("msg") and S not in given and (K in given or N in given) \
            and (NUMBERS_NONE.search(src) or not src):
        return S
    if kind == "TypeError" and "'>' not supported between instances of 'NoneType' and 'int'" in str(error.get("msg")) \
            and K not in given:
        return K
    return ""


def _with_numbers(missing: str, given: dict[str, str], why: str) -> Finding:
    """The chain, and the tree of the same width, that what was given can have meant."""
    beside = " and ".join(f"{flag} {given[flag]}" for flag in (S, K, N) if flag in given)
    steps = _whole(given.get(S)) or max(1, (_whole(given.get(N)) or 4) - 1)
    topk = _whole(given.get(K)) or 1
    fix = f"set {S} {steps} {K} 1 {N} {steps + 1} (a chain of {steps} drafts)"
    if topk > 1:
        fix += f", or a tree: {S} 3 {K} {topk} {N} 16"
    id = "spec-steps-missing" if missing == S else "spec-topk-missing"
    return Finding(id, "fail", f"{missing} is missing beside {beside}", why,
                   f"{fix}. {N} counts what is verified: the drafts and one more")


def _given(argv: list[str]) -> dict[str, str]:
    """{flag: value} as written, the last one counts; abbreviations as their one meaning among the numbers."""
    out: dict[str, str] = {}
    for i, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        follows = argv[i + 1] if i + 1 < len(argv) and not argv[i + 1].startswith("--") else ""
        full = [flag for flag in (S, K, N) if flag.startswith(name)]
        out[full[0] if len(full) == 1 else name] = value if equals else follows
    return out


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


# (field, flag, what it means that SGLang put another value there)
FIELDS = (
    ("max_running_requests", "--max-running-requests", "requests served at once"),
    ("speculative_num_steps", S, "drafter passes per verify step"),
    ("speculative_eagle_topk", K, "branches per pass"),
    ("speculative_num_draft_tokens", N, "tokens verified per step"),
    ("mem_fraction_static", "--mem-fraction-static", "part of the GPU for weights and KV cache"),
    ("page_size", "--page-size", "tokens per page of the KV cache"),
    ("context_length", "--context-length", "tokens per request"),
    ("chunked_prefill_size", "--chunked-prefill-size", "tokens per prefill chunk"),
    ("attention_backend", "--attention-backend", "the attention kernels"),
    ("kv_cache_dtype", "--kv-cache-dtype", "the KV cache's type"),
    ("quantization", "--quantization", "the weights' type"),
)


def _changed(resolved: dict, argv: list[str], exp: Experiment) -> list[Finding]:
    """What SGLang put in force without a refusal, where it is not what was asked for."""
    given, out = _given(argv), []
    speculates = bool(resolved.get("speculative_algorithm"))
    for field, flag, meaning in FIELDS:
        value, asked = resolved.get(field), given.get(flag)
        if asked and value is not None and not _same(asked, value):
            out.append(Finding(f"resolved-{field.replace('_', '-')}", "warn", f"{flag} {asked} becomes {value}",
                               f"SGLang changed it without a refusal: {meaning}", f"write {flag} {value}, or change "
                               "what makes SGLang change it"))
    if speculates and "--max-running-requests" not in given and resolved.get("max_running_requests"):
        most = resolved["max_running_requests"]
        out.append(Finding("resolved-max-running-requests", "warn", f"at most {most} requests are served at once",
                           "with speculation SGLang caps what is not given; a baseline it does not",
                           "set serve.slots for both arms"))
    if speculates and resolved.get("disable_overlap_schedule") is True and "--disable-overlap-schedule" not in given:
        wide = (resolved.get("speculative_eagle_topk") or 1) > 1
        out.append(Finding("resolved-overlap-off", "warn", "the overlap scheduler is off with these numbers",
                           "SGLang switched it off for this way of drafting; the baseline has it",
                           (f"{K} 1, or " if wide else "") + "a newer SGLang (from 0.5.11 on chains keep it, from "
                           "0.5.13 on trees too), if throughput matters"))
    if "--speculative-adaptive" in given and resolved.get("speculative_adaptive") is False:
        out.append(Finding("resolved-adaptive-off", "warn", "--speculative-adaptive is not in force",
                           "SGLang fell back to fixed numbers", f"EAGLE or EAGLE3 with {K} 1, without data-parallel "
                           "attention"))
    if "--enable-mixed-chunk" in given and resolved.get("enable_mixed_chunk") is False:
        out.append(Finding("resolved-mixed-chunk-off", "warn", "--enable-mixed-chunk is not in force",
                           "SGLang switches it off with speculation", "leave it out"))
    return out


def _same(asked: str, value: Any) -> bool:
    try:
        return abs(float(asked) - float(value)) < 1e-9
    except (TypeError, ValueError):
        return asked.lower() == str(value).lower() or asked == "auto"
