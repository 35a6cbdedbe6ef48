"""The babysitter, run as it runs on a host: real processes, a folder with an unpleasant name."""

import importlib.util
import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FILE = Path(__file__).parent.parent / "kit" / "remote" / "babysit.py"
_spec = importlib.util.spec_from_file_location("babysit_under_test", FILE)
babysit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(babysit)

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# Prints its pid, then leaves a grandchild in a session of its own, orphaned and without environment.
STRAYS = """
import os, sys, time
print(os.getpid(), flush=True)
if os.fork() == 0:
    os.setsid()
    stray = os.fork()
    if not stray:
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)"], {})
    print(stray, flush=True)
    os._exit(0)
os.wait()
"""


def until(condition, seconds=15.0):
    """The condition's first true value; a failure when it never comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("never came true")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    """A root folder with units; `start` and `follow` are other processes, the rest is called here."""

    def __init__(self, root):
        self.root = str(root)

    def folder(self, name="u"):
        return f"{self.root}/units/{name}"

    def write(self, code=SLEEP, name="u", **fields):
        os.makedirs(self.folder(name), exist_ok=True)
        argv = [sys.executable, "-S", "-u", "-c", code]
        unit = {"name": name, "argv": argv, "digest": "one", **fields}
        Path(self.folder(name), "unit.json").write_text(json.dumps(unit))

    def argv(self, verb, *words):
        return [sys.executable, "-I", "-S", str(FILE), verb, *words, "--root", self.root]

    def cli(self, verb, *words, **options):
        done = subprocess.run(self.argv(verb, *words), capture_output=True, timeout=60, **options)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr.decode())

    def start(self, code=SLEEP, name="u", **fields):
        self.write(code, name, **fields)
        done = self.cli("start", name)
        assert done.code == 0, done.err
        return self.state(name)

    def stop(self, name="u", timeout_s=10.0):
        babysit.stop(self.folder(name), timeout_s)

    def state(self, name="u"):
        return SimpleNamespace(**babysit.look(self.folder(name)))

    def words(self, name="u"):
        s = self.state(name)
        return s.active, s.sub, s.result

    def ended(self, name="u"):
        until(lambda: self.state(name).active not in babysit.ALIVE)
        return self.state(name)

    def log(self, name="u"):
        return Path(self.folder(name), "log").read_bytes()

    def pids(self, count):
        return [int(n) for n in until(lambda: len(self.log().split()) >= count and self.log().split())]

    def frames(self, name="u", cursor=""):
        done = self.cli("follow", name, "--cursor", cursor)
        assert done.code == 0, done.err
        rows = [line.split(b" ", 2) for line in done.out.split(b"\n")[:-1]]
        return [SimpleNamespace(cursor=c.decode(), time=float(t), text=text) for c, t, text in rows]

    def edit(self, name="u", **changes):
        path = Path(self.folder(name), "state.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def kill_keeper(self, name="u"):
        keeper = self.state(name).keeper
        os.kill(keeper["pid"], signal.SIGKILL)
        until(lambda: babysit.named(keeper) is None)

    def left(self):
        """Everything of ours that still runs: marked processes, keepers and followers."""
        mine = [p for p in babysit.table().values() if p.alive and self.root in babysit.words(p.pid)]
        return mine + babysit.marked([f"{babysit.ROOT}={self.root}"])


@pytest.fixture
def bench(tmp_path):
    root = tmp_path / "it's \"50%\" \\ ü $HOME"
    (root / "units").mkdir(parents=True)
    bench = Bench(root)
    yield bench
    for entry in babysit.states(f"{root}/units", []):
        try:
            babysit.stop(bench.folder(entry["name"]), 1.0)
        except babysit.Refused as e:
            assert e.code in (babysit.STILL_OPEN, babysit.DAMAGED)
    until(lambda: not bench.left())


@pytest.fixture
def bystander():
    """A process that is none of ours."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def refusal(call, *args):
    with pytest.raises(babysit.Refused) as e:
        call(*args)
    return e.value.code, str(e.value)


