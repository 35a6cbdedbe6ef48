"""What a run keeps of the service that it measured: SGLang's stand-in on this machine."""

import json
import socket
from contextlib import closing

import pytest
from doubles import LocalHost
from standin import install

from kit import benching, project, shipping
from kit.applying import Applier
from kit.evidence import evidence, window
from kit.following import start, stop
from kit.job import Job
from kit.planning import plan
from kit.seams import LogLine
from kit.spec import Experiment
from kit.supervisors import supervisor
from kit.surveying import survey

HERE = project.root()
CARDS = HERE / "data" / "cards"
SUP = supervisor("process")


@pytest.fixture
def host(tmp_path):
    return LocalHost(tmp_path / "root")


@pytest.fixture
def exp(tmp_path, monkeypatch):
    for name in ("configs", "notebooks", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "prompts").symlink_to(HERE / "data" / "prompts")
    monkeypatch.chdir(tmp_path)
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return Experiment.model_validate({
        "name": "standin", "host": {"ssh": "local"}, "arm_name": "eagle3",
        "engine": {"name": "sglang", "version": "0.5.12.post1", "python": install(tmp_path / "venv"),
                   "env": {"STANDIN_SPEED": "0"}},
        "target": {"source": f"host:{CARDS}/kimi-k2.6"}, "drafter": {"source": f"host:{CARDS}/kimi-k2.6-eagle3"},
        "serve": {"port": port, "context": 2048, "slots": 8, "healthy_within_s": 20, "stop_within_s": 2},
        "arms": {"eagle3": {"algorithm": "eagle3"}},
        "bench": {"prompt_sets": ["chat"], "prompts": 2, "concurrency": [1], "output_tokens": 16, "warmup": 0}})


@pytest.fixture
def measured(exp, host):
    """The run, and its log of what was done."""
    def work(job):
        Applier(plan(exp, survey(exp, host)), host, job).run()
        return benching.measure(exp, host, job)
    yield Job.start("measure", work).result(60)
    stop(host, SUP, "python3", exp.unit, 2)


def test_unit_log_and_arguments_in_force_are_kept_with_the_numbers(measured, exp):
    unit, log = ((measured.folder / name).read_text() for name in ("unit.txt", "server.log"))
    assert measured.complete and "--speculative-num-draft-tokens 4" in unit and "TRITON_CACHE_DIR=" in unit
    told = json.loads((measured.folder / "server.json").read_text())
    assert (told["port"], told["speculative_num_draft_tokens"], told["version"]) == (exp.serve.port, 4, "0.5.12.post1")
    assert "server_args=ServerArgs(" in log and log.count('"POST /v1/chat/completions HTTP/1.1" 200 OK') >= 2


def test_what_cannot_be_read_is_left_out_and_secrets_are_masked(exp, host):
    assert evidence(exp, host, None).keys() == {"unit.txt"}, "nothing was started, no program of ours is there"
    for name in SUP.shipped:
        host.write(shipping.path(name, host.root), shipping.content(name))
    said = "print(\"ServerArgs(api_key='s3cret', hf_token=None, port=1)\", flush=True)"
    unit = benching.service(exp, host.root)
    start(host, SUP, "python3", type(unit)(unit.name, ("python3", "-c", said)))
    log = b""
    while not log:
        log = evidence(exp, host, None).get("server.log", b"")
    assert log == b"ServerArgs(api_key='***', hf_token=None, port=1)\n"


def test_of_a_long_log_the_start_and_the_run_are_kept():
    said = [LogLine(str(i), float(i), f"line {i}") for i in range(10)]
    assert window(said, 7.0, first=2).splitlines() == ["line 0", "line 1", "[5 lines left out]", "line 7", "line 8",
                                                       "line 9"]
    assert window(said, 1.0, first=2).splitlines() == window(said, None).splitlines() == [x.text for x in said]
    assert window([], 5.0) == "" and window(said, 99.0, first=20) == window(said, None)
