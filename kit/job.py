"""Work that takes long: one daemon thread behind a handle like a Future.

    def work(job):
        for i, name in enumerate(names):
            job.progress(i, len(names), name)      # raises Cancelled once somebody asked
            job.line(f"fetched {name}")
        return len(names)

    job = Job.start("fetch", work)                 # returns at once
    job.wait(); job.result(); await job; job.cancel(); kit.watch(job)

The thread only runs `work`. Views are told by a second thread, at most ten
times a second, so that a slow view never slows the work. Both are daemons: the
interpreter does not wait for them. What must outlive the notebook runs on the host.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from itertools import islice
from typing import Any

from kit.errors import Cancelled, JobError, KitError
from kit.words import ENDED, Account, cancelled, complaint, outcome

KEEP_LINES = 100_000    # the newest stay
TELL_EVERY_S = 0.1      # observers hear of changes at most this often
TICK_S = 1.0            # …and at least this often, so that elapsed time moves
CLEANUP_S = 30.0        # how long a cancel callback may take before the job says so

_live: dict[str, Job] = {}
_live_lock = threading.Lock()


def jobs() -> dict[str, Job]:
    """The jobs that have not ended, by key (their name where no key was given)."""
    with _live_lock:
        return dict(_live)


class Job(Account):
    """A handle on running work; start one with `Job.start`.

    state      waiting | running | cancelling | done | failed | cancelled
    done, total, note   what the work last said of its progress; total 0 when unknown
    phases     (name, seconds after the start) of each phase so far
    line_count lines said so far; the newest `KEEP_LINES` are kept
    error      the KitError it ended with, or None
    """

    def __init__(self, name: str, key: str, cancel: Callable[[], Any] | None, about: Any = None):
        self.name, self.key, self._about = name, key, about
        self.state = "waiting"
        self.error: KitError | None = None
        self.phases: tuple[tuple[str, float], ...] = ()
        self.line_count = 0
        self.done, self.total, self.note = 0, 0, ""
        self._lines: deque[str] = deque(maxlen=KEEP_LINES)
        self._began, self._ended_at = time.monotonic(), None
        self._value = self._traceback = None
        self._on_cancel = [cancel] if cancel else []
        self._cleanup: threading.Thread | None = None
        self._cleanup_error: BaseException | None = None
        self._asked, self._changed = threading.Event(), threading.Event()
        self._ended: Future[None] = Future()
        self._observers: dict[object, Callable[[Job], Any]] = {}
        self._teller: threading.Thread | None = None
        self._lock = threading.Lock()

    @classmethod
    def start(cls, name: str, work: Callable[[Job], Any], cancel: Callable[[], Any] | None = None, *,
              key: str | None = None, about: Any = None) -> Job:
        """Run `work(job)` in a thread and return at once.

        cancel   called once, in a thread of its own, when somebody cancels: close a stream, stop a unit
        key      what may run only once: while a job of this key runs, that one is returned and nothing
                 starts. Without a key, or with something else in `about`, a second one raises `JobError`.
        """
        job = cls(name, key or name, cancel, about)
        with _live_lock:
            running = _live.get(job.key)
            if running is None:
                _live[job.key] = job
        if running is not None:
            if key is not None and running._about == about:
                return running
            how = "" if key is None else ", with other settings"
            raise JobError(f"{name}: already running{how}", where=running.words,
                           next=f"watch it (jobs()[{job.key!r}]), cancel it, or wait for its end")
        job._ended.set_running_or_notify_cancel()   # so that a cancelled `await` cannot mark it as ended
        try:
            threading.Thread(target=job._run, args=(work,), name=f"job {name}", daemon=True).start()
        except RuntimeError as e:
            error = JobError(f"{name}: no thread could be started", where=str(e), next="end other jobs first")
            job._settle(None, error)
            raise error from e
        return job

    def progress(self, done: int, total: int = 0, note: str = "") -> None:
        """How far it is, in bytes or items; total 0 when unknown. Raises `Cancelled` once asked to stop."""
        self.done, self.total, self.note = done, total, str(note)
        self._changed.set()
        self.raise_if_cancelled()

    def line(self, text: str) -> None:
        """Keep one or several lines of output. Never raises `Cancelled`: clean-up may talk too."""
        new = str(text).splitlines() or [""]
        with self._lock:
            self._lines.extend(new)
            self.line_count += len(new)
        self._changed.set()

    def phase(self, name: str) -> None:
        """A new phase begins."""
        self.phases += ((str(name), self.elapsed_s),)
        self._changed.set()

    def raise_if_cancelled(self) -> None:
        """`Cancelled` once somebody asked to stop; for work that has no progress to report."""
        if self._asked.is_set():
            raise cancelled(self)

    def on_cancel(self, callback: Callable[[], Any]) -> None:
        """Add a cancel callback from inside the work; called at once if the job is already being cancelled."""
        with self._lock:
            late = self._asked.is_set()
            if not late:
                self._on_cancel.append(callback)
        if late:
            callback()

    @property
    def ended(self) -> bool:
        """True once `result()` answers at once."""
        return self._ended.done()

    @property
    def elapsed_s(self) -> float:
        return (self._ended_at or time.monotonic()) - self._began

    def lines(self, n: int | None = None) -> list[str]:
        """The newest `n` lines (all that are kept when None), oldest first."""
        with self._lock:
            return list(self._lines) if n is None else list(islice(reversed(self._lines), max(n, 0)))[::-1]

    def cancel(self) -> Job:
        """Ask it to stop and return at once. Twice is fine; on an ended job it does nothing."""
        with self._lock:
            if self.state in ENDED or self._asked.is_set():
                return self
            self._asked.set()
            self.state = "cancelling"
            if self._on_cancel:
                self._cleanup = threading.Thread(target=self._clean_up, args=(tuple(self._on_cancel),),
                                                 name=f"cancel {self.name}", daemon=True)
                self._cleanup.start()
        self._changed.set()
        return self

    def wait(self, timeout: float | None = None) -> Job:
        """Itself, once it has ended or `timeout` seconds have passed; the job's error is not raised.

        Ctrl-C while waiting cancels the job and gives it `CLEANUP_S` to end (again Ctrl-C: at once).
        """
        try:
            wait_for([self._ended], timeout)
        except KeyboardInterrupt:
            self.cancel()
            wait_for([self._ended], CLEANUP_S)
            raise
        return self

    def result(self, timeout: float | None = None) -> Any:
        """What `work` returned. Raises its `KitError`; anything else as `JobFailed`, which keeps the cause."""
        if not self.wait(timeout).ended:
            raise JobError(f"{self.name}: no end within {timeout:g} s", where=self.words,
                           next="wait longer, or cancel it")
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)   # as it was: raising adds frames each time
        return self._value

    def __await__(self) -> Generator[Any, None, Any]:
        """`await job` is `job.result()` without blocking the loop. Cancelling the waiting task cancels the job."""
        try:
            yield from asyncio.wrap_future(self._ended).__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result()

    def on_change(self, callback: Callable[[Job], Any]) -> Callable[[], None]:
        """Call `callback(job)` from one thread after changes, about every second without, and after the end.

        At most ten times a second. Returns a function that detaches it; after the end nothing is kept.
        On an ended job it is called once, right here.
        """
        ticket = object()
        with self._lock:
            live = not self._ended.done()
            if live:
                self._observers[ticket] = callback
                if self._teller is None:
                    self._teller = threading.Thread(target=self._tell, name=f"views of {self.name}", daemon=True)
                    self._teller.start()
        if not live:
            callback(self)
        return lambda: self._detach(ticket)

    def _run(self, work: Callable[[Job], Any]) -> None:
        with self._lock:
            if self.state == "waiting":
                self.state = "running"
        self._changed.set()
        value, error = None, None
        try:
            self.raise_if_cancelled()
            value = work(self)
        except BaseException as e:   # KeyboardInterrupt and SystemExit too: who else would hear of them?
            error = e
        self._settle(value, error)

    def _clean_up(self, callbacks: tuple[Callable[[], Any], ...]) -> None:
        for callback in callbacks:
            try:
                callback()
            except BaseException as e:   # kept: it becomes the job's error
                self._cleanup_error = e

    def _settle(self, value: Any, error: BaseException | None) -> None:
        joined = False
        while True:
            with self._lock:
                if self._cleanup is None or joined:
                    asked = cancelled(self) if self._asked.is_set() else None
                    self._value, self.error = value, outcome(self.name, error, asked, self._cleanup_error)
                    self._traceback = self.error.__traceback__ if self.error else None
                    self._ended_at = time.monotonic()
                    stopped = isinstance(self.error, Cancelled)
                    self.state = "cancelled" if stopped else "failed" if self.error else "done"
                    break
            self._cleanup.join(CLEANUP_S)
            if self._cleanup.is_alive():
                self._cleanup_error = JobError(f"{self.name}: cancelled, but its clean-up takes longer than "
                                               f"{CLEANUP_S:g} s", next="look at the host before starting it again")
            joined = True
        with _live_lock:
            if _live.get(self.key) is self:
                del _live[self.key]
        self._ended.set_result(None)
        self._changed.set()

    def _detach(self, ticket: object) -> None:
        """Without a lock: a forgotten view is closed by the garbage collector, in any thread, whatever it holds."""
        self._observers.pop(ticket, None)

    def _tell(self) -> None:
        while True:
            self._changed.wait(TICK_S)
            self._changed.clear()
            with self._lock:
                last, observers = self._ended.done(), self._observers.copy()
                if last:
                    self._observers.clear()
                if last or not observers:
                    self._teller = None
            for ticket, callback in observers.items():
                try:
                    callback(self)
                except Exception as e:   # a broken view must not end the others; it is dropped, and says so
                    self._detach(ticket)
                    self.line(f"(a view of this job failed: {complaint(e)})")
            if last or not observers:
                return
            wait_for([self._ended], TELL_EVERY_S)