# --------------------------------------------------------------------- start

def test_start_returns_with_the_unit_running_and_recorded(bench):
    state = bench.start(port=free_port(), about={"arm": "baseline"})
    assert (state.active, state.sub, state.result) == ("active", "running", "success")
    assert state.pid == state.main["pid"] and os.getpgid(state.pid) == state.pid
    assert state.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert state.about == {"arm": "baseline"} and state.argv[-1] == SLEEP
    assert abs(state.started_at - time.time()) < 60 and state.ended_at is None


def test_nothing_of_the_caller_stays_open(bench):
    bench.write()
    ours, theirs = os.pipe()
    subprocess.run(bench.argv("start", "u"), pass_fds=[theirs], check=True, stdout=subprocess.DEVNULL)
    os.close(theirs)
    assert select.select([ours], [], [], 10)[0] and os.read(ours, 1) == b""     # nobody has the other end
    os.close(ours)
    until(bench.log)
    main, keeper = bench.state().main["pid"], bench.state().keeper["pid"]
    assert {os.readlink(f"/proc/{main}/fd/{fd}") for fd in os.listdir(f"/proc/{main}/fd")} == \
        {"/dev/null", f"{bench.folder()}/log"}
    assert not [t for t in map(lambda fd: os.readlink(f"/proc/{keeper}/fd/{fd}"), os.listdir(f"/proc/{keeper}/fd"))
                if t.startswith(("pipe:", "socket:")) or t.endswith("/lock")]


def test_start_works_without_standard_streams(bench):
    bench.write()
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *bench.argv("start", "u")], check=True)
    assert bench.words() == ("active", "running", "success")


def test_main_gets_the_login_environment_its_own_and_a_mark_and_default_signals(bench):
    code = """
import os, signal, json
print(json.dumps([dict(os.environ), os.getcwd(), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                  open('/proc/self/status').read().split('SigIgn:')[1].split()[0]]))"""
    bench.write(code, env={"X": "a b%'\""}, cwd=bench.root, kind="job", argv=[sys.executable, "-S", "-c", code])
    bench.cli("start", "u", env={"PATH": os.environ["PATH"], "SSH_CONNECTION": "1 2 3 4", "Y": "2"})
    bench.ended()
    env, cwd, blocked, ignored = json.loads(bench.log())
    assert env["X"] == "a b%'\"" and env["Y"] == "2" and "SSH_CONNECTION" not in env and cwd == bench.root
    assert env["SPECBOOK_UNIT"].startswith("u:")
    python_ignores = (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)      # each Python does so at its start
    of_libc = (1 << 31) | (1 << 32)             # 32 and 33: no program can set them through libc
    assert blocked == [] and int(ignored, 16) & ~(python_ignores | of_libc) == 0


def test_starting_what_already_runs_changes_nothing(bench):
    first = bench.start()
    assert bench.start().pid == first.pid
    assert not os.path.exists(bench.folder() + "/log.1")


def test_other_settings_are_refused_while_it_runs(bench):
    first = bench.start()
    bench.write(digest="another")
    done = bench.cli("start", "u")
    assert done.code == babysit.RUNNING and f"pid {first.pid}" in done.err and len(done.err.splitlines()) == 1
    assert bench.state().pid == first.pid


def test_many_starters_at_once_start_it_once(bench):
    bench.write()
    starters = [subprocess.Popen(bench.argv("start", "u"), stdout=subprocess.PIPE) for _ in range(4)]
    said = [p.communicate()[0] for p in starters]
    assert [p.returncode for p in starters] == [0] * 4
    assert len({json.loads(s)[0]["pid"] for s in said}) == 1
    until(bench.log)
    assert bench.log() == b"up\n" and not os.path.exists(bench.folder() + "/log.1")


def test_a_busy_port_names_who_has_it_and_nothing_starts(bench):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        bench.write(port=port)
        done = bench.cli("start", "u")
    assert done.code == babysit.BUSY and done.err.startswith(f"babysit: port {port} is busy: pid {os.getpid()} (")
    assert bench.words() == ("inactive", "dead", "") and not os.path.exists(bench.folder() + "/log")


