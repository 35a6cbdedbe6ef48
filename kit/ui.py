"""The two live views: `watch(job)` and `controls(experiment)`.

    kit.watch(job)                                  # progress, last lines, Cancel
    knobs = kit.controls(exp, on_apply=start)         # fields → difference → Apply → result
    knobs.experiment, knobs.diff, knobs.result      # what later cells read

Views only show. Their handlers set a value or start a job, and return at once;
nothing here waits for a host, prints, or writes into an Output. Each view has a
text twin (its repr), which is what a saved notebook keeps.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import ipywidgets as W
import traitlets

from kit.errors import JobError, SpecError
from kit.job import Job
from kit.spec import Experiment
from kit.ui_controls import FIELDS, as_text, engine_of, help_of, read, shown, terms, widget_of
from kit.words import complaint, three_lines, without_addresses

MAX_LINES = 500         # more than a browser should redraw ten times a second
MAX_CHARS = 500         # of one line
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def watch(job: Job, lines: int = 100) -> JobView:
    """Progress, state, elapsed time, the last `lines` lines (at most 500) and a Cancel that works.

    For every job: endless ones (a followed log), ended ones, ones that fail at once. The same job may
    have several views, and closing a view leaves the job alone.
    """
    return JobView(job, lines)


def controls(exp: Experiment, on_apply: Callable[[Experiment], Job] | None = None,
             measured: Callable[[Experiment], Any] | None = None,
             said: Callable[[Any], Any] = lambda result: result) -> Controls:
    """Fields made from the experiment's model, with the difference they make.

    on_apply   started by Apply with the checked experiment; returns a `Job` at once
    measured   what earlier runs say about a setting: text or a frame, shown while a value changes;
               pure and fast, it is called on every change
    said       what to show of an Apply's result, where it says little itself: text, a frame or a figure
    """
    return Controls(exp, on_apply, measured, said)


class Twin:
    """A widget that also says in plain text what it shows."""

    def text(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            return without_addresses(self.text())
        except Exception as e:   # a repr must not break the cell that shows it
            return f"{type(self).__name__} (its text failed: {complaint(e)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        text = repr(self)
        return {**(super()._repr_mimebundle_(**kwargs) or {}), "text/plain": text, "text/html": _pre(text)}


class JobView(Twin, W.VBox):
    """See `watch`. `view.cancel.click()` is the button."""

    def __init__(self, job: Job, lines: int = 100):
        self._detach: Callable[[], None] = lambda: None   # a widget that fails while it is made is closed too
        super().__init__()
        self.job = job
        self._lines = min(max(lines, 1), MAX_LINES)
        self._seen = -1
        self.words, self.tail, self.error = W.HTML(), W.HTML(), W.HTML()
        self.bar = W.FloatProgress(min=0, max=1, description="progress")
        self.cancel = W.Button(description="Cancel", tooltip=f"ask {job.name} to stop")
        self.cancel.on_click(lambda _: job.cancel())
        self.children = (self.words, W.HBox((self.bar, self.cancel)), self.tail, self.error)
        self._paint(job)
        self._detach = job.on_change(self._paint)

    def _paint(self, job: Job) -> None:
        """Called by one thread at a time: here once, then by the job's teller."""
        state, fraction = job.state, job.fraction
        self.words.value = _pre(f"{job.name} — {job.words}")
        self.bar.value = fraction or 0.0
        self.bar.bar_style = {"done": "success", "failed": "danger", "cancelled": "warning"}.get(state, "")
        self.bar.layout.display = "none" if fraction is None else None
        self.cancel.disabled = job.ended or state == "cancelling"
        if job.line_count != self._seen:
            self._seen = job.line_count
            self.tail.value = _log(job.lines(self._lines))
        self.error.value = _pre(without_addresses(three_lines(job.error))) if job.error is not None else ""

    def text(self) -> str:
        return repr(self.job)

    def close(self) -> None:
        self._detach()
        for child in self.children:
            child.close()
        super().close()


