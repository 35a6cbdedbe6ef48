"""The whole runbook, headless: every notebook in order, on one host, and a report.

Prints what it does, and as its very last line one compact JSON.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

from kit import launches, metrics, project, reading, rehearsal
from kit.analysis import compare
from kit.applying import Applier
from kit.errors import KitError, PlanError
from kit.job import Job
from kit.planning import plan
from kit.spec import Experiment
from kit.surveying import survey
from kit.verbs import connect

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = signal.SIGALRM      # an ending that was lost
IRIS = "rfc3987_syntax"     # 4 s of jsonschema's start, here and at a kernel's first figure, to check IRIs nobody has
HEADLINE = ("chat", 1)      # prompt set and concurrency of the last line's numbers


def demo(config: str = "configs/laptop.yaml", host: str = "") -> int:
    """Run all notebooks against `config`; 0 when all went well. What was started is stopped, whatever happens."""
    began = time.time()
    exp = Experiment.load(config, host)
    _interrupted_once()
    with _alone():
        out = project.root() / "data" / "reports" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began))
        try:
            for notebook in sorted((project.root() / "notebooks").glob("[0-9]*.ipynb")):
                _execute(notebook, out / notebook.name,
                         {"config": config, "host": host, "again": True, "report_folder": str(out)})
            line = _last_line(exp, out, began)
        finally:
            _deaf((*ENDINGS, AGAIN))
            _stop(exp)
    print(json.dumps(line, separators=(",", ":"), allow_nan=False), flush=True)
    return 0


def _interrupted_once() -> None:
    """Ctrl-C, TERM and a closed terminal all end the demo, and only the first counts: the stopping goes on."""
    def end(number: int, *_: object) -> None:
        _deaf(ENDINGS)
        if number != AGAIN:
            with suppress(OSError):
                os.write(2, b"\nstopping what was started\n")
        raise KeyboardInterrupt

    def lost(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(unraisable)
        else:       # the signal came while a weakref's callback ran, or a __del__: there, what is raised is dropped
            signal.setitimer(signal.ITIMER_REAL, 0.01)

    sys.unraisablehook = lost
    signal.signal(AGAIN, end)
    for number in ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:      # nohup
            signal.signal(number, end)


def _deaf(numbers: tuple[signal.Signals, ...]) -> None:
    for number in numbers:
        signal.signal(number, lambda *_: None)              # SIG_IGN would be inherited by what we still start


@contextmanager
def _alone():
    """Two demos in one folder would measure each other."""
    lock = project.root() / ".rehearsal" / "demo.lock"
    out = project.root() / "data" / "reports"
    try:
        for folder in (lock.parent, out):
            folder.mkdir(mode=0o700 if folder == lock.parent else 0o777, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
        f = lock.open("a+")
    except OSError as e:
        raise PlanError(f"the demo cannot write into the project's folder: {e.strerror}", where=str(e.filename or out),
                        next="clone it where you may write, or make room; then run the demo again") from None
    with f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            f.seek(0)
            raise PlanError(f"a demo is running already (pid {f.read().strip() or 'unknown'})", where=str(lock),
                            next="wait for its end, or stop that process") from None
        f.truncate(0)
        f.write(str(os.getpid()))
        f.flush()
        yield
        f.truncate(0)


def _execute(notebook: Path, copy: Path, parameters: dict) -> None:
    """Run one notebook into an executed copy; its KitError is shown in three lines."""
    logging.getLogger("papermill").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # "TCP without encryption": the kernel is on this machine
        sys.modules.setdefault(IRIS, None)
        import papermill  # 1.5 s: only the demo needs it
        from papermill.exceptions import PapermillExecutionError
    copy.parent.mkdir(parents=True, exist_ok=True)
    written = notebook.read_text()
    parameters = {name: value for name, value in parameters.items() if f'"{name} = ' in written}
    began = time.monotonic()
    print(f"{notebook.stem:24}", end="", flush=True)
    heard = copy.with_suffix(".stderr")      # not in our words: what a kernel says as it ends, or why it died
    try:
        papermill.execute_notebook(str(notebook), str(copy), parameters=parameters, cwd=str(notebook.parent),
                                   progress_bar=False, log_output=False, store_widget_state=False,
                                   kernel_manager_class=_kernels(heard),
                                   extra_arguments=[
                                       "--IPKernelApp.log_level=50",
                                       f"--IPKernelApp.exec_lines=import sys; sys.modules.setdefault({IRIS!r}, None)"])
    except PapermillExecutionError as e:
        print("failed", flush=True)
        what, *rest = str(e.evalue).splitlines() or [""]
        said = dict(line.strip().partition(":")[::2] for line in rest)      # the error's own where and next
        raise PlanError(f"{notebook.stem}, cell {e.exec_count}: {e.ename}: {what}",
                        where=f"{said.get('where', '').strip()} ({copy})",
                        next=said.get("next", " mend what it names, and run the demo again").strip()) from None
    finally:
        if heard.exists() and not heard.stat().st_size:
            heard.unlink()
    print(f"{time.monotonic() - began:5.1f} s", flush=True)


def _kernels(heard: Path) -> type:
    """Kernels whose own stderr goes into a file."""
    from jupyter_client.manager import AsyncKernelManager

    class Kernels(AsyncKernelManager):
        async def _async_start_kernel(self, **options: object) -> None:
            with heard.open("a") as stderr:
                await super()._async_start_kernel(stderr=stderr, **options)

        start_kernel = _async_start_kernel

    return Kernels


def _stop(exp: Experiment) -> None:
    """Stop what this experiment runs, and the embedded host if it is the one."""
    try:
        host = connect(exp)
        Job.start(f"stop {exp.name}",
                  lambda job: Applier(plan(exp, survey(exp, host), "stopped"), host, job).run()).result()
        host.close()
    except KitError as e:
        print(f"could not stop what {exp.name} may still run on {exp.host.ssh}: {e.what}", file=sys.stderr)
    if exp.host.ssh == rehearsal.NAME:
        rehearsal.stop()


def _last_line(exp: Experiment, out: Path, began: float) -> dict:
    """The measured numbers of this run: chat prompts at concurrency 1."""
    runs = [r for r in reading.runs(exp) if r.meta["created_s"] >= began]       # not the short probes of the tuning
    table = compare(metrics.points(runs), metrics.requests(runs), baseline=next(iter(exp.arms)))
    rows = table[(table.prompt_set == HEADLINE[0]) & (table.concurrency == HEADLINE[1])]
    if failed := [row.arm for row in rows.itertuples() if not row.tok_s > 0]:
        raise PlanError(f"{', '.join(failed)}: no request was answered", where=f"{out}",
                        next="read the service's log: notebook 40-log")
    arms = {}
    for row in rows.itertuples():
        arm: dict = {"tok_s": round(row.tok_s, 1)}
        if exp.arms[row.arm].algorithm != "none":
            arm |= {"accept_length": None if row.accept_length != row.accept_length else round(row.accept_length, 2),
                    "speedup": round(row.speedup, 2), "identical": f"{row.identical}/{row.compared}"}
        arms[row.arm] = arm
    healthy = [r["healthy_s"] for r in launches.history() if r["time_s"] >= began and r["unit"].startswith(exp.name)]
    arms = {name: arms[name] for name in exp.arms if name in arms}
    return {"report": str(next(out.glob("*.html")).relative_to(project.root())), "arms": arms,
            "healthy_s": healthy[0] if healthy else None, "wall_s": round(time.time() - began, 1)}


def main(argv: list[str]) -> int:
    """`python -m kit demo [CONFIG [HOST]]`."""
    return demo(*argv[:2])