def test_a_holder_we_may_not_see_is_called_unknown(monkeypatch):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        monkeypatch.setattr(babysit, "table", dict)
        assert babysit.holder(s.getsockname()[1]) == (f"unknown process of uid {os.getuid()}", "")


def test_listeners_are_read_from_the_ipv6_table_too(tmp_path):
    (tmp_path / "tcp6").write_text("  sl  local_address  remote_address st …\n"
        "   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 "
        "00:00000000 00000000  1000        0 4711 1 0000000000000000 100 0 0 10 0\n"
        "   1: 00000000000000000000000001000000:1F91 00000000000000000000000001000000:0016 01 00000000:00000000 "
        "00:00000000 00000000  1000        0 4712 1 0000000000000000 100 0 0 10 0\n")
    tables = (str(tmp_path / "tcp6"), str(tmp_path / "no such table"))
    assert babysit.listeners(8080, tables) == {b"4711": 1000}
    assert babysit.listeners(8081, tables) == {}        # connected, not listening


@pytest.mark.parametrize("fields, code, said", [
    ({"argv": ["/no/such program"]}, 203, "cannot run '/no/such program': No such file or directory (203/EXEC)"),
    ({"cwd": "/no/such folder"}, 200, "cannot enter '/no/such folder': No such file or directory (200/CHDIR)"),
])
def test_what_cannot_be_executed_is_reported_at_once(bench, fields, code, said):
    bench.write(**fields)
    done = bench.cli("start", "u")
    assert done.code == babysit.NOT_STARTED and done.err == f"babysit: {said}\n"
    assert bench.words() == ("failed", "failed", "exit-code") and bench.state().exit_code == code
    assert [f.text.decode() for f in bench.frames()] == [f"babysit: {said}"]


def test_no_room_for_the_record_means_no_start(bench):
    bench.write()
    done = bench.cli("start", "u", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    assert done.code == babysit.NO_SPACE and len(done.err.splitlines()) == 1
    assert not bench.left() and bench.words()[0] != "active"


# ----------------------------------------------------------------------- end

@pytest.mark.parametrize("code, words, exit_code, name", [
    ("pass", ("inactive", "dead", "success"), 0, None),
    ("raise SystemExit(3)", ("failed", "failed", "exit-code"), 3, None),
    ("import os; os.kill(os.getpid(), 9)", ("failed", "failed", "signal"), None, "SIGKILL"),
])
def test_how_it_ended_is_recorded(bench, code, words, exit_code, name):
    bench.start(code, kind="job")
    state = bench.ended()
    assert bench.words() == words and (state.exit_code, state.signal) == (exit_code, name)
    assert state.started_at <= state.ended_at and state.pid is None and state.stopped_by is None
    until(lambda: not bench.left())


def test_what_main_left_behind_is_ended_too(bench):
    bench.start(STRAYS + "raise SystemExit(5)")
    state = bench.ended()
    assert (state.active, state.result, state.exit_code) == ("failed", "exit-code", 5)
    main, stray = bench.pids(2)
    assert babysit.proc(stray) is None


def test_stop_ends_even_who_left_the_session_and_dropped_its_environment(bench):
    bench.start(STRAYS + "time.sleep(600)")
    main, stray = bench.pids(2)
    assert os.getsid(stray) != os.getsid(main)
    until(lambda: babysit.proc(stray).ppid == bench.state().keeper["pid"])
    bench.stop()
    assert bench.words() == ("inactive", "dead", "success") and bench.state().signal == "SIGTERM"
    assert bench.state().stopped_by == babysit.asker()
    assert babysit.proc(main) is None and babysit.proc(stray) is None
    bench.stop()                        # again: nothing to do
    assert bench.words() == ("inactive", "dead", "success")


def test_who_ignores_term_is_killed_after_the_timeout(bench):
    bench.start("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(600)")
    until(bench.log)
    bench.stop(timeout_s=0.2)
    assert bench.words() == ("failed", "failed", "timeout") and bench.state().signal == "SIGKILL"


def test_a_suspended_process_hears_term(bench):
    bench.start("import os, time; print('up'); os.kill(os.getpid(), 19); time.sleep(600)")
    until(lambda: (p := babysit.proc(bench.state().pid)) and p.state == "T")
    bench.stop(timeout_s=20)
    assert bench.words() == ("inactive", "dead", "success") and bench.state().signal == "SIGTERM"


def test_a_stopped_job_did_not_succeed(bench):
    bench.start(kind="job")
    bench.stop()
    assert bench.words() == ("inactive", "dead", "signal") and bench.state().signal == "SIGTERM"


def test_a_signal_to_the_keeper_stops_the_unit_and_names_the_sender(bench):
    bench.start()
    os.kill(bench.state().keeper["pid"], signal.SIGTERM)
    assert bench.ended().stopped_by == f"signal from pid {os.getpid()} uid {os.getuid()}"
    assert bench.words() == ("inactive", "dead", "success")


def test_stop_succeeds_only_with_the_port_closed(bench):
    port = free_port()
    state = bench.start(port=port)
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))
        s.listen()
        code, said = refusal(bench.stop)
        assert code == babysit.STILL_OPEN and f"port {port} is still open: pid {os.getpid()} (" in said
        assert bench.words()[0] == "inactive" and babysit.proc(state.main["pid"]) is None
        assert refusal(bench.stop)[0] == babysit.STILL_OPEN
    bench.stop()


