"""A service as a real systemd unit on a real host: started, followed, found again, stopped, undone."""

import time

import pytest
from machines import eventually

from kit.applying import Applier
from kit.command import Secret
from kit.errors import KitError, PlanError, PortBusy, SudoError
from kit.following import lines, recent, run_to_end, start, state, stop
from kit.job import Job
from kit.planning import plan
from kit.seams import Unit
from kit.shipping import content, path
from kit.spec import Experiment
from kit.supervisors import supervisor
from kit.surveying import survey

SYSTEM, USER = supervisor("systemd"), supervisor("systemd-user")
PORT = 8123
SERVER = f"""import http.server; print('up', flush=True)
http.server.HTTPServer(('127.0.0.1', {PORT}), http.server.SimpleHTTPRequestHandler).serve_forever()"""


def unit(name="demo", code=SERVER, port=PORT, **more):
    return Unit(name, ("/usr/bin/python3", "-u", "-c", code), {"NOTE": "50% of $HOME \"x\""}, port=port,
                about={"experiment": "lab"}, **more)


def tools(host, sup):
    for program in sup.shipped:
        host.write(path(program, host.root), content(program))


def texts(host, sup, name="demo", cursor=""):
    return [line.text for line in recent(host, sup, "python3", name, cursor)]


@pytest.fixture
def clean(shell):
    """No unit of ours, before and after."""
    script = """
for f in /etc/systemd/system/specbook-*.service; do [ -e "$f" ] || continue
  systemctl stop "${f##*/}"; rm -f "$f"; done
systemctl daemon-reload; systemctl reset-failed; rm -rf /home/*/.specbook /root/.specbook"""
    shell("alpha", script)
    yield
    shell("alpha", script)


@pytest.fixture(params=["deploy", "root"])
def there(request, connect_as, clean):
    host = connect_as(request.param, "alpha")
    tools(host, SYSTEM)
    return host


def test_the_whole_life_of_a_system_service(there, shell):
    start(there, SYSTEM, "python3", unit())
    now = state(there, SYSTEM, "python3", "demo")
    assert (now.active, now.sub, now.digest, now.port) == ("active", "running", unit().digest, PORT)
    eventually(lambda: there.http(PORT, "/").status == 200)
    assert shell("alpha", 'ps -o user= -p "$1"', str(now.pid)).strip() == there.user
    assert shell("alpha", 'tr "\\0" "\\n" < /proc/$1/environ | grep ^NOTE=', str(now.pid)) == 'NOTE=50% of $HOME "x"\n'
    assert "up" in texts(there, SYSTEM)
    start(there, SYSTEM, "python3", unit())
    assert state(there, SYSTEM, "python3", "demo").pid == now.pid, "started again although it runs"
    with pytest.raises(PlanError, match="with other settings"):
        start(there, SYSTEM, "python3", unit(code=SERVER + " # other"))
    stop(there, SYSTEM, "python3", "demo", 5)
    ended = state(there, SYSTEM, "python3", "demo")
    assert (ended.active, ended.pid) == ("inactive", None) and there.http(PORT, "/").status == 0
    assert there.run(SYSTEM.remove("demo", there.root, "python3")).exit == 0
    assert state(there, SYSTEM, "python3", "demo").active == "not-found"
    assert shell("alpha", "ls /etc/systemd/system | grep -c specbook || true") == "0\n"


@pytest.mark.parametrize("code, active, result, exit_code, signal", [
    ("print('done')", "inactive", "success", 0, None),
    ("import sys; print('no'); sys.exit(3)", "failed", "exit-code", 3, None),
    ("import os; print('bye', flush=True); os.kill(os.getpid(), 9)", "failed", "signal", None, "SIGKILL"),
])
def test_a_job_is_run_to_its_end_and_how_it_ended_is_known(there, code, active, result, exit_code, signal):
    said = []
    ended = run_to_end(there, SYSTEM, "python3", unit("job", code, None, kind="job"), said.append, lambda: None)
    assert (ended.active, ended.result, ended.exit_code, ended.signal) == (active, result, exit_code, signal)
    assert code.split("'")[1] in said


def test_a_service_that_dies_late_is_told_with_its_last_words_after_systemd_forgot_it(there, shell):
    start(there, SYSTEM, "python3", unit(code="import time; print('loading'); time.sleep(1); raise SystemExit(7)"))
    eventually(lambda: not state(there, SYSTEM, "python3", "demo").running)
    shell("alpha", "systemctl reset-failed; systemctl daemon-reload")
    ended = state(there, SYSTEM, "python3", "demo")
    assert (ended.active, ended.result, ended.exit_code) == ("failed", "exit-code", 7)
    assert "loading" in texts(there, SYSTEM)


