"""The llama.cpp engine against pages, answers and logs that xllamacpp 2026.10.11549 really gave.

fixtures/llamacpp/: start-*, metrics-*, chat-*, stream-* come from the micro pair with two slots, one request each;
fail-NAME.log from a provoked failure each: a missing, foreign, cut or strange file, a head of another target
(micro head on SmolLM2), a busy port, a foreign address, 3 GB of address space for 6 GB of cache.
"""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kit.engines import engine
from kit.errors import SpecError
from kit.seams import Acceptance
from kit.spec import Experiment, Spec

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "fixtures" / "llamacpp"
LAUNCHER = ROOT / "kit" / "remote" / "llamacpp_server.py"
ENGINE = engine("llamacpp")


def laptop(arm="baseline", **changes):
    return Experiment.load(ROOT / "configs" / "laptop.yaml").arm(arm).with_(**changes)


def recorded(name):
    return (RECORDED / name).read_text()


def flags(exp):
    words = ENGINE.service(exp, "/r").argv[2:]
    return {w: words[i + 1] for i, w in enumerate(words[:-1]) if w.startswith("--")}


# ------------------------------------------------------------------- the unit

def test_every_slot_gets_the_whole_context():
    exp = laptop(**{"serve.context": 2048, "serve.slots": 3})
    assert flags(exp)["--ctx-size"] == "6144"
    assert flags(exp)["--parallel"] == "3"
    # what llama.cpp made of 4096 for 2 slots
    assert "n_slots = 2, n_ctx_slot = 2048" in recorded("start-baseline.log")


def test_the_unit_runs_the_launcher_with_the_installed_interpreter_and_says_what_it_is():
    unit = ENGINE.service(laptop("eagle3", **{"engine.env": {"A": "1"}, "engine.args": ["--poll", "50"]}), "/r")
    assert re.fullmatch(r"/r/engines/llamacpp-[0-9a-f]{8}/bin/python", unit.argv[0])
    assert unit.argv[1] == "/r/bin/llamacpp_server.py"
    assert unit.argv[-2:] == ("--poll", "50")
    assert (unit.name, unit.port, unit.kind, unit.env) == ("laptop-eagle3", 8101, "service", {"A": "1"})
    assert unit.about == {"experiment": "laptop", "arm": "eagle3", "engine": "llamacpp", "algorithm": "eagle3"}


def test_an_interpreter_of_the_users_own_is_taken_as_it_is():
    assert ENGINE.python(laptop(**{"engine.python": "/opt/x/bin/python"}), "/r") == "/opt/x/bin/python"


def test_only_arms_with_a_drafter_load_one():
    assert flags(laptop("eagle3"))["--model-draft"].startswith("/r/models/smollm2-135m-eagle3.q8_0.gguf-")
    assert "--model-draft" not in flags(laptop("ngram")) and "--spec-type" not in flags(laptop("baseline"))


@pytest.mark.parametrize("spec, flags", [
    (Spec(), {}),
    (Spec(algorithm="eagle3", steps=5), {"--spec-type": "draft-eagle3", "--spec-draft-n-max": "5"}),
    (Spec(algorithm="draft", steps=2), {"--spec-type": "draft-simple", "--spec-draft-n-max": "2"}),
    (Spec(algorithm="ngram", draft_tokens=12, lookup=4),
     {"--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": "4", "--spec-ngram-simple-size-m": "12"}),
])
def test_parameters_are_told_in_llama_cpps_own_flags(spec, flags):
    assert ENGINE.terms(spec) == flags


@pytest.mark.parametrize("spec, says", [
    (Spec(algorithm="eagle"), "none, ngram, draft, eagle3"),
    (Spec(algorithm="suffix"), "none, ngram, draft, eagle3"),
    (Spec(algorithm="eagle3", topk=4), "chains"),
    (Spec(algorithm="eagle3", steps=3, draft_tokens=5), "steps 3 with draft_tokens 5"),
])
def test_what_llama_cpp_has_not_is_refused_with_what_it_has(spec, says):
    with pytest.raises(SpecError, match=says):
        ENGINE.terms(spec)


def test_the_launcher_knows_every_flag_the_engine_uses():
    said = subprocess.run([sys.executable, LAUNCHER, "--help"], capture_output=True, text=True, check=True).stdout
    for arm in ("baseline", "eagle3", "ngram"):
        for word in ENGINE.service(laptop(arm), "/r").argv:
            if word.startswith("--"):
                assert re.search(rf"(^|[ ,]){word}\b", said, re.M), word


# ------------------------------------------------------- answers and counters