def test_a_stopped_unit_does_not_mind_that_another_unit_took_its_port(bench):
    port = free_port()
    bench.start(name="first", port=port)
    bench.stop("first")
    bench.start(f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print('up'); time.sleep(600)",
                name="second", port=port)
    until(lambda: bench.log("second"))
    bench.stop("first")
    assert bench.state("second").active == "active"
    bench.write("pass", "first", port=port)
    assert "of unit second" in bench.cli("start", "first").err


# ---------------------------------------------------------------------- lost

def test_a_unit_outlives_its_keeper_and_is_still_stopped_whole(bench):
    bench.start(STRAYS + "i = 0\nwhile True: print(i, flush=True); i += 1; time.sleep(0.05)")
    main, stray = bench.pids(2)[:2]
    bench.kill_keeper()
    size = len(bench.log())
    until(lambda: len(bench.log()) > size)
    assert bench.words() == ("active", "running", "lost") and bench.state().pid == main
    assert bench.cli("start", "u").code == 0 and bench.state().pid == main
    os.kill(stray, signal.SIGKILL)      # without keeper and environment nothing ties it to us
    bench.stop()
    assert bench.words() == ("inactive", "dead", "success") and babysit.named(bench.state().main) is None


def test_after_the_loss_marked_children_in_other_sessions_are_found(bench):
    code = STRAYS.replace(", {})", ", os.environ)") + "time.sleep(600)"
    bench.start(code)
    main, stray = bench.pids(2)
    until(lambda: len(babysit.marked([f"SPECBOOK_UNIT=u:{bench.state().start_id}"])) == 2)
    bench.kill_keeper()
    os.kill(main, signal.SIGKILL)
    until(lambda: bench.words() == ("failed", "failed", "lost"))
    assert babysit.proc(stray).alive
    assert bench.cli("remove", "u").code == babysit.RUNNING
    bench.stop()
    until(lambda: not (p := babysit.proc(stray)) or not p.alive)
    assert bench.words() == ("failed", "failed", "lost")


def test_a_new_start_first_ends_what_a_lost_one_left(bench):
    bench.start(STRAYS.replace(", {})", ", os.environ)") + "time.sleep(600)")
    main, stray = bench.pids(2)
    until(lambda: len(babysit.marked([f"SPECBOOK_UNIT=u:{bench.state().start_id}"])) == 2)
    bench.kill_keeper()
    os.kill(main, signal.SIGKILL)
    until(lambda: bench.words()[0] == "failed")
    assert bench.start().pid not in (main, stray)
    assert not (p := babysit.proc(stray)) or not p.alive


