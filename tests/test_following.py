"""Following a unit through a connection that comes and goes."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from doubles import LocalHost

from kit import following
from kit.errors import Cancelled, ConnectError, HostKeyError, LinkLost, PlanError
from kit.supervisors import supervisor

SUP = supervisor("process")


class Flaky:
    """A host whose streams say what was written down for them: lines, then maybe an error; one entry per try."""

    root = "/r"

    def __init__(self, *tries):
        self.tries, self.cursors = list(tries), []

    @contextmanager
    def stream(self, command):
        said = self.tries.pop(0)
        if isinstance(said, ConnectError):
            raise said
        self.cursors.append(command.argv[command.argv.index("--cursor") + 1])
        yield self._chunks(said)

    @staticmethod
    def _chunks(said):
        for entry in said:
            if isinstance(entry, Exception):
                raise entry
            yield entry


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(following, "RETRIES_S", (0, 0, 0))


def follow(host, **options):
    return [line.text for line in following.lines(host, SUP, "python3", "u", **options)]


def test_a_host_that_is_away_for_a_while_is_asked_again_and_no_line_is_lost_or_repeated():
    host = Flaky([b"a.1 0 one\n", b"a.2 0 t", LinkLost("gone")], ConnectError("nobody"), ConnectError("nobody"),
                 [b"a.2 0 two\n"])
    assert follow(host) == ["one", "two"]
    assert host.cursors == ["", "a.1"]


def test_a_host_that_cannot_be_reached_in_the_first_place_or_has_another_key_is_an_answer():
    with pytest.raises(ConnectError):
        follow(Flaky(ConnectError("nobody"), [b"a.1 0 one\n"]))
    with pytest.raises(HostKeyError):
        follow(Flaky([LinkLost("gone")], HostKeyError("changed"), [b"a.1 0 one\n"]))


def test_it_gives_up_in_the_end_and_may_be_cancelled_while_it_waits(monkeypatch):
    with pytest.raises(ConnectError):
        follow(Flaky([LinkLost("gone")], *[ConnectError("nobody")] * 3, [b"a.1 0 one\n"]))
    monkeypatch.setattr(following, "RETRIES_S", (3600,))

    def check():
        raise Cancelled("enough")
    with pytest.raises(Cancelled):
        follow(Flaky([LinkLost("gone")]), check=check)


@pytest.mark.parametrize("name", ["process", "systemd"])
def test_a_host_on_which_nothing_was_ever_started_has_no_such_unit_and_says_so(tmp_path, name):
    host, sup = LocalHost(tmp_path), supervisor(name)
    assert following.state(host, sup, "python3", "x").active == "not-found"
    with pytest.raises(PlanError, match="nothing was ever started there"):
        sup.explain(host.run(replace(sup.start("x", host.root, "python3"), as_root=False)))
