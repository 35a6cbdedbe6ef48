"""Runs inside the engine's own environment: imports SGLang once, forks for every flag set.

stdin: one JSON {"argv": […], "env": {…}} a line; stdout: one JSON answer a line.
Standard library only; no GPU and no weights are needed with `--device cuda`.
"""

import json
import os
import signal
import sys
import traceback

LIMIT_S = 120


def answer(argv):
    """What the engine's own parser, resolver and checks say, as far as they run before anything is loaded."""
    out = {"ok": False, "stage": "parse"}
    try:
        from sglang.srt import server_args
        args = server_args.prepare_server_args(list(argv))
        if hasattr(args, "resolve_once"):           # from 0.5.19 on, rules run here
            out["stage"] = "resolve"
            args.resolve_once()
        out["stage"] = "check"
        args.check_server_args()
        out.update(ok=True, stage="done")
    except SystemExit as e:
        out.update(error="SystemExit", says=str(e.code))
    except BaseException as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        out.update(error=type(e).__name__, says=str(e)[:240],
                   where=os.path.basename(frame.filename) + ":" + frame.name)
    return out


def forked(case):
    """The answer of a child process, so that no set sees what another one left behind."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(LIMIT_S)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.environ.update(case.get("env", {}))
        before = set(sys.modules)
        out = answer(case["argv"])
        if case.get("warm"):
            out["modules"] = sorted(set(sys.modules) - before)
        if out.get("error") == "SystemExit" and LAST_ERROR:
            out["says"] = LAST_ERROR[-1]
        os.write(writer, json.dumps(out).encode())
        os._exit(0)
    os.close(writer)
    data = b""
    while True:
        chunk = os.read(reader, 65536)
        if not chunk:
            break
        data += chunk
    os.close(reader)
    os.waitpid(pid, 0)
    return json.loads(data) if data else {"ok": False, "stage": "died", "error": "Died", "says": ""}


LAST_ERROR = []
WARM = ([], ["--speculative-algorithm", "EAGLE3"], ["--speculative-algorithm", "NGRAM"])


def main():
    import argparse

    def error(self, message):
        LAST_ERROR.append(message[:240])
        raise SystemExit(2)
    argparse.ArgumentParser.error = error
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = [json.loads(line) for line in sys.stdin]
    from sglang.srt import server_args  # noqa: F401
    for warm in WARM:                               # what a child would import, the parent imports once
        for name in forked({"argv": cases[0]["argv"][:4] + warm, "warm": True}).get("modules", ()):
            try:
                __import__(name)
            except Exception as e:                  # a child that needs it will say so itself
                sys.stderr.write(f"not imported: {name}: {type(e).__name__}\n")
    for case in cases:
        replies.write(json.dumps(forked(case)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