def test_secrets_reach_the_service_as_they_are_and_neither_its_unit_nor_the_journal(there, shell):
    there.write(f"{there.root}/secrets/demo.env", b'TOKEN="a \\"b\\" $c \\\\ %d"\n', 0o600)
    check = "import os; t = os.environ['TOKEN']; print([ord(c) for c in t])"
    said = []
    job = unit("demo", check, None, kind="job", env_file=f"{there.root}/secrets/demo.env")
    assert run_to_end(there, SYSTEM, "python3", job, said.append, lambda: None).result == "success"
    assert str([ord(c) for c in 'a "b" $c \\ %d']) in said
    assert "$c" not in shell("alpha", "cat /etc/systemd/system/specbook-demo.service; journalctl -u specbook-demo")


def test_a_program_that_is_not_there_is_refused_before_anything_is_installed(there, shell):
    with pytest.raises(PlanError, match="not/there"):
        start(there, SYSTEM, "python3", Unit("demo", ("/not/there",)))
    assert shell("alpha", "ls /etc/systemd/system | grep -c specbook || true") == "0\n"


def test_an_unknown_user_is_told_from_systemds_own_status(there):
    with pytest.raises(KitError, match="217/USER|nobody-here"):
        start(there, SYSTEM, "python3", unit(user="nobody-here"))


def test_a_busy_port_names_who_holds_it(there, shell):
    serve = 'setsid python3 -m http.server "$1" --bind 127.0.0.1 >/dev/null 2>&1 </dev/null & echo $! > /run/h'
    shell("alpha", serve, str(PORT))
    try:
        eventually(lambda: there.http(PORT, "/").status == 200)
        with pytest.raises(PortBusy, match="http.server"):
            start(there, SYSTEM, "python3", unit())
    finally:
        shell("alpha", "kill $(cat /run/h)")


def test_a_unit_of_that_name_that_is_not_ours_is_never_touched(there, shell):
    text = "[Service]\nExecStart=/bin/sleep 1000\n"
    shell("alpha", 'printf %s "$1" > /etc/systemd/system/specbook-demo.service; systemctl daemon-reload', text)
    for act in (lambda: start(there, SYSTEM, "python3", unit()), lambda: stop(there, SYSTEM, "python3", "demo", 1)):
        with pytest.raises(PlanError, match="is not ours"):
            act()
    assert shell("alpha", "cat /etc/systemd/system/specbook-demo.service") == text


def test_the_journal_is_followed_from_a_cursor_without_gap_or_repeat(there):
    code = "import sys\nfor i in range(300): print('line', i)\nsys.stdout.buffer.write(b'odd \\xff byte\\n')\n" \
           "sys.stdout.flush()\nprint('\\x1b[31mred\\x1b[0m')\nimport time; time.sleep(60)"
    start(there, SYSTEM, "python3", unit(code=code, port=None))
    eventually(lambda: any("red" in t for t in texts(there, SYSTEM)))
    whole = recent(there, SYSTEM, "python3", "demo")
    middle = next(i for i, line in enumerate(whole) if line.text == "line 150")
    rest = recent(there, SYSTEM, "python3", "demo", whole[middle].cursor)
    assert [r.text for r in rest] == [w.text for w in whole[middle + 1:]]
    assert [w.text for w in whole if w.text.startswith("line")] == [f"line {i}" for i in range(300)]
    assert any("odd \\xff byte" in w.text for w in whole)


def test_following_survives_a_killed_session_and_ends_with_the_unit(there, kill_sshd_sessions):
    code = "import time\nfor i in range(40): print('line', i, flush=True); time.sleep(0.1)"
    start(there, SYSTEM, "python3", unit(code=code, port=None))
    said, cut = [], False
    for line in lines(there, SYSTEM, "python3", "demo"):
        said.append(line.text)
        if line.text == "line 8" and not cut:
            cut = True
            kill_sshd_sessions("alpha")
    assert cut and [t for t in said if t.startswith("line")] == [f"line {i}" for i in range(40)]