@pytest.mark.parametrize("boot, shift, words", [
    ("same", 1, ("failed", "failed", "lost")),                      # pid reused
    ("other", 0, ("failed", "failed", "lost-at-reboot")),           # even with the same start time
    ("same", 0, ("active", "running", "lost")),                     # the control: truly the recorded process
])
def test_only_the_recorded_process_is_ever_signalled(bench, bystander, boot, shift, words):
    bench.start("pass", kind="job")
    bench.ended()
    who = {"pid": bystander.pid, "start": babysit.proc(bystander.pid).start - shift}
    bench.edit(active="active", sub="running", main=who, keeper={**who, "start": who["start"] - 1},
               boot_id=bench.state().boot_id if boot == "same" else "11111111-2222-3333-4444-555555555555")
    assert bench.words() == words
    bench.stop()
    control = boot == "same" and shift == 0
    assert (until(lambda: bystander.poll() is not None) if control else bystander.poll() is None)


def test_start_times_are_read_past_any_process_name(bench, tmp_path):
    odd = tmp_path / "a) R 1 (b"
    os.symlink(sys.executable, odd)
    process = subprocess.Popen([str(odd), "-S", "-c", "input()"], stdin=subprocess.PIPE)
    Path(f"/proc/{process.pid}/comm").read_text()
    p = babysit.proc(process.pid)
    assert p.ppid == os.getpid() and p.session == os.getsid(0)
    process.communicate(b"\n")


# -------------------------------------------------------------------- follow

def test_follow_frames_every_line_and_resumes_after_any_of_them(bench):
    code = r"""
import os
os.write(1, b"one\n\n two \xff\xfe\x00 \xe2\x82\xac\n")
os.write(2, b"windows\r\nno end")"""
    started = time.time()
    bench.start(code, kind="job")
    bench.ended()
    frames = bench.frames()
    assert [f.text for f in frames] == [b"one", b"", b" two \xff\xfe\x00 \xe2\x82\xac", b"windows", b"no end"]
    assert all(started - 1 <= f.time <= time.time() for f in frames)
    for i, frame in enumerate(frames):
        assert bench.frames(cursor=frame.cursor) == frames[i + 1:]


def test_lines_get_the_time_at_which_they_were_written(bench):
    bench.start("import time\nfor i in range(2): print(time.time(), flush=True); time.sleep(0.6)", kind="job")
    bench.ended()
    for frame in bench.frames():
        assert -0.05 <= frame.time - float(frame.text) < 0.5


def test_follow_waits_for_more_and_ends_with_the_unit(bench):
    bench.start("import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
                "print('gone on')\nraise SystemExit(1)", cwd=bench.root)
    follower = subprocess.Popen(bench.argv("follow", "u"), stdout=subprocess.PIPE)
    assert follower.stdout.readline().endswith(b" ready\n")
    Path(bench.root, "go").touch()
    rest, _ = follower.communicate(timeout=30)
    assert rest.endswith(b" gone on\n") and rest.count(b"\n") == 1 and follower.returncode == 0


def test_without_waiting_follow_prints_whole_lines_and_ends(bench):
    bench.start("import time; print('whole\\nhalf', end='', flush=True); time.sleep(600)")
    until(lambda: bench.log().endswith(b"half"))
    done = bench.cli("follow", "u", "--no-wait")
    assert done.out.endswith(b" whole\n") and done.out.count(b"\n") == 1
    cursor = done.out.split()[0].decode()
    assert bench.cli("follow", "u", "--no-wait", "--cursor", cursor).out == b""
    bench.stop()
    assert bench.cli("follow", "u", "--no-wait", "--cursor", cursor).out.endswith(b" half\n")


