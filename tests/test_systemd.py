"""The systemd supervisor: unit text, commands, who may use it. What real systemd makes of it: tests/lab."""

import configparser
import inspect
import json
from types import SimpleNamespace

import pytest

from kit.command import Command, Result, Secret
from kit.errors import ParseError, PlanError, ServiceDied, SudoError
from kit.seams import Supervisor, Unit
from kit.supervisors import supervisor
from kit.supervisors.systemd import quoted, text

SYSTEM, USER = supervisor("systemd"), supervisor("systemd-user")
UNIT = Unit("k26-eagle3", ("/opt/sglang/bin/python", "-m", "sglang.launch_server", "--port", "30001", "--trust"),
            {"PATH": "/opt/sglang/bin:/usr/bin", "NOTE": 'say "50%" of $HOME\\n'}, port=30001, stop_timeout_s=60,
            about={"experiment": "k26"})


def lines(unit=UNIT, user="deploy", scope="system"):
    return text(unit, "/home/deploy/.specbook", user, scope).splitlines()


@pytest.mark.parametrize("sup", [SYSTEM, USER])
def test_both_scopes_are_found_by_name_and_offer_the_whole_protocol(sup):
    assert supervisor(sup.name) is sup
    for name, wanted in inspect.getmembers(Supervisor, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(getattr(sup, name)).parameters) == \
                list(inspect.signature(wanted).parameters)[1:], name


@pytest.mark.parametrize("word, written", [
    ("plain", '"plain"'), ("two words", '"two words"'), ('a"b', '"a\\"b"'), ("back\\slash", '"back\\\\slash"'),
    ("100%", '"100%%"'), ("$HOME", '"$$HOME"'), ("line\nbreak", '"line\\nbreak"'), ("\x1b[1m", '"\\x1b[1m"'),
    (";", '";"'), ("", '""'), ("ünï", '"ünï"'),
])
def test_every_word_reaches_the_program_as_it_was_written(word, written):
    assert quoted(word) == written


def test_the_environment_is_escaped_but_its_dollars_stay():
    assert 'Environment="NOTE=say \\"50%%\\" of $HOME\\\\n"' in lines()


def test_the_command_is_absolute_with_each_flag_and_its_value_on_a_line():
    at = lines().index('ExecStart="/opt/sglang/bin/python" \\')
    assert lines()[at:at + 5] == ['ExecStart="/opt/sglang/bin/python" \\', '    "-m" "sglang.launch_server" \\',
                                  '    "--port" "30001" \\', '    "--trust"', lines()[at + 4]]
    job = Unit("j", ("python3", "x.py"), kind="job")
    assert 'ExecStart="/usr/bin/env" \\' in lines(job) and '    "python3" \\' in lines(job)


@pytest.mark.parametrize("line, why", [
    ("KillMode=mixed", "the children of a server that was told to end are ended too"),
    ("TimeoutStopSec=60", "as long as the config allows"), ("LimitMEMLOCK=infinity", "NCCL pins memory"),
    ("LimitNOFILE=1048576", "a connection each"), ("LogRateLimitIntervalSec=0", "a start says much"),
    ("Restart=no", "a benchmark must not be restarted unseen"), ("User=deploy", "not root"),
])
def test_the_unit_holds(line, why):
    assert line in lines(), why


def test_a_user_unit_names_no_user_and_starts_with_the_user_manager():
    at_boot = Unit("a", ("/x",), at_boot=True)
    assert not [row for row in lines(scope="user") if row.startswith("User=")]
    assert "WantedBy=default.target" in lines(at_boot, scope="user")
    assert "WantedBy=multi-user.target" in lines(at_boot) and "[Install]" not in lines()


def test_a_restart_is_wanted_never_after_a_refused_flag_and_not_for_ever():
    rows = lines(Unit("a", ("/x",), restart=True))
    assert {"Restart=on-failure", "RestartPreventExitStatus=1 2", "StartLimitBurst=3"} <= set(rows)


def test_secrets_are_a_file_and_run_as_is_obeyed():
    rows = lines(Unit("a", ("/x",), env_file="/r/secrets/a.env", user="model"))
    assert "EnvironmentFile=/r/secrets/a.env" in rows and "User=model" in rows


