"""Lets the SGLang that is installed here read and resolve a command line, and loads nothing.

    PYTHON - FLAG ... < sglang_dryrun.py        (the server's own python and environment; FLAGs as for launch_server)

Prints one line, `@@DRYRUN {json}`, whatever the libraries print beside it (that goes to stderr):

    stage     where it ended: python, files, import, parse, resolve, check, drafter, done
    ok        every stage was passed
    resolved  the values in force, as far as it came
    error     {type, msg, func, src, file, line, module}; of an argparse error {type: "SystemExit", msg}
    drafter   why the drafter's own context could not be checked; "" when it was, or there is none
    versions  {sglang, torch, transformers, python}
    took_s

No GPU context and no weights: safe beside a running server. It writes nothing but a temporary folder, which it
deletes. Standard library beside what is asked; runs from Python 3.9 on, and says so itself on an older one.
"""

import json
import os
import sys
import time

MARK = "@@DRYRUN "
LIMIT_S = float(os.environ.get("SPECBOOK_DRY_RUN_S", "150"))
FIELDS = ("attention_backend", "page_size", "max_running_requests", "mem_fraction_static", "disable_overlap_schedule",
          "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
          "speculative_adaptive", "speculative_draft_model_path", "context_length", "chunked_prefill_size",
          "enable_mixed_chunk", "tp_size", "kv_cache_dtype", "quantization", "sampling_backend", "device")
PATHS = {"--model-path": "target", "--model": "target", "--speculative-draft-model-path": "drafter",
         "--speculative-draft-model": "drafter"}
CACHES = ("XDG_CACHE_HOME", "HF_MODULES_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
          "FLASHINFER_WORKSPACE_BASE")


def value_of(argv, names):
    """{role: path} as written; the last one counts, as for argparse."""
    found = {}
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names and (equals or i + 1 < len(argv)):
            found[names[name]] = value if equals else argv[i + 1]
    return found


def versions():
    from importlib import metadata
    found = {"python": "%d.%d.%d" % sys.version_info[:3]}
    for name in ("sglang", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except Exception:                           # damaged metadata is no reason not to ask
            found[name] = ""
    return found


def failure(error):
    """What is known of an exception. Its last frame tells a bare assertion from another, by the source around it: which
    line of a condition is named depends on the Python."""
    import linecache
    import traceback
    frames = traceback.extract_tb(error.__traceback__)
    known = {"type": type(error).__name__, "msg": str(error)[:2000], "module": getattr(error, "name", None) or "",
             "func": "", "src": "", "file": "", "line": 0}
    if frames:
        last = frames[-1]
        source = [linecache.getline(last.filename, last.lineno + i).strip() for i in range(-2, 3)]
        known.update(func=last.name, src=" ".join(filter(None, source))[:600], line=last.lineno,
                     file=os.path.basename(last.filename))
    return known


def drafter_context(get):
    """SGLang finds out only after it has loaded the target that the drafter's context is too short."""
    import inspect
    path = get("speculative_draft_model_path")
    if not path or path == get("model_path"):
        return
    from sglang.srt.configs.model_config import ModelConfig
    known = inspect.signature(ModelConfig.__init__).parameters

    def config(folder, **wanted):
        return ModelConfig(folder, **{k: v for k, v in wanted.items() if k in known})

    common = {"dtype": "auto", "trust_remote_code": bool(get("trust_remote_code"))}
    context = get("context_length") or config(get("model_path"), **common).context_len
    config(path, context_length=context, is_draft_model=True, **common)


def ask(argv, out):
    """Fills `out`, stage by stage; what SGLang raises goes to the caller."""
    out["stage"] = "files"
    for role, path in value_of(argv, PATHS).items():
        if path.startswith("/") and not os.path.exists(path):
            raise FileNotFoundError("the %s is not there: %s" % (role, path))
    out["stage"] = "import"
    from sglang.srt import server_args as module
    out["stage"] = "parse"
    args = module.prepare_server_args(list(argv))   # up to 0.5.18 this resolves, too

    def get(name):
        return getattr(args, name, None)

    if hasattr(args, "resolve_once"):               # from 0.5.19 on, attributes stay as they were given
        out["stage"] = "resolve"
        args.resolve_once()
        from sglang.srt.arg_groups.overrides import resolution_result

        def get(name):
            return resolution_result(args, name) if hasattr(args, name) else None
    out["resolved"] = {name: get(name) for name in FIELDS if get(name) is not None}
    if hasattr(args, "check_server_args"):
        out["stage"] = "check"
        args.check_server_args()
    out["stage"] = "drafter"
    try:
        drafter_context(get)
    except ValueError as e:
        if "context_length" in str(e):
            raise
        out["drafter"] = "%s: %s" % (type(e).__name__, str(e)[:300])
    except Exception as e:                          # a config that this look cannot read is for the launch to judge
        out["drafter"] = "%s: %s" % (type(e).__name__, str(e)[:300])
    out.update(stage="done", ok=True)


def main(argv):
    began, reply = time.time(), os.dup(1)
    os.dup2(2, 1)                                   # what libraries print must not look like an answer
    out = {"ok": False, "stage": "python", "resolved": {}, "error": None, "drafter": "", "versions": {}}

    def say():
        out["took_s"] = round(time.time() - began, 1)
        os.write(reply, (MARK + json.dumps(out, default=str) + "\n").encode())

    if sys.version_info < (3, 9):
        out["versions"] = {"python": "%d.%d.%d" % sys.version_info[:3]}
        out["error"] = {"type": "Python", "msg": "Python " + out["versions"]["python"]}
        say()
        return 1
    import argparse
    import shutil
    import signal
    import tempfile

    sys.path[:] = [p for p in sys.path if p]        # a folder named sglang where we stand is not the engine
    sys.dont_write_bytecode = True
    try:
        scratch = tempfile.mkdtemp(prefix="specbook-dry-run-")
        os.environ.update({name: scratch for name in CACHES})
    except OSError:
        scratch = ""
    said = []

    def error(parser, message):
        said.append(message)
        raise SystemExit(2)

    def late(*_):
        out["error"] = {"type": "Timeout", "msg": "no end within %g s" % LIMIT_S}
        say()
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    argparse.ArgumentParser.error = error
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    out["versions"] = versions()
    try:
        ask(argv, out)
    except SystemExit as e:
        out["error"] = {"type": "SystemExit", "msg": (said or [str(e.code)])[-1][:2000]}
    except BaseException as e:                      # kept and told: finding out what it raises is the purpose
        out["error"] = failure(e)
    signal.setitimer(signal.ITIMER_REAL, 0)
    say()
    shutil.rmtree(scratch, ignore_errors=True)
    sys.stderr.flush()
    os._exit(0 if out["ok"] else 1)                 # no library's thread or exit handler holds the answer up


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
