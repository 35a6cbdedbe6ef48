"""A job: ends in the state it says, stops when asked, names every failure, never blocks its views."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kit.errors import Cancelled, CheckError, JobError, JobFailed, LinkLost
from kit.job import KEEP_LINES, Job, jobs
from kit.words import complaint, seconds, three_lines


def until_cancelled(job):
    while True:
        job.progress(1, 4, "turning")
        time.sleep(0.005)


def begin(name, work, **options):
    """A job whose work has surely begun."""
    begun = threading.Event()

    def begins(job):
        begun.set()
        return work(job)

    job = Job.start(name, begins, **options)
    assert begun.wait(5)
    return job


def eventually(said, limit_s=5.0):
    end = time.monotonic() + limit_s
    while not said():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)


def test_a_job_ends_done_with_its_result():
    def work(job):
        job.phase("load")
        job.progress(3, 4, "third")
        job.line("one\ntwo")
        return 7

    job = Job.start("count", work)
    assert job.result() == 7
    assert (job.state, job.done, job.total, job.note, job.fraction) == ("done", 3, 4, "third", 1.0)
    assert job.lines() == ["one", "two"] and job.lines(1) == ["two"] and job.line_count == 2
    assert [name for name, _ in job.phases] == ["load"]
    assert job.ended and job.error is None


def test_elapsed_time_stands_still_after_the_end():
    job = Job.start("short", lambda job: None).wait()
    before = job.elapsed_s
    time.sleep(0.01)
    assert job.elapsed_s == before


@pytest.mark.parametrize("done, total, fraction", [(0, 0, None), (5, 0, None), (1, 4, 0.25), (9, 4, 1.0)])
def test_fraction_is_unknown_without_a_total_and_never_above_one(done, total, fraction):
    gate = threading.Event()
    reported = threading.Event()

    def work(job):
        job.progress(done, total)
        reported.set()
        gate.wait(5)

    job = Job.start(f"fraction {done} {total}", work)
    reported.wait(5)
    assert job.fraction == fraction
    gate.set()
    job.wait()


def test_cancel_stops_the_work_and_calls_back_once():
    calls = []
    job = Job.start("turn", until_cancelled, cancel=lambda: calls.append(threading.current_thread().name))
    assert job.cancel() is job
    job.cancel()
    job.wait()
    job.cancel()
    assert job.state == "cancelled" and len(calls) == 1
    assert calls[0] != threading.current_thread().name
    with pytest.raises(Cancelled):
        job.result()


def test_cancel_does_not_wait_for_its_callback_but_the_end_does():
    gate, closed = threading.Event(), []

    def close():
        gate.wait(5)
        closed.append(True)

    job = Job.start("closing", until_cancelled, cancel=close)
    job.cancel()
    assert job.state == "cancelling" and not job.ended and not closed
    gate.set()
    assert job.wait().state == "cancelled" and closed


def test_work_that_fails_on_what_cancel_closed_under_it_is_cancelled_and_keeps_the_reason():
    closed = threading.Event()

    def follow(job):
        closed.wait(5)
        raise LinkLost("the stream was closed")

    job = begin("follow", follow, cancel=closed.set).cancel().wait()
    assert job.state == "cancelled"
    assert isinstance(job.error.__cause__, LinkLost)


def test_work_cut_off_by_cancel_never_passes_for_a_whole_result():
    closed = threading.Event()

    def collect(job):
        closed.wait(5)
        return ["half of it"]

    job = begin("collect", collect, cancel=closed.set).cancel().wait()
    assert job.state == "cancelled"
    with pytest.raises(Cancelled):
        job.result()


def test_a_clean_up_that_fails_is_told_because_something_may_still_run():
    def stop():
        raise CheckError("port 8101 is still open", where="gpu-7", next="stop pid 4242")

    job = Job.start("stop", until_cancelled, cancel=stop).cancel().wait()
    assert job.state == "failed"
    with pytest.raises(CheckError, match="still open"):
        job.result()


def test_a_clean_up_that_hangs_does_not_hang_the_job(monkeypatch):
    monkeypatch.setattr("kit.job.CLEANUP_S", 0.02)
    gate = threading.Event()
    job = Job.start("hang", until_cancelled, cancel=lambda: gate.wait(5)).cancel().wait()
    assert job.state == "failed" and "clean-up takes longer" in str(job.error)
    gate.set()


def test_a_callback_added_late_is_called_at_once():
    called, asked = [], threading.Event()

    def work(job):
        asked.wait(5)
        job.on_cancel(lambda: called.append(True))
        job.raise_if_cancelled()

    job = begin("late", work).cancel()
    asked.set()
    assert job.wait().state == "cancelled" and called == [True]


def test_a_job_cancelled_before_it_began_never_works(monkeypatch):
    worked = []
    monkeypatch.setattr(Job, "_run", lambda job, work, run=Job._run: (job.cancel(), run(job, work)))
    assert Job.start("early", worked.append).wait().state == "cancelled"
    assert not worked


def test_a_callback_added_by_the_work_closes_what_it_opened():
    opened, closed = threading.Event(), threading.Event()

    def work(job):
        job.on_cancel(closed.set)
        opened.set()
        closed.wait(5)
        job.raise_if_cancelled()

    job = Job.start("opened", work)
    opened.wait(5)
    assert job.cancel().wait().state == "cancelled" and closed.is_set()


def test_a_kit_error_comes_out_as_it_is():
    error = CheckError("hidden size differs", where="drafter", next="choose another")

    def work(job):
        raise error

    job = Job.start("check", work).wait()
    assert job.state == "failed"
    for _ in range(2):
        with pytest.raises(CheckError) as caught:
            job.result()
        assert caught.value is error


def test_any_other_error_is_named_and_keeps_its_cause():
    job = Job.start("divide", lambda job: 1 / 0).wait()
    with pytest.raises(JobFailed, match="divide: ZeroDivisionError: division by zero") as caught:
        job.result()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.where.startswith("test_job.py:")
    assert caught.value.next


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_even_an_interrupt_inside_the_work_is_recorded(kind):
    def work(job):
        raise kind("inside")

    job = Job.start(f"raise {kind.__name__}", work).wait()
    assert job.state == "failed" and isinstance(job.error, JobFailed)
    assert isinstance(job.error.__cause__, kind)


@pytest.fixture
def ctrl_c_interrupts():
    """Also where the tests run in the background of a shell, which ignores the signal for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_waiting_for_a_result_cancels_the_job(ctrl_c_interrupts):
    closed = []
    job = Job.start("interrupted", until_cancelled, cancel=lambda: closed.append(True))
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        job.result(timeout=20)
    assert job.state == "cancelled" and closed == [True]