def test_another_user_gets_a_cache_of_its_own_and_its_end_is_noted_all_the_same():
    mine, theirs = (lines(Unit("a", ("/x",), {"XDG_CACHE_HOME": "/r/compiled"}, user=user)) for user in ("", "model"))
    assert 'ExecStartPre=+/usr/bin/install -d -o model -- "/r/compiled"' in theirs
    assert [row[:24] for row in theirs if "StopPost" in row] == ["ExecStopPost=-+/bin/sh -"]
    assert not [row for row in mine if "StartPre" in row or "+/" in row]


def test_the_text_is_one_that_an_ini_reader_understands_and_says_whose_it_is():
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str
    parser.read_string(text(UNIT, "/home/deploy/.specbook", "deploy", "system"))
    assert json.loads(parser["X-Specbook"]["Root"]) == "/home/deploy/.specbook"
    assert parser["X-Specbook"]["Digest"] == UNIT.digest


def test_all_that_is_installed_lies_below_the_kits_folder():
    files = SYSTEM.install(UNIT, "/r", "deploy")
    assert sorted(files) == ["/r/units/k26-eagle3/specbook-k26-eagle3.service", "/r/units/k26-eagle3/systemd.json"]
    assert SYSTEM.install(UNIT, "/r", "deploy") == files


def test_system_units_need_root_except_to_look_and_user_units_never():
    assert SYSTEM.start("a", "/r", "python3").as_root and SYSTEM.follow("a", "/r", "python3").as_root
    assert not SYSTEM.states("/r", "python3").as_root
    assert not USER.start("a", "/r", "python3").as_root
    assert "--scope user" in " ".join(USER.start("a", "/r", "python3").argv)


def host(**facts):
    return SimpleNamespace(**{"systemd": True, "privilege": "sudo", "user": "deploy", "linger": True,
                              "user_manager": True, **facts})


@pytest.mark.parametrize("sup, now, says", [
    (SYSTEM, host(), None), (SYSTEM, host(privilege="sudo-password"), None), (USER, host(privilege="none"), None),
    (SYSTEM, host(systemd=False), "host.supervisor: process"), (USER, host(systemd=False), "host.supervisor: process"),
    (SYSTEM, host(privilege="none"), "systemd-user"), (USER, host(linger=False), "loginctl enable-linger deploy"),
    (USER, host(user_manager=False), "enable-linger"),
])
def test_a_host_that_cannot_keep_units_this_way_is_told_what_will_do(sup, now, says):
    refusal = sup.unfit(now)
    assert (refusal is None) if says is None else (says in refusal[1])


def answer(exit, stderr=b"", as_root=True):
    return Result(Command(("python3", "unitctl.py"), as_root=as_root), exit, b"", stderr, "gpu-7")


@pytest.mark.parametrize("exit, said, error", [
    (19, b"unitctl: /etc/systemd/system/specbook-a.service is not ours", PlanError),
    (20, b"unitctl: specbook-a.service: Command /x is not executable", PlanError),
    (15, b"unitctl: unit a: the program cannot be run (203/EXEC)", ServiceDied),
    (1, b"sudo: a password is required", SudoError),
    (1, b"sudo: 1 incorrect password attempt", SudoError),
])
def test_a_refusal_becomes_the_fitting_error(exit, said, error):
    with pytest.raises(error) as e:
        SYSTEM.explain(answer(exit, said), UNIT)
    assert e.value.next and e.value.where == "gpu-7"


def test_journal_cursors_are_accepted_with_the_part_of_an_entry_that_was_told():
    cursor = b"s=0639e1;i=4f2;b=ba2f;m=5d1;t=60d;x=a1"
    assert SYSTEM.parse_line(cursor + b" 1700000000.25 two  spaces").text == "two  spaces"
    assert SYSTEM.parse_line(cursor + b"~3 1.5 x").cursor.endswith("~3")
    for junk in (b"", b"Last login: today", b"ab.12 1.0 x"):
        with pytest.raises(ParseError):
            SYSTEM.parse_line(junk)


def test_sudo_gets_its_password_on_stdin_and_never_in_the_words():
    command = Command(("id",), b"rest", as_root=True)
    line, stdin = command.typed(Secret("p'w"))
    assert b"p'w" not in line and stdin == b"p'w\nrest" and b"sudo -k -S" in line
    assert command.typed()[1] == b"rest" and b"sudo -n" in command.typed()[0]
    assert Command(("id",), b"rest").typed(Secret("pw")) == (b"timeout -k 5 60 id", b"rest")
