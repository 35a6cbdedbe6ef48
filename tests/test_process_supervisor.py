"""The plain-process supervisor: commands out, parsers in; once against the real babysitter."""

import ast
import inspect
import json
import sys
from pathlib import Path

import pytest
from doubles import LocalHost

from kit.command import Command, Result
from kit.errors import (
    CommandError,
    CommandTimeout,
    KitError,
    LinkLost,
    NoSpace,
    ParseError,
    PlanError,
    PortBusy,
    ServiceDied,
)
from kit.following import run_to_end
from kit.seams import Supervisor, Unit
from kit.supervisors import EXITS, supervisor
from kit.supervisors.process import SUPERVISOR

BABYSIT = Path(__file__).parent.parent / "kit" / "remote" / "babysit.py"
STATE = {"name": "a", "active": "active", "sub": "running", "result": "success", "pid": 7, "digest": "d", "port": 80,
         "about": {"arm": "eagle3"}, "argv": ["/x"], "stopped_by": "me from here", "keeper": {"pid": 6, "start": 1}}


def answer(stdout=b"", exit=0, stderr=b"", limit_s=60.0):
    return Result(Command(("python3", "babysit.py"), limit_s=limit_s), exit, stdout, stderr, host="gpu-7")


def test_it_is_found_by_name_and_offers_the_whole_protocol():
    assert supervisor("process") is SUPERVISOR
    for name, wanted in inspect.getmembers(Supervisor, inspect.isfunction):
        if not name.startswith("_"):
            ours = inspect.signature(getattr(SUPERVISOR, name)).parameters
            assert list(ours) == list(inspect.signature(wanted).parameters)[1:], name


def test_the_unit_file_says_what_to_run_and_does_not_change_by_itself():
    unit = Unit("a", ("/bin/x", "y z"), {"K": "v"}, "/tmp", port=80, about={"arm": "eagle3"})
    ((path, content),) = SUPERVISOR.install(unit, "/r/o o", "u").items()
    assert path == "/r/o o/units/a/unit.json" and SUPERVISOR.install(unit, "/r/o o", "u") == {path: content}
    assert json.loads(content) == {"name": "a", "argv": ["/bin/x", "y z"], "env": {"K": "v"}, "cwd": "/tmp",
                                   "kind": "service", "port": 80, "stop_timeout_s": 10.0, "about": {"arm": "eagle3"},
                                   "digest": unit.digest, "env_file": "", "user": "", "restart": False,
                                   "at_boot": False}


def test_only_following_has_no_time_limit_and_a_stop_may_take_its_timeout():
    assert SUPERVISOR.follow("a", "/r", "python3").limit_s is None
    assert SUPERVISOR.follow("a", "/r", "python3", wait=False).limit_s is not None
    assert SUPERVISOR.stop("a", "/r", "python3", 90.0).limit_s > 90 + 10
    assert SUPERVISOR.start("a", "/r", "python3").limit_s is not None


def test_states_are_read_with_what_else_is_known_kept_in_about():
    (state,) = SUPERVISOR.parse_states(answer(json.dumps([STATE]).encode()))
    assert (state.name, state.pid, state.port, state.digest, state.running) == ("a", 7, 80, "d", True)
    assert state.about == {"arm": "eagle3", "_stopped_by": "me from here"}
    assert SUPERVISOR.parse_states(answer(b"[]")) == ()


@pytest.mark.parametrize("junk", [b"", b"Welcome to gpu-7!\n[]", b"{}x", b"[1]", b"[[]]", b'[{"name": "a"}]', b"3",
                                  b"\xff", b'[{"name": 1, "active": "a", "sub": "b", "result": "c"}]',
                                  b'[{"name": "a", "active": "a", "sub": "b", "result": "c", "about": 3}]'])
def test_an_answer_that_is_no_list_of_states_is_a_parse_error_in_three_lines(junk):
    with pytest.raises(ParseError) as e:
        SUPERVISOR.parse_states(answer(junk))
    assert [line.split(":")[0].strip() for line in str(e.value).splitlines()[1:]] == ["where", "next"]


@pytest.mark.parametrize("exit, said, error", [
    (11, "port 8101 is busy: pid 4242 (python -m http.server)", PortBusy),
    (14, "unit a has ended, but port 8101 is still open: pid 1 (x)", PortBusy),
    (15, "cannot run '/x': No such file or directory (203/EXEC)", ServiceDied),
    (16, "/r/units/a/state.json.new: No space left on device", NoSpace),
    (10, "unit a is active (pid 7) with other settings", PlanError),
])
def test_a_refusal_becomes_the_fitting_error_with_the_babysitters_words(exit, said, error):
    with pytest.raises(error) as e:
        stderr = b"locale: warning\nbabysit: " + said.encode() + b"\n"
        SUPERVISOR.explain(answer(exit=exit, stderr=stderr), Unit("a", ()))
    assert e.value.what == said and e.value.where == "gpu-7" and e.value.next


