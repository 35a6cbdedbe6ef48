"""Fixtures that several tests share."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
CONFIG = "configs/short.yaml"       # in the project folder that the fixture `folder` makes
sys.modules.setdefault("rfc3987_syntax", None)      # jsonschema takes 4 s to import it, to check IRIs that nobody has


def pytest_addoption(parser):
    parser.addoption("--openssh", action="store_true",
                     help="run the conformance tests against /usr/sbin/sshd too; without one they fail")


LONG = ("test_demo.py", "test_runbook.py", "test_notebooks.py")


def pytest_collection_modifyitems(items):
    """The longest files first: begun last, they would keep one process busy while the other has nothing left."""
    items.sort(key=lambda item: item.path.name not in LONG)


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


@pytest.fixture(scope="session")
def engine_python():
    """An interpreter with llama.cpp's server, made once in .cache: installing it takes longer than the tests."""
    from kit.engines.llamacpp import ENGINE
    folder = ROOT / ".cache" / "llamacpp-for-tests"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:    # test processes run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, str(ROOT / "kit" / "remote" / "runtime.py"), str(folder), *ENGINE.packages],
                       check=True, stdout=subprocess.DEVNULL)
    return str(folder / "bin" / "python")


def fuzzing(examples):
    """Hypothesis settings: so many examples from a fixed seed; `make fuzz` asks for more, from a named one."""
    from hypothesis import settings
    more = os.environ.get("KIT_FUZZ_EXAMPLES")
    return settings(max_examples=int(more or examples), deadline=None, derandomize=more is None, database=None)


@pytest.fixture
def folder(tmp_path, engine_python, monkeypatch):
    """A project folder named with spaces, quotes and %, and a config that takes seconds."""
    monkeypatch.delenv("SPECBOOK_REHEARSAL", raising=False)
    place = tmp_path / "it's a \"100 %\" folder"
    place.mkdir()
    for name in ("configs", "notebooks"):
        shutil.copytree(ROOT / name, place / name)
    (place / "data").mkdir()
    for name in ("models", "prompts", "reference"):
        (place / "data" / name).symlink_to(ROOT / "data" / name)
    config = yaml.safe_load((ROOT / "configs" / "micro.yaml").read_text())
    config["engine"]["python"] = engine_python
    config["serve"]["port"] = 20000 + os.getpid() % 10000
    config["bench"] |= {"prompts": 4, "output_tokens": 8, "concurrency": [1]}
    (place / CONFIG).write_text(yaml.safe_dump(config))
    return place