class Controls(Twin, W.VBox):
    """See `controls`.

    fields       {"spec.steps": widget, …}; `apply` and `reset` are buttons: all driven by `.value =`, `.click()`
    experiment   the last valid setting, frozen and checked
    problem      why the fields as they stand are not valid, "" when they are
    job, result  of the last Apply: its job, and what it returned (a trait: observe it)
    """

    experiment, result = traitlets.Any(), traitlets.Any()

    def __init__(self, exp: Experiment, on_apply: Callable[[Experiment], Job] | None = None,
                 measured: Callable[[Experiment], Any] | None = None,
                 said: Callable[[Any], Any] = lambda result: result):
        super().__init__()
        self.loaded, self.experiment = exp, exp
        self.problem, self.refusal = "", ""
        self.job, self._settled = None, None        # jobs
        self._on_apply, self._measured, self._of_result, self._engine = on_apply, measured, said, engine_of(exp)
        # taking the one ticket is atomic: two clicks at once, from two handler threads, start one job
        self._ticket, self._quiet = [True], False
        offered = self._engine.algorithms if self._engine else ()
        self.fields = {name: widget_of(name, shown(_get(exp, name)), offered if name == "spec.algorithm" else ())
                       for name in FIELDS}
        self.reset = W.Button(description="Reset", tooltip="back to the loaded experiment")
        self.apply = W.Button(description="Apply", button_style="primary",
                              tooltip="plan, apply and probe" if on_apply else "nothing to apply to: give on_apply")
        self._said = W.HTML()
        self._below = W.VBox()
        rows = [W.HBox((w, W.Label(help_of(name)))) for name, w in self.fields.items()]
        self.children = (*rows, W.HBox((self.reset, self.apply)), self._said, self._below)
        for widget in self.fields.values():
            widget.observe(self._read, "value")
        self.reset.on_click(self._reset)
        self.apply.on_click(self._apply)
        self._read()

    @property
    def diff(self) -> list[tuple[str, Any, Any]]:
        """What the setting changes in the loaded experiment: (field, was, now)."""
        return self.loaded.diff(self.experiment)

    @property
    def running(self) -> bool:
        return not self._ticket

    def _read(self, _change: Any = None) -> None:
        if self._quiet:
            return
        try:
            exp = self.loaded.with_(**{name: read(name, w.value) for name, w in self.fields.items()})
        except SpecError as e:
            self.problem = e.what
        else:
            self.problem = self._unsupported(exp)
            if not self.problem:
                self.experiment = exp
        self._show()

    def _unsupported(self, exp: Experiment) -> str:
        if self._engine is None or exp.spec.algorithm in self._engine.algorithms:
            return ""
        return f"spec.algorithm: {self._engine.name} does not offer {exp.spec.algorithm}; " \
               f"it has {', '.join(self._engine.algorithms)}"

    def _reset(self, _button: Any = None) -> None:
        self._quiet = True
        try:
            for name, widget in self.fields.items():
                widget.value = shown(_get(self.loaded, name))
        finally:
            self._quiet = False
        self._read()

    def _apply(self, _button: Any = None) -> None:
        if self.problem or self._on_apply is None:
            return
        try:
            self._ticket.pop()
        except IndexError:
            return
        self.refusal, self.result = "", None
        try:
            job = self._on_apply(self.experiment)
            if not isinstance(job, Job):
                raise JobError(f"on_apply gave a {type(job).__name__}, not a Job", next="let it return Job.start(…)")
            view = watch(job)
        except Exception as e:   # shown in the view: an error in a handler would go to a log nobody reads
            self.refusal = without_addresses(three_lines(e))
            self._ticket.append(True)
            self._show()
            return
        old, self.job, self._below.children = self._below.children, job, (view,)
        for view_before in old:
            view_before.close()
        self._show()
        job.on_change(self._settle)

    def _settle(self, job: Job) -> None:
        if not job.ended or job is self._settled:
            return
        self._settled = job
        if job.error is None:
            self.result = job.result()
        self._ticket.append(True)
        self._show()

    def _show(self) -> None:
        self.apply.disabled = bool(self.problem) or self._on_apply is None or self.running
        self._said.value = "".join(_pre(text) if title is None else f"<b>{html.escape(title)}</b>{_pre(text)}"
                                   for title, text in self._parts())

    def _parts(self) -> list[tuple[str | None, str]]:
        """(title, text) of everything said below the fields, in the order shown."""
        parts: list[tuple[str | None, str]] = []
        if self.problem:
            parts.append(("Not valid, the last valid setting stays", self.problem))
        width = max((len(field) for field, _, _ in self.diff), default=0)
        parts.append(("Difference to the loaded experiment", "\n".join(
            f"{field:{width}}  {_word(was)} → {_word(now)}" for field, was, now in self.diff) or "none"))
        spec = self.experiment.spec
        table = terms(spec, self._engine)
        width = max(map(len, table))
        parts.append((f"In each engine's terms: {spec.drafts} drafted, {spec.verified} verified per step", "\n".join(
            f"{name:{width}}  " + (" ".join(f"{flag} {value}" for flag, value in flags.items()) or "(no speculation)")
            for name, flags in table.items())))
        if self.refusal:
            parts.append(("Apply did not start", self.refusal))
        if self.result is not None:
            parts.append(("Result", self._told(self._of_result, self.result)))
        if self._measured is not None:
            parts.append(("Measured before", self._told(self._measured, self.experiment) or "nothing yet"))
        return parts

    @staticmethod
    def _told(by: Callable[[Any], Any], about: Any) -> str:
        try:
            return as_text(by(about))
        except Exception as e:   # a broken store must not take the controls away
            return three_lines(e)

    def text(self) -> str:
        width = max(map(len, self.fields))
        lines = [f"controls of {self.loaded.name}, arm {self.loaded.arm_name}, engine {self.loaded.engine.name}"]
        lines += [f"  {name:{width}}  {_word(w.value)}" for name, w in self.fields.items()]
        for title, text in self._parts():
            lines += [title or "", *(f"  {line}" for line in text.splitlines())]
        return "\n".join(lines if self.job is None else [*lines, repr(self.job)])


def _get(exp: Experiment, dotted: str) -> Any:
    section, name = dotted.split(".")
    return getattr(getattr(exp, section), name)


def _word(value: Any) -> str:
    return str(shown(value)) if value not in (None, "") else "automatic"


def _pre(text: str) -> str:
    return f'<pre style="margin:0;white-space:pre-wrap;line-height:1.3">{html.escape(text)}</pre>'


def _log(lines: list[str]) -> str:
    """The log's end in view: a reversed column scrolls from its bottom."""
    clean = (_ESCAPES.sub("", line) for line in lines)
    text = "\n".join(line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…" for line in clean)
    return ('<div tabindex="0" role="log" aria-label="last lines" style="display:flex;flex-direction:column-reverse;'
            f'max-height:20em;overflow:auto">{_pre(text)}</div>') if lines else ""