def test_acceptance_is_read_from_the_recorded_counters():
    eagle3, ngram = (ENGINE.acceptance(recorded(f"metrics-{arm}.txt")) for arm in ("eagle3", "ngram"))
    for arm, counted in (("eagle3", eagle3), ("ngram", ngram)):
        timings = json.loads(recorded(f"chat-{arm}.json"))["timings"]   # the one request says the same of itself
        assert (counted.drafted, counted.accepted) == (timings["draft_n"], timings["draft_n_accepted"])
        assert sum(counted.per_position) == counted.accepted
    assert len(eagle3.per_position) == 3 and len(ngram.per_position) == 12


def test_the_accept_length_is_the_one_the_server_logs():
    logged = re.findall(r"mean len = +([0-9.]+)", recorded("start-eagle3.log"))[0]
    assert f"{ENGINE.acceptance(recorded('metrics-eagle3.txt')).accept_length:.2f}" == logged


@pytest.mark.parametrize("page", ["metrics-baseline.txt", "metrics-eagle3-before.txt", "metrics-ngram-before.txt"])
def test_nothing_drafted_yet_counts_zero(page):
    assert ENGINE.acceptance(recorded(page)) == Acceptance(0, 0, 0, ())
    assert ENGINE.acceptance(recorded(page)).accept_length is None


@pytest.mark.parametrize("page", ["", "not a metrics page", "vllm:spec_decode_num_drafts_total 3\n"])
def test_a_page_without_the_counters_is_no_acceptance(page):
    assert ENGINE.acceptance(page) is None


def test_tokens_are_counted_from_usage_streamed_or_not():
    last = [json.loads(line[6:]) for line in recorded("stream-eagle3.txt").splitlines()
            if line.startswith("data: {")][-1]
    assert ENGINE.generated(json.loads(recorded("chat-eagle3.json"))) == ENGINE.generated(last) == 48


@pytest.mark.parametrize("answer", [{}, [], {"error": {"code": 503}}, {"usage": None},
                                    {"usage": {"completion_tokens": "x"}}])
def test_what_is_no_answer_holds_no_tokens(answer):
    assert ENGINE.generated(answer) == 0


