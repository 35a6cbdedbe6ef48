"""`python -m kit COMMAND …`."""

from __future__ import annotations

import importlib
import signal
import sys

from kit.errors import KitError

# command: (module, function taking the rest of the arguments, what it does)
COMMANDS = {
    "demo": ("kit.demo", "main", "the whole runbook, headless: [CONFIG [HOST]]"),
    "compat": ("kit.compat_cli", "main", "does this drafter fit this target on this engine?"),
    "lint": ("kit.lint_cli", "main", "would this engine accept these flags, and what do they do?"),
    "diagnose": ("kit.diagnose_cli", "main", "what does this log say?"),
    "rehearsal": ("kit.rehearsal", "main", "the embedded host: start | stop | status"),
}


def main(argv: list[str]) -> int:
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name not in COMMANDS:
        known = "\n".join(f"  {n:10} {what}" for n, (_, _, what) in COMMANDS.items())
        print(f"usage: python -m kit COMMAND …\n{known}", file=sys.stderr)
        return 0 if name in ("-h", "--help", "help") else 2
    module, function, _ = COMMANDS[name]
    try:
        return getattr(importlib.import_module(module), function)(rest)
    except KitError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)    # one more would now end Python in the middle of its own end
        print("interrupted; what was started is stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