def test_a_result_that_does_not_come_in_time_is_an_error_and_the_job_goes_on():
    gate = threading.Event()
    job = Job.start("patient", lambda job: gate.wait(5) and "late")
    with pytest.raises(JobError, match="no end within 0.01 s"):
        job.result(timeout=0.01)
    assert job.wait(timeout=0.01) is job and not job.ended
    gate.set()
    assert job.result() == "late"


def test_await_gives_the_result_and_leaves_the_loop_free():
    async def main():
        gate = asyncio.Event()
        release = threading.Event()
        job = Job.start("awaited", lambda job: release.wait(5) and 7)

        async def meanwhile():
            gate.set()
            release.set()

        value, _ = await asyncio.gather(_result(job), meanwhile())
        return value, gate.is_set()

    async def _result(job):
        return await job

    assert asyncio.run(main()) == (7, True)


def test_await_raises_what_result_raises_also_on_an_ended_job():
    async def main(job):
        await job

    with pytest.raises(JobFailed):
        asyncio.run(main(Job.start("bad", lambda job: 1 / 0)))
    with pytest.raises(JobFailed):
        asyncio.run(main(Job.start("bad", lambda job: 1 / 0).wait()))


def test_a_cancelled_await_cancels_the_job():
    async def main():
        job = Job.start("left", until_cancelled)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await job
        return job.wait()

    assert asyncio.run(main()).state == "cancelled"


def test_the_same_key_never_starts_twice():
    starts = []

    def work(job):
        starts.append(1)
        until_cancelled(job)

    first = Job.start("apply", work, key="apply gpu-7")
    assert Job.start("apply", work, key="apply gpu-7") is first
    assert jobs()["apply gpu-7"] is first
    first.cancel().wait()
    assert len(starts) <= 1 and "apply gpu-7" not in jobs()


def test_the_same_name_without_a_key_is_refused_while_it_runs_and_free_at_once_after():
    first = Job.start("bench", until_cancelled)
    with pytest.raises(JobError, match="already running"):
        Job.start("bench", until_cancelled)
    first.cancel().wait()
    assert Job.start("bench", lambda job: 3).result() == 3


def test_two_threads_that_start_the_same_key_at_once_get_one_job():
    barrier, got = threading.Barrier(8), []

    def click():
        barrier.wait(5)
        got.append(Job.start("apply", until_cancelled, key="one"))

    clicks = [threading.Thread(target=click) for _ in range(8)]
    [t.start() for t in clicks]
    [t.join() for t in clicks]
    assert len({id(job) for job in got}) == 1
    got[0].cancel().wait()


