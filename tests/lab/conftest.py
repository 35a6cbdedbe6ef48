"""Fixtures for tests on the lab's two hosts. They run inside `make test-lab`, and nowhere else.

A host is named as "alpha" or "beta", or by any kit host connected to it.
"""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from machines import PAT_PASSWORD, PROXY_PORTS, Machine
from proxy import Proxy

IN_LAB = "SPECBOOK_LAB" in os.environ
collect_ignore_glob = [] if IN_LAB else ["test_*.py"]       # make test goes without root

MACHINES = {name: Machine(name) for name in ("alpha", "beta")}


def pytest_configure(config):
    here = Path(__file__).parent
    asked = [(config.invocation_params.dir / a.split("::")[0]).resolve() for a in config.args]
    if not IN_LAB and any(path == here or here in path.parents for path in asked):
        raise pytest.UsageError("these tests need the lab's hosts; run: make test-lab")


def machine(host):
    """The Machine of "alpha", of "alpha-pat", of a connected kit host."""
    return MACHINES[getattr(host, "name", host).partition("-")[0]]


@pytest.fixture
def connect_as():
    """connect_as(user, host="alpha"): a kit host as root, deploy, pat or guest; closed after the test."""
    from kit.host import connect
    with ExitStack() as stack:
        def connected(user, host="alpha"):
            name = machine(host).name
            connected_host = connect(name if user == "deploy" else f"{name}-{user}")
            stack.callback(connected_host.close)
            return connected_host
        yield connected


@pytest.fixture
def alpha(connect_as):
    return connect_as("deploy", "alpha")


@pytest.fixture
def beta(connect_as):
    return connect_as("deploy", "beta")


@pytest.fixture
def pat_password():
    return PAT_PASSWORD


@pytest.fixture
def shell():
    """shell(host, script, *args): as root on the host, not over SSH; its stdout. check=False gives the process."""
    return lambda host, script, *args, **more: machine(host).shell(script, *args, **more)


@pytest.fixture
def reboot():
    """reboot(host): a real one; comes back once the host is up."""
    return lambda host: machine(host).reboot()


@pytest.fixture
def cut():
    """cut(host, seconds=10): a black hole, until heal(host), that time, or the end of the test."""
    with ExitStack() as stack:
        def cut_off(host, seconds=10.0):
            machine(host).cut(seconds)
            stack.callback(machine(host).heal)
        yield cut_off


@pytest.fixture
def heal():
    return lambda host: machine(host).heal()


@pytest.fixture
def kill_sshd_sessions():
    """kill_sshd_sessions(host): every SSH connection to the host dies at once; new ones are taken."""
    return lambda host: machine(host).kill_sshd_sessions()


@pytest.fixture
def fill_disk():
    """fill_disk(host, leave=0): no space but for so many bytes, until free_disk(host) or the end of the test."""
    with ExitStack() as stack:
        def fill(host, leave=0):
            stack.callback(machine(host).free_disk)
            machine(host).fill_disk(leave)
        yield fill


@pytest.fixture
def free_disk():
    return lambda host: machine(host).free_disk()


@pytest.fixture
def snapshot():
    """snapshot(host): files, units, processes and ports; two of them go into machines.changes()."""
    return lambda host: machine(host).snapshot()


@pytest.fixture
def proxy():
    """proxy(host, delay_s=0.0): a slow or silent way to it, under the name alpha-slow or beta-slow."""
    with ExitStack() as stack:
        def started(host, delay_s=0.0):
            there = machine(host)
            return stack.enter_context(Proxy(PROXY_PORTS[there.name], (there.address, 22), delay_s))
        yield started


@pytest.fixture
def gpus(shell):
    """gpus(host, csv): what the host's nvidia-smi knows, "" for no driver; as before after the test."""
    with ExitStack() as stack:
        def change(host, table, name="gpus.csv"):
            path = f"/var/lib/fake-gpu/{name}"
            before = shell(host, 'cat "$1"', path)
            stack.callback(shell, host, 'cat >"$1"', path, stdin=before)
            shell(host, 'cat >"$1"', path, stdin=table)
        yield change


@pytest.fixture(scope="module")
def furnished():
    """alpha has the stand-in for SGLang, and models; see sglang_host.py."""
    import sglang_host
    sglang_host.furnish()
    yield
    sglang_host.strip()


@pytest.fixture
def clean(shell):
    """No unit and no folder of ours on alpha, before and after."""
    from sglang_host import CLEAN
    shell("alpha", CLEAN)
    yield
    shell("alpha", CLEAN)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A project folder of its own: launches and runs are kept there."""
    from kit import project
    here = project.root()
    (tmp_path / "data").mkdir()
    for name in ("configs", "notebooks", "data/cards", "data/prompts", "data/reference"):
        (tmp_path / name).symlink_to(here / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lingering(shell):
    """guest's user services stay, until the end of the test."""
    shell("alpha", "loginctl enable-linger guest; systemctl start user@$(id -u guest)")
    yield
    shell("alpha", "loginctl disable-linger guest")
