"""Fixtures that several tests share."""

import os

import pytest


def pytest_addoption(parser):
    parser.addoption("--openssh", action="store_true",
                     help="run the conformance tests against /usr/sbin/sshd too; without one they fail")


@pytest.fixture(scope="session")
def rehearsal_host(tmp_path_factory):
    """A connected rehearsal host of its own, in a folder with an awkward name; ended with the session."""
    from kit import rehearsal
    from kit.host import connect

    folder = tmp_path_factory.mktemp("rehearsal") / "it's a \"100 %\" folder"
    os.environ["SPECBOOK_REHEARSAL"] = str(folder)      # for the processes that tests start, too
    host = connect("rehearsal")
    yield host
    host.close()
    rehearsal.stop(folder)