def test_a_journal_that_was_rotated_away_is_said(there, shell):
    code = "import time\nfor i in range(900): print('tick', i, flush=True); time.sleep(0.1)"
    start(there, SYSTEM, "python3", unit(code=code, port=None))
    eventually(lambda: "tick 3" in texts(there, SYSTEM))
    cursor = recent(there, SYSTEM, "python3", "demo")[0].cursor
    shell("alpha", "journalctl --rotate; sleep 1.2; journalctl --rotate --vacuum-time=1s")
    eventually(lambda: texts(there, SYSTEM, cursor=cursor))
    said = texts(there, SYSTEM, cursor=cursor)
    assert "no longer has" in said[0] and said[1].startswith("tick") and "tick 1" not in said


def test_a_unit_that_restarts_stops_restarting_at_a_refused_flag(there):
    start(there, SYSTEM, "python3", unit(code="raise SystemExit(2)", port=None, restart=True))
    eventually(lambda: not state(there, SYSTEM, "python3", "demo").running)
    assert state(there, SYSTEM, "python3", "demo").exit_code == 2


def test_after_a_reboot_the_unit_is_found_and_what_happened_is_said(alpha, clean, reboot):
    tools(alpha, SYSTEM)
    start(alpha, SYSTEM, "python3", unit())
    start(alpha, SYSTEM, "python3", unit("always", "import time; time.sleep(1000)", None, at_boot=True))
    reboot("alpha")
    assert state(alpha, SYSTEM, "python3", "always").running
    assert not state(alpha, SYSTEM, "python3", "demo").running
    start(alpha, SYSTEM, "python3", unit())
    assert state(alpha, SYSTEM, "python3", "demo").running


def test_sudo_with_a_password_needs_it_once_and_without_it_says_what_to_do(connect_as, clean, pat_password):
    pat = connect_as("pat", "alpha")
    tools(pat, SYSTEM)
    with pytest.raises(SudoError, match="password") as refused:
        start(pat, SYSTEM, "python3", unit())
    assert "kit.sudo" in refused.value.next
    pat.sudo_password = Secret(pat_password)
    start(pat, SYSTEM, "python3", unit())
    assert state(pat, SYSTEM, "python3", "demo").running and "up" in texts(pat, SYSTEM)
    pat.sudo_password = Secret("wrong")
    with pytest.raises(SudoError):
        stop(pat, SYSTEM, "python3", "demo", 2)
    pat.sudo_password = Secret(pat_password)
    stop(pat, SYSTEM, "python3", "demo", 2)


def test_a_user_service_needs_lingering_and_then_outlives_the_login(connect_as, clean, shell):
    exp = Experiment.load("configs/micro.yaml").with_(host={"ssh": "alpha-guest", "supervisor": "systemd-user"})
    guest = connect_as("guest", "alpha")
    with pytest.raises(PlanError, match="[Ll]inger|user manager"):
        plan(exp, survey(exp, guest))
    shell("alpha", "loginctl enable-linger guest")
    try:
        eventually(lambda: survey(exp, guest).user_manager)
        tools(guest, USER)
        start(guest, USER, "python3", unit())
        guest.close()
        time.sleep(0.5)
        guest.open()
        assert state(guest, USER, "python3", "demo").running and "up" in texts(guest, USER)
        stop(guest, USER, "python3", "demo", 2)
        assert guest.run(USER.remove("demo", guest.root, "python3")).exit == 0
        assert shell("alpha", "ls -A /home/guest/.config 2>/dev/null | wc -l") == "0\n"
    finally:
        shell("alpha", "loginctl disable-linger guest")


def test_someone_without_sudo_is_told_before_anything_is_written(connect_as, clean):
    exp = Experiment.load("configs/micro.yaml").with_(host={"ssh": "alpha-guest", "supervisor": "systemd"})
    guest = connect_as("guest", "alpha")
    with pytest.raises((PlanError, SudoError)):
        Job.start("x", lambda job: Applier(plan(exp, survey(exp, guest)), guest, job).run()).result()
    assert guest.run(USER.states(guest.root, "python3")).exit != 0, "nothing was written, not even the program"


def test_a_flag_error_is_a_named_end(there):
    start(there, SYSTEM, "python3", unit(code="import sys; sys.exit('error: unrecognized arguments: --x')"))
    eventually(lambda: not state(there, SYSTEM, "python3", "demo").running)
    ended = state(there, SYSTEM, "python3", "demo")
    assert ended.exit_code == 1 and any("unrecognized" in t for t in texts(there, SYSTEM))