def test_only_the_newest_lines_are_kept_and_all_are_counted():
    job = Job.start("chatty", lambda job: [job.line(str(i)) for i in range(KEEP_LINES + 10)] and None).wait()
    assert job.line_count == KEEP_LINES + 10
    assert len(job.lines()) == KEEP_LINES and job.lines(2) == [str(KEEP_LINES + 8), str(KEEP_LINES + 9)]
    assert job.lines(0) == []


def test_observers_hear_little_of_much_and_surely_of_the_end():
    heard = []
    release = threading.Event()

    def work(job):
        for i in range(5000):
            job.line(f"line {i}")
        release.wait(5)

    job = Job.start("fast", work)
    job.on_change(lambda job: heard.append((job.ended, job.line_count)))
    release.set()
    job.wait()
    eventually(lambda: heard and heard[-1] == (True, 5000))
    assert len(heard) < 100


def test_a_slow_observer_does_not_slow_the_work():
    hold, written = threading.Event(), threading.Event()

    def work(job):
        for i in range(5000):
            job.line(f"line {i}")
        written.set()

    job = Job.start("held", work)
    job.on_change(lambda job: hold.wait(5))
    assert written.wait(5) and job.wait().state == "done"
    hold.set()


def test_after_the_end_no_observer_is_kept_and_a_late_one_is_called_once_here():
    job = Job.start("kept", lambda job: None)
    heard = []
    job.on_change(heard.append)
    eventually(lambda: heard and not job._observers and job._teller is None)
    late = []
    job.on_change(lambda job: late.append(threading.current_thread()))
    assert late == [threading.current_thread()] and not job._observers


def test_an_observer_is_detached_by_the_garbage_collector_whatever_its_thread_holds():
    gate = threading.Event()
    job = Job.start("collected", lambda job: gate.wait(5))
    detach = job.on_change(lambda job: None)
    with job._lock:
        collector = threading.Thread(target=detach, daemon=True)
        collector.start()
        collector.join(5)
        assert not collector.is_alive() and not job._observers
    gate.set()
    assert job.wait().state == "done"


def test_a_detached_observer_hears_nothing_more():
    gate, heard = threading.Event(), []
    job = Job.start("detached", lambda job: gate.wait(5))
    job.on_change(heard.append)()
    eventually(lambda: job._teller is None or not job._observers)
    before = len(heard)
    gate.set()
    other = []
    job.wait().on_change(other.append)
    assert other and len(heard) <= before + 1


def test_an_observer_that_fails_is_dropped_and_says_so():
    heard = []
    gate = threading.Event()
    job = Job.start("viewed", lambda job: gate.wait(5))

    def broken(job):
        raise LookupError("no parent")

    job.on_change(broken)
    job.on_change(heard.append)
    eventually(lambda: job.lines() == ["(a view of this job failed: LookupError: no parent)"])
    gate.set()
    job.wait()
    eventually(lambda: heard and not job._observers)
    assert job.state == "done" and job.line_count == 1


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("cannot speak")


def test_repr_never_raises_and_holds_no_addresses():
    def work(job):
        job.line(f"made {object()!r}")
        raise Mute()

    job = Job.start("mute", work).wait()
    text = repr(job)
    assert "failed" in text and "Mute" in text and "0x" not in text
    assert "0x" not in job._repr_html_()

    def odd(job):
        raise CheckError(object(), where=object())
    assert "CheckError" in repr(Job.start("odd", odd).wait())


def test_html_twin_is_escaped():
    job = Job.start("<b>", lambda job: job.line("<script>alert(1)</script>")).wait()
    assert "<script>" not in job._repr_html_() and "&lt;script&gt;" in job._repr_html_()


def test_an_error_is_three_lines_however_long_it_is():
    text = three_lines(LinkLost("exit 1:\n" + "\n".join(["long"] * 500) + "\nlast words", where="gpu\n7", next="again"))
    assert len(text.splitlines()) == 3 and "exit 1" in text and "last words" in text and len(text) < 600
    assert three_lines(ValueError("a\nb")) == "ValueError: a / b"
    assert complaint(ValueError()) == "ValueError"


@pytest.mark.parametrize("s, text", [(0, "0.0 s"), (59.94, "59.9 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")])
def test_durations_read_well(s, text):
    assert seconds(s) == text


def test_the_interpreter_ends_although_a_job_runs_and_is_watched():
    script = ("import threading\nfrom kit.job import Job\n"
              "job = Job.start('endless', lambda job: threading.Event().wait())\n"
              "job.on_change(lambda job: None)\nprint(job.state)\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30,
                          cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip() in ("waiting", "running")