def test_a_follower_of_a_silent_unit_leaves_when_nobody_reads(bench):
    bench.start()
    follower = subprocess.Popen(bench.argv("follow", "u"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert follower.stdout.readline().endswith(b" up\n")
    follower.stdout.close()
    assert follower.wait(timeout=30) == 0
    assert bench.state().active == "active"


def test_a_cursor_of_the_start_before_goes_on_through_the_kept_log(bench):
    bench.start("print('a1'); print('a2')", kind="job")
    bench.ended()
    first = bench.frames()
    bench.start("print('b1 is longer'); print('b2')", kind="job")
    bench.ended()
    second = bench.frames()
    assert [f.text for f in second] == [b"b1 is longer", b"b2"]
    assert Path(bench.folder(), "log.1").read_bytes() == b"a1\na2\n"
    assert [f.text for f in bench.frames(cursor=first[0].cursor)] == [b"a2", b"b1 is longer", b"b2"]
    assert bench.frames(cursor=first[1].cursor) == second
    assert [f.text for f in bench.frames(cursor=second[0].cursor)] == [b"b2"]
    bench.start("print('c')", kind="job")
    bench.ended()
    assert [f.text for f in bench.frames(cursor=first[0].cursor)] == [b"c"]     # too old: from the start


def test_a_progress_bar_shows_how_far_it_is_and_ends_as_one_line(bench):
    code = r"""
import os, time
os.write(1, b"\r 10%\r 20%")
while not os.path.exists("go"): time.sleep(0.02)
os.write(1, b"\r 90%\r100%\ndone\n")"""
    bench.start(code, cwd=bench.root)
    follower = subprocess.Popen(bench.argv("follow", "u"), stdout=subprocess.PIPE)
    live = follower.stdout.readline()
    assert live.endswith(b"  10%\n")        # the last complete one, while it still runs
    Path(bench.root, "go").touch()
    rest = follower.communicate(timeout=30)[0]
    assert [line.split(b" ", 2)[2] for line in rest.split(b"\n")[:-1]] == [b"100%", b"done"]
    assert [f.text for f in bench.frames()] == [b"100%", b"done"]
    assert [f.text for f in bench.frames(cursor=live.split()[0].decode())] == [b"100%", b"done"]


def test_an_endless_line_comes_in_bounded_pieces_and_memory_stays_small(bench):
    bench.start("import time; print('€' * 7_000_000 + '\\nend', flush=True); time.sleep(600)")
    follower = subprocess.Popen(bench.argv("follow", "u"), stdout=subprocess.PIPE)
    pieces = []
    while not pieces or pieces[-1] != b"end":
        pieces.append(follower.stdout.readline().rstrip(b"\n").split(b" ", 2)[2])
    peak_kib = int(Path(f"/proc/{follower.pid}/status").read_text().split("VmHWM:")[1].split()[0])
    follower.stdout.close()
    follower.wait(timeout=30)
    assert "".join(p.decode() for p in pieces[:-1]) == "€" * 7_000_000
    assert max(map(len, pieces)) <= babysit.PIECE and peak_kib < 21_000       # less than the line itself


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xff", b"\xe2\x82\xac", b"bc\n", b"x" * 40_000]), max_size=12),
       st.lists(st.integers(1, 50_000), min_size=1, max_size=8))
def test_frames_do_not_depend_on_how_the_log_was_read(parts, steps):
    log = b"".join(parts)
    whole, rest = babysit.split(log, 0)
    frames, buf, at = [], b"", 0
    for step in itertools.cycle(steps):
        if at >= len(log):
            break
        chunk = log[at:at + (step if len(log) - at < 200 else max(step, 100))]
        more, left = babysit.split(buf + chunk, at - len(buf))
        frames, buf, at = frames + more, left, at + len(chunk)
    assert (frames, buf) == (whole, rest)
    assert rest == log[whole[-1][0] if whole else 0:]


# ------------------------------------------------------------- damaged, full

@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"name": "u"}',
                                     b'{"name": "u", "digest": "d", "argv": "ls"}',
                                     b'{"name": "u", "digest": "d", "argv": ["ls"], "port": "80"}',
                                     b'{"name": "other", "digest": "d", "argv": ["ls"]}'])
