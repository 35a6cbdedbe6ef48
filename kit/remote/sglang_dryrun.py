"""Let the installed SGLang read its flags, without a GPU, weights or a port. Piped to the server's own python.

    python - FLAGS… < sglang_dryrun.py      prints `@@DRYRUN {json}`: ok, stage, versions, resolved, error

Releases up to 0.5.18 resolve inside the constructor, later ones in resolve_once(), and then only
resolution_result() knows the outcome. check_server_args() is a separate, later call in all of them.
"""

import json
import linecache
import os
import sys
import traceback

KEYS = ("attention_backend", "page_size", "max_running_requests", "mem_fraction_static", "disable_overlap_schedule",
        "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
        "context_length", "tp_size")


def main(argv):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")        # a missing model must not become a download
    out = {"ok": False, "stage": "import", "python": sys.version.split()[0]}
    try:
        import sglang
        out["sglang"] = getattr(sglang, "__version__", "")
        from sglang.srt import server_args as module
        out["stage"] = "parse"
        args = module.prepare_server_args(list(argv))

        def get(name):
            return getattr(args, name, None)
        if hasattr(args, "resolve_once"):
            out["stage"] = "resolve"
            args.resolve_once()
            from sglang.srt.arg_groups.overrides import resolution_result

            def get(name):
                return resolution_result(args, name)
        out["stage"] = "check"
        args.check_server_args()
        out["resolved"] = {k: get(k) for k in KEYS if get(k) is not None}
        out.update(ok=True, stage="done")
    except SystemExit as e:
        out["error"] = {"type": "SystemExit", "code": e.code}
    except BaseException as e:
        frames = traceback.extract_tb(e.__traceback__)
        last = frames[-1]
        out["error"] = {"type": type(e).__name__, "msg": str(e)[:2000], "file": os.path.basename(last.filename),
                        "line": last.lineno, "func": last.name,
                        "src": [linecache.getline(last.filename, last.lineno + i).rstrip()[:300] for i in range(-2, 3)]}
    print("\n@@DRYRUN " + json.dumps(out, default=str), flush=True)
    return 0 if out["ok"] else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)                                      # some releases leave threads behind
