"""The demo as a user starts it: all notebooks, headless, on the micro pair, in a folder with an awkward name."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest
import yaml
from conftest import CONFIG
from conftest import ROOT as HERE


def heard():
    """A shell that runs us in the background may have told us not to hear Ctrl-C; a user's does not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(folder):
    return subprocess.Popen([sys.executable, "-m", "kit", "demo", CONFIG], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, preexec_fn=heard)


def left_running(folder):
    """Processes that mention the folder in their command line or sit in it."""
    left = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if str(folder).encode() in f.read() or os.readlink(f"/proc/{pid}/cwd").startswith(str(folder)):
                    left.append(int(pid))
        except OSError:
            continue
    return left


def test_the_last_line_is_one_json_of_what_was_measured_and_nothing_is_left_running(folder):
    demo = start(folder)
    out, err = demo.communicate(timeout=300)
    assert demo.returncode == 0, out + err
    line = json.loads(out.splitlines()[-1])
    assert set(line) == {"report", "arms", "healthy_s", "wall_s"}
    assert list(line["arms"]) == ["baseline", "eagle3", "ngram"]
    assert line["arms"]["baseline"]["tok_s"] > 0 and 0 < line["healthy_s"] < line["wall_s"]
    eagle = line["arms"]["eagle3"]
    assert 1 < eagle["accept_length"] <= 4 and eagle["identical"] == "4/4" and eagle["speedup"] > 0
    assert "<html" in (folder / line["report"]).read_text()
    copies = sorted((folder / line["report"]).parent.glob("*.ipynb"))
    assert [c.name for c in copies] == [n.name for n in sorted((HERE / "notebooks").glob("[0-9]*.ipynb"))]
    for copy in copies:
        assert "widgets" not in nbformat.read(copy, 4).metadata
    assert not left_running(folder)


@pytest.mark.parametrize("ask", [(signal.SIGINT,) * 5, (signal.SIGTERM,), (signal.SIGHUP,)])
def test_ended_in_the_middle_it_stops_what_it_started(folder, ask):
    demo = start(folder)
    seen = ""
    while "30-baseline" not in seen:
        seen += demo.stdout.read(1)
    time.sleep(1)       # into the notebook
    for number in ask:  # an impatient hand, too
        demo.send_signal(number)
        time.sleep(0.2)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 130 and "interrupted" in err, out + err
    assert not left_running(folder)


LOST = """
import os, signal, time, weakref
from kit import demo
demo._interrupted_once()

class Thing:
    pass

thing = Thing()
note = weakref.ref(thing, lambda _: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.1)))
del thing       # the signal's exception is raised in the callback, and dropped there
print("lost", flush=True)
time.sleep(30)
print("never here")
"""


def test_an_ending_that_falls_into_a_weakref_callback_is_not_lost():
    ended = subprocess.run([sys.executable, "-c", LOST], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and ended.stderr.splitlines()[-1] == "KeyboardInterrupt", ended
    assert "never here" not in ended.stdout and ended.stderr.count("stopping what was started") == 1


def test_a_second_demo_in_the_same_folder_is_told_who_runs(folder):
    first = start(folder)
    assert first.stdout.read(2) == "00"
    second = start(folder)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1 and f"pid {first.pid}" in err and len(err.splitlines()) == 3
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=120)
    assert not left_running(folder)


def test_a_failing_step_is_told_in_three_lines(folder):
    config = yaml.safe_load((folder / CONFIG).read_text())
    config["target"]["source"] = "folder:data/models/none.gguf"
    (folder / CONFIG).write_text(yaml.safe_dump(config))
    demo = start(folder)
    _, err = demo.communicate(timeout=120)
    assert demo.returncode == 1 and len(err.splitlines()) == 3 and "none.gguf" in err
    assert not left_running(folder)


def test_a_folder_that_cannot_be_written_is_told_in_three_lines(folder):
    (folder / "data" / "reports").write_text("a file where the folder should be")
    _, err = (demo := start(folder)).communicate(timeout=60)
    assert demo.returncode == 1 and len(err.splitlines()) == 3 and "cannot write" in err
    assert not left_running(folder)