def test_a_loading_server_is_not_an_answer():
    loading = json.loads(recorded("health-loading.json"))
    assert loading["error"]["code"] == 503 and ENGINE.generated(loading) == 0
    assert json.loads(recorded("health.json")) == {"status": "ok"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_is_greedy_and_independent_of_earlier_ones(stream):
    path, body = ENGINE.generation("hello", 7, stream)
    assert path == "/v1/chat/completions" and body["stream"] is stream
    assert (body["temperature"], body["cache_prompt"], body["max_tokens"]) == (0, False, 7)
    assert body.get("stream_options") == ({"include_usage": True} if stream else None)


def test_recorded_arms_wrote_the_same_text():
    texts = {arm: json.loads(recorded(f"chat-{arm}.json"))["choices"][0]["message"]["content"]
             for arm in ("baseline", "eagle3", "ngram")}
    assert len(set(texts.values())) == 1 and texts["baseline"]


# ---------------------------------------------------------------------- logs

@pytest.mark.parametrize("arm, drafter", [("baseline", False), ("eagle3", True), ("ngram", False)])
def test_a_start_goes_through_the_phases_in_their_order(arm, drafter):
    lines = recorded(f"start-{arm}.log").splitlines()
    first = {p.id: next((i for i, line in enumerate(lines) if re.search(p.pattern, line)), None)
             for p in ENGINE.phases}
    assert (first.pop("load-drafter") is not None) is drafter
    assert None not in first.values()
    assert list(first.values()) == sorted(first.values())


def test_log_lines_carry_the_seconds_since_the_start():
    lines = recorded("start-eagle3.log").splitlines()
    times = [t for t in map(ENGINE.elapsed_s, lines) if t is not None]
    assert times == sorted(times) and 0 < times[-1] < 60
    assert ENGINE.elapsed_s("1.02.003.004 I srv  x") == 62.003004
    assert ENGINE.elapsed_s(lines[0]) is None


CAUSES = {"truncated-header": "truncated"}


@pytest.mark.parametrize("log", sorted(RECORDED.glob("fail-*.log")), ids=lambda p: p.stem)
def test_a_provoked_failure_is_told_by_its_cause(log):
    text = log.read_text()
    told = next(f for f in ENGINE.failures if re.search(f.pattern, text))
    name = log.stem.removeprefix("fail-")
    assert told.id == CAUSES.get(name, name)
    assert " Fix: " in told.meaning


@pytest.mark.parametrize("log", ["start-baseline.log", "start-eagle3.log", "start-ngram.log"])
def test_a_healthy_log_shows_no_failure(log):
    assert not [f.id for f in ENGINE.failures if re.search(f.pattern, recorded(log))]


# ---------------------------------------------------------------- the launcher

def launch(*words, wheel=""):
    return subprocess.run([sys.executable, LAUNCHER, *map(str, words)], capture_output=True, text=True, timeout=20,
                          env={"PYTHONPATH": wheel, "PATH": "/usr/bin:/bin"})


WHEEL = '''
class Any:
    def __init__(self): self.__dict__["kept"] = {}
    def __getattr__(self, name): return self.__dict__["kept"].setdefault(name, Any())
class common_speculative_type:
    __members__ = {"COMMON_SPECULATIVE_TYPE_" + n: n for n in ("NONE", "DRAFT_EAGLE3", "NGRAM_SIMPLE", "COUNT")}
CommonParams, __version__ = Any, "0-test"
def Server(params):
    if SPECULATIVE is None:
        raise RuntimeError("Failed to init server")
    import http.server, json, threading
    class Slots(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([{"speculative": SPECULATIVE}]).encode())
        def log_message(self, *_): pass
    server = http.server.HTTPServer(("127.0.0.1", params.port), Slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("listening", flush=True)
    return server
'''


@pytest.fixture
def wheel(tmp_path):
    """A stand-in for the wheel whose server cannot start, or answers only /slots: the launcher's own side is tested."""
    (tmp_path / "xllamacpp.py").write_text("SPECULATIVE = None\n" + WHEEL)
    (tmp_path / "model.gguf").write_bytes(b"GGUF and more")
    (tmp_path / "notes.gguf").write_bytes(b"# notes")
    return tmp_path


def test_an_interpreter_without_the_wheel_is_told_in_one_line():
    done = launch("-m", "x.gguf")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("error: this interpreter has no usable xllamacpp")


@pytest.mark.parametrize("words, code, says", [
    (("-m", "gone.gguf"), 1, r"^error: cannot read the model: No such file"),
    (("-m", "notes.gguf"), 1, r"^error: the model is not a GGUF file"),
    (("-m", "model.gguf", "-md", "notes.gguf"), 1, r"^error: the draft model is not a GGUF file"),
    (("-m", "model.gguf", "--spec-type", "eagle"), 2, r"^error: unknown --spec-type 'eagle'; .*draft-eagle3"),
    (("-m", "model.gguf", "--spec-type", "draft-eagle3"), 2, r"^error: .* needs --model-draft"),
    (("-m", "model.gguf", "--host", "192.0.2.7"), 1, r"^error: cannot listen on 192.0.2.7:"),
    (("-m", "model.gguf", "--port", "0"), 2, r""),
    (("-m", "model.gguf", "--port", "FREE"), 1, r"^error: llama.cpp did not start \(Failed to init server\)"),
])
def test_what_cannot_start_ends_with_one_line_and_a_status(wheel, words, code, says):
    words = [wheel / w if w.endswith(".gguf") else free_port() if w == "FREE" else w for w in words]
    done = launch(*words, wheel=str(wheel))
    assert done.returncode == code, done.stdout + done.stderr
    assert re.search(says, (done.stdout.splitlines() or [""])[-1])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def test_serving_without_the_drafter_that_was_asked_for_is_a_failure(wheel):
    (wheel / "xllamacpp.py").write_text("SPECULATIVE = False\n" + WHEEL)
    model = wheel / "model.gguf"
    done = launch("-m", model, "-md", model, "--spec-type", "draft-eagle3", "--port", free_port(), wheel=str(wheel))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("error: --spec-type draft-eagle3 is not in force")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_served_model_ends_well_when_asked_to(wheel, number):
    (wheel / "xllamacpp.py").write_text("SPECULATIVE = True\n" + WHEEL)
    served = subprocess.Popen([sys.executable, LAUNCHER, "-m", wheel / "model.gguf", "--port", str(free_port()),
                               "--spec-type", "ngram-simple"], stdout=subprocess.PIPE, text=True,
                              env={"PYTHONPATH": str(wheel)})
    try:
        assert next(line for line in served.stdout if line.startswith("serving"))
        served.send_signal(number)
        assert served.wait(10) == 0
    finally:
        served.kill()
        served.stdout.close()


def test_a_busy_port_is_named(wheel):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = launch("-m", wheel / "model.gguf", "--port", port, wheel=str(wheel))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == f"error: cannot listen on 127.0.0.1:{port}: Address already in use"
