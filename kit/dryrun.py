"""The engine on the host reads its own command, in seconds and before anything is written there.

Its program is piped to the server's python: nothing of it stays. What it answers is held against `kit.lint`; where
the two disagree, the fault is ours, and said.
"""

from __future__ import annotations

import json
import re

from kit.command import Result
from kit.engines import engine
from kit.engines import service as unit_of
from kit.errors import CommandTimeout
from kit.findings import Finding, Report
from kit.lint import lint
from kit.seams import Host, Phase
from kit.spec import Experiment

MARK = "@@DRYRUN "


def dry_run(exp: Experiment, host: Host) -> Report:
    """One round trip. A report with no finding where this engine cannot be asked; falsy where it refused.

    >>> dry_run(exp.arm("eagle3"), host).require()
    """
    command = engine(exp.engine.name).dry_run(exp, host.root)
    title = f"{exp.unit}: what the engine on {host.name} says"
    if command is None:
        return Report((), title)
    try:
        found = read(host.run(command), exp, engine(exp.engine.name).failures)
    except CommandTimeout as e:
        found = (Finding("dry-run", "unknown", e.what, fix="look at the host's load, and plan again"),)
    unit = unit_of(exp, host.root)
    said = lint(exp.engine.name, exp.engine.version or "", list(unit.argv), dict(unit.env))
    return Report((*found, *disagreement(found, said)), title)


def read(result: Result, exp: Experiment, failures: tuple[Phase, ...]) -> tuple[Finding, ...]:
    """What it answered, as findings. Pure."""
    marked = [line for line in result.text.splitlines() if line.startswith(MARK)]
    if not marked:
        return (_no_answer(result, exp),)
    try:
        answer = json.loads(marked[-1].removeprefix(MARK))
        stage, error = str(answer["stage"]), answer.get("error") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return (Finding("dry-run", "unknown", "the engine's answer is not what the program prints",
                        fix="report it", evidence=marked[-1][:300]),)
    version = str(answer.get("sglang") or "")
    if answer.get("ok"):
        return (Finding("dry-run", "pass", f"{exp.engine.name} {version} takes the command",
                        evidence=json.dumps(answer.get("resolved", {}))), *_changed(answer.get("resolved", {}), exp),
                *_release(version, exp))
    if stage == "import":
        return (Finding("dry-run-import", "fail", f"{exp.engine.name} is not importable: {_words(error, result)}",
                        f"python {answer.get('python', '?')}: {exp.engine.python}",
                        "install it into the environment of engine.python, or name another one"),)
    text = _words(error, result)
    seen = [text, *error.get("src", ())]
    cause = next((f for f in failures for line in seen if re.search(f.pattern, str(line))), None)
    what, _, fix = cause.meaning.partition(" Fix: ") if cause else (text, "", "")
    return (Finding(cause.id if cause else "dry-run", "fail", what,
                    f"{exp.engine.name} {version} itself refuses it while it reads its flags: {text} "
                    f"({error.get('file', '')}:{error.get('line', '')} {error.get('func', '')})".strip(),
                    fix or "correct the flag that it names: engine.args, or the arm", "\n".join(seen)[:600]),
            *_release(version, exp))


def _words(error: dict, result: Result) -> str:
    """Its own words: of argparse the last line of stderr, else the exception."""
    if error.get("type") == "SystemExit":
        said = [line for line in result.stderr.decode("utf-8", "replace").splitlines() if "error:" in line]
        return said[-1].strip() if said else f"exit {error.get('code')}"
    return f"{error.get('type', 'error')}: {error.get('msg', '')}".strip()


def _no_answer(result: Result, exp: Experiment) -> Finding:
    said = result.complaint.splitlines()[-1] if result.complaint else "it said nothing"
    if result.exit == 127 or "No such file" in said or result.exit == 126:
        return Finding("dry-run-python", "fail", f"engine.python cannot be run: {exp.engine.python}", said,
                       "name the python of the environment that has the engine: engine.python")
    if result.exit in (124, 137):
        return Finding("dry-run", "unknown", f"no answer within {result.command.limit_s:g} s", said,
                       "look at the host's load, and plan again")
    if result.exit is None:
        return Finding("dry-run", "unknown", "the connection broke while it read the command", fix="plan again")
    return Finding("dry-run", "fail" if result.exit else "unknown", f"it ended with exit {result.exit} and no answer",
                   said, "run the command by hand on the host")


def _changed(resolved: dict, exp: Experiment) -> tuple[Finding, ...]:
    """What it takes, and makes something else of."""
    spec = exp.spec
    wanted = {"max_running_requests": exp.serve.slots, "context_length": exp.serve.context}
    if spec.algorithm in ("eagle", "eagle3", "mtp", "draft"):
        wanted |= {"speculative_num_steps": spec.steps, "speculative_eagle_topk": spec.topk,
                   "speculative_num_draft_tokens": spec.verified}
    return tuple(Finding("dry-run-changed", "warn", f"{name}: {value} is asked, {resolved[name]} is what it will use",
                         "the engine changes it without a word in its log", "ask for that value, so that the record is "
                         "true") for name, value in wanted.items() if name in resolved and resolved[name] != value)


def _release(version: str, exp: Experiment) -> tuple[Finding, ...]:
    if not version or not exp.engine.version or version == exp.engine.version:
        return ()
    return (Finding("dry-run-release", "warn", f"{version} is there, the config is written for {exp.engine.version}",
                    "flags are rendered and judged for the latter", f"engine.version: {version}"),)


def disagreement(found: tuple[Finding, ...], said: Report) -> tuple[Finding, ...]:
    """Where `kit.lint` and the engine itself do not say the same: one of ours is wrong."""
    refused = [f for f in found if f.verdict == "fail" and f.id not in ("dry-run-python", "dry-run-import")]
    took = any(f.id == "dry-run" and f.verdict == "pass" for f in found)
    ours = [f for f in said if f.verdict == "fail"]
    if refused and said.ok and not any(f.verdict == "unknown" for f in said):
        return (Finding("lint-disagrees", "warn", f"kit.lint takes what the engine refuses: {refused[0].what}",
                        "a rule of the kit is missing", "please report it with both texts"),)
    if took and ours and not any("open" in f.id or "leak" in f.id for f in ours):
        return (Finding("lint-disagrees", "warn", f"the engine takes what kit.lint refuses: {ours[0].what}",
                        "either it breaks later than its flags are read, or a rule of the kit is wrong",
                        "please report it if it serves"),)
    return ()