@pytest.mark.parametrize("exit, error", [(1, CommandError), (2, CommandError), (124, CommandTimeout), (None, LinkLost)])
def test_every_other_bad_end_is_told_as_for_any_command(exit, error):
    with pytest.raises(error):
        SUPERVISOR.parse_states(answer(exit=exit))
    fine = answer()
    assert SUPERVISOR.explain(fine) is fine


def test_every_exit_code_of_the_programs_has_an_error():
    codes = [code for program, known in ((BABYSIT, "BUSY"), (BABYSIT.with_name("unitctl.py"), "NOT_OURS"))
             for node in ast.parse(program.read_text()).body
             if isinstance(node, ast.Assign) and known in ast.unparse(node.targets[0])
             for code in ast.literal_eval(node.value)]
    assert set(codes) - {0, 2} == set(EXITS)
    assert all(issubclass(error, KitError) and next for error, next in EXITS.values())


def test_a_framed_line_is_read_and_its_odd_bytes_stay_visible():
    line = SUPERVISOR.parse_line(b"ab12.345 1700000000.250  two  spaces \xff\xe2\x82\xac")
    assert (line.cursor, line.time_s, line.text) == ("ab12.345", 1700000000.25, " two  spaces \\xff€")
    assert SUPERVISOR.parse_line(b"ab.1 1.0 ").text == ""


@pytest.mark.parametrize("junk", [b"", b"Last login: today", b"a.1 x y", b"a.1 1.0", b".1 1.0 x", b"a.b 1.0 x",
                                  b"\xff.1 1.0 x"])
def test_a_line_without_frame_is_a_parse_error(junk):
    with pytest.raises(ParseError):
        SUPERVISOR.parse_line(junk)


def test_the_whole_life_of_a_unit_on_a_host_with_an_unpleasant_folder(tmp_path):
    host = LocalHost(tmp_path / "it's 50% \"odd\" $HOME")
    root, python = host.root, sys.executable
    unit = Unit("demo", (sys.executable, "-u", "-c", "import time; print('hello'); time.sleep(600)"), {"A": "%h 'x'"})
    host.write(f"{root}/bin/babysit.py", BABYSIT.read_bytes())

    def state():
        (found,) = SUPERVISOR.parse_states(host.run(SUPERVISOR.states(root, python, ("demo",))))
        return found
    assert SUPERVISOR.parse_states(host.run(SUPERVISOR.states(root, python))) == ()
    assert state().active == "not-found"
    for path, content in SUPERVISOR.install(unit, root, "u").items():
        host.write(path, content)
    (started,) = SUPERVISOR.parse_states(host.run(SUPERVISOR.start("demo", root, python)))
    try:
        assert started.running and started.digest == unit.digest and state() == started
        with host.stream(SUPERVISOR.follow("demo", root, python)) as chunks:
            line = SUPERVISOR.parse_line(next(iter(chunks)).rstrip(b"\n"))
        printed = host.run(SUPERVISOR.follow("demo", root, python, wait=False)).stdout
        assert [SUPERVISOR.parse_line(p) for p in printed.splitlines()] == [line]
        assert line.text == "hello" and line.time_s >= started.started_at - 1
    finally:
        (stopped,) = SUPERVISOR.parse_states(host.run(SUPERVISOR.stop("demo", root, python, 5.0)))
    assert (stopped.active, stopped.sub, stopped.signal) == ("inactive", "dead", "SIGTERM")
    assert "_stopped_by" in stopped.about
    with host.stream(SUPERVISOR.follow("demo", root, python, line.cursor)) as chunks:
        assert b"".join(chunks) == b""
    SUPERVISOR.explain(host.run(SUPERVISOR.remove("demo", root, python)), unit)
    assert SUPERVISOR.parse_states(host.run(SUPERVISOR.states(root, python))) == ()


def test_secrets_reach_the_program_through_a_file_and_are_nowhere_else(tmp_path):
    host = LocalHost(tmp_path / "root")
    host.write(f"{host.root}/bin/babysit.py", BABYSIT.read_bytes())
    host.write(f"{host.root}/secrets/s.env", b'TOKEN="a \\"b\\" $c"\n', 0o600)
    check = "import os; t = os.environ['TOKEN']; assert (len(t), t[2], t[6]) == (8, chr(34), chr(36))"
    unit = Unit("s", (sys.executable, "-c", check), kind="job", env_file=f"{host.root}/secrets/s.env")
    ended = run_to_end(host, SUPERVISOR, sys.executable, unit, lambda line: None, lambda: None)
    assert (ended.result, ended.exit_code) == ("success", 0)
    kept = [p.read_bytes() for p in Path(host.root, "units").rglob("*") if p.is_file()]
    assert kept and not any(b"$c" in data for data in kept)