def test_a_damaged_unit_is_one_clear_line(bench, content):
    bench.start(name="good")
    os.mkdir(bench.folder())
    Path(bench.folder(), "unit.json").write_bytes(content)
    done = bench.cli("start", "u")
    assert done.code == babysit.DAMAGED and len(done.err.splitlines()) == 1 and "unit.json is damaged" in done.err
    assert bench.words() == ("failed", "failed", "damaged") and "unit.json" in bench.state().error
    assert [s["name"] for s in babysit.states(f"{bench.root}/units", [])] == ["good", "u"]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"name": "u", "active": "active", "main": 3}'])
def test_with_a_damaged_record_a_running_unit_is_found_by_its_mark(bench, content):
    pid = bench.start().pid
    Path(bench.folder(), "state.json").write_bytes(content)
    assert bench.words() == ("failed", "failed", "damaged")
    done = bench.cli("start", "u")
    assert done.code == babysit.DAMAGED and f"pid {pid}" in done.err
    assert bench.cli("remove", "u").code == babysit.RUNNING
    bench.stop()
    assert not (p := babysit.proc(pid)) or not p.alive
    until(lambda: not bench.left())
    assert bench.start().pid != pid


def test_a_full_disk_neither_harms_the_unit_nor_its_record(bench):
    bench.start("import os, time\nprint('a')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
                "print('b')\nraise SystemExit(7)", cwd=bench.root)
    keeper, pid = bench.state().keeper["pid"], bench.state().pid
    soft, hard = resource.prlimit(keeper, resource.RLIMIT_FSIZE)
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (0, hard))         # not one byte for the keeper
    before = Path(bench.folder(), "state.json").read_bytes()
    Path(bench.root, "go").touch()
    until(lambda: bench.state().active == "deactivating" and bench.log().endswith(b"b\n") and not babysit.proc(pid))
    assert Path(bench.folder(), "state.json").read_bytes() == before
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (soft, hard))
    assert bench.ended().exit_code == 7
    assert [f.text for f in bench.frames()] == [b"a", b"b"]


def test_stop_works_on_a_full_disk(bench):
    bench.start()
    main, keeper = bench.state().main, bench.state().keeper
    hard = resource.prlimit(keeper["pid"], resource.RLIMIT_FSIZE)[1]
    resource.prlimit(keeper["pid"], resource.RLIMIT_FSIZE, (0, hard))
    done = bench.cli("stop", "u", "--timeout", "5",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    assert done.code == 0 and babysit.named(main) is None
    until(lambda: babysit.named(keeper) is None)


# ------------------------------------------------------------ names, removal

@pytest.mark.parametrize("name", ["../x", "A", "", "a/b", "-x", "a b", "a\n"])
def test_only_plain_names_become_folders(bench, name):
    assert bench.cli("start", "--", name).code == babysit.USAGE


def test_an_unknown_unit_is_said_to_be_unknown(bench):
    for verb in ("start", "stop", "follow"):
        done = bench.cli(verb, "nope")
        assert done.code == babysit.UNKNOWN and "no unit 'nope'" in done.err and len(done.err.splitlines()) == 1
    done = bench.cli("states", "nope")
    assert done.code == 0 and json.loads(done.out)[0]["active"] == "not-found"
    assert bench.cli("states").out == b"[]\n"


def test_a_running_unit_is_not_removed_and_a_stopped_one_leaves_nothing(bench):
    bench.start()
    done = bench.cli("remove", "u")
    assert done.code == babysit.RUNNING and "stop it first" in done.err and bench.state().active == "active"
    bench.stop()
    assert bench.cli("remove", "u").code == 0 and os.listdir(f"{bench.root}/units") == []
    assert bench.cli("remove", "u").code == 0


def test_a_folder_whose_unit_never_arrived_is_no_unit(bench):
    bench.start()
    os.mkdir(f"{bench.root}/units/empty")       # a full disk came before unit.json
    assert [s["name"] for s in json.loads(bench.cli("states").out)] == ["u"]


def test_a_written_but_never_started_unit_is_inactive(bench):
    bench.write(port=8080)
    state = bench.state()
    assert (state.active, state.sub, state.result, state.port) == ("inactive", "dead", "", 8080)
    assert bench.frames() == []
