"""Somebody's service as an experiment: units, commands and answers in; nothing secret, nothing unexplained out."""

import inspect
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import standin
import yaml
from conftest import fuzzing
from doubles import LocalHost
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit import project
from kit.adopting import unchanged
from kit.attach import Found, Process, adopted
from kit.attach.launched import launched
from kit.attach.unitfile import parse, seconds
from kit.engines import service
from kit.errors import CommandTimeout, KitError, PlanError, SpecError
from kit.facts import Holder
from kit.following import recent, state
from kit.lint import lint
from kit.masking import masked, masked_words, secret_name
from kit.planning import plan
from kit.seams import Http, Supervisor, Unit
from kit.spec import Experiment
from kit.supervisors import supervisor
from kit.supervisors.foreign import for_jobs
from kit.supervisors.systemd import text as unit_text
from kit.surveys import Survey

FIXTURES = Path(__file__).parent / "fixtures"
K26 = (FIXTURES / "adopt" / "sglang-k26-eagle3.service").read_text()
TREE = json.loads((FIXTURES / "adopt" / "sglang-0.5.12-tree.json").read_text())
NAME = "sglang-k26-eagle3.service"
SGLANG = ("/v/bin/python", "-m", "sglang.launch_server", "--model-path", "/m/target")


def from_unit(text=K26, name=NAME, version="0.5.12.post1", **more):
    return adopted(Found("ct200", "/root/.specbook", f"system/{name}", parse(text, name), version=version, user="root",
                         **more))


def from_words(*words, environ=None, version="0.5.12.post1", cwd="/", **more):
    process = Process(4242, 98765, words, {} if environ is None else environ, cwd, "bob")
    return adopted(Found("gpu-7", "/r", "pid/4242-98765", process=process, version=version, **more))


def ids(report, *verdicts):
    return {f.id for f in report if not verdicts or f.verdict in verdicts}


# ------------------------------------------------------------- the motivating unit

def test_the_motivating_unit_becomes_an_experiment():
    exp = from_unit().experiment
    assert (exp.name, exp.engine.python, exp.engine.threads) == ("sglang-k26-eagle3", "/opt/sglang/bin/python", 8)
    assert (exp.target.source, exp.drafter.source) == ("host:/models/Kimi-K2.6", "host:/models/kimi-k2.6-eagle3")
    assert (exp.serve.bind, exp.serve.port, exp.serve.tp, exp.serve.context, exp.serve.slots, exp.serve.mem_fraction) \
        == ("0.0.0.0", 30001, 8, 32768, 64, 0.88)
    assert exp.engine.env["NCCL_PROTO"] == "LL" and exp.engine.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert exp.host.supervisor == f"foreign:system/{NAME}" and exp.host.run_as == "root"


def test_its_speculation_fits_no_arm_and_lint_says_what_is_missing():
    it = from_unit()
    assert it.experiment.spec.algorithm == "none" and "adopt-by-hand" in ids(it.report)
    assert "--speculative-num-draft-tokens" in it.experiment.engine.args
    assert ids(it.lint, "fail") == {"spec-steps-missing"}
    assert {"open-to-the-world", "runs-as-root", "graphs-off"} <= ids(it.lint, "warn")


def flags_of(argv):
    """{flag: value} of a command whose flags are spelled out."""
    words = list(argv[argv.index("sglang.launch_server") + 1:])
    out = {}
    while words:
        flag = words.pop(0)
        out[flag] = words.pop(0) if words and not words[0].startswith("--") else True
    return out


def test_it_renders_again_equal_but_for_differences_that_are_explained():
    it = from_unit()
    unit = service(it.experiment, "/root/.specbook")
    before, after = flags_of(parse(K26).commands[0]), flags_of(unit.argv)
    assert {k: v for k, v in after.items() if before.get(k) != v} == {
        "--served-model-name": "sglang-k26-eagle3", "--enable-metrics": True}
    assert not before.keys() - after.keys()
    theirs, mine = parse(K26), parse(unit_text(unit, "/root/.specbook", "root", "system"))
    assert {k: v for k, v in mine.env.items() if k in theirs.env} == theirs.env
    differ = {k.partition(".")[2] for k in theirs.settings.keys() | mine.settings.keys()
              if theirs.settings.get(k) != mine.settings.get(k) and not k.startswith("X-")}
    named = differ - {"ExecStart", "Environment"} | {"--served-model-name", "--enable-metrics"} \
        | mine.env.keys() - theirs.env.keys()
    assert ids(it.differences) == named
    assert all(f.why for f in it.differences) and not ids(it.differences, "unknown", "fail")


def test_mended_it_is_an_arm_and_renders_again_the_same():
    mended = K26.replace("draft-tokens 3", "draft-tokens 4 --speculative-num-steps=3").replace("topk 4", "topk 1")
    it = from_unit(mended)
    assert (it.experiment.spec.algorithm, it.experiment.spec.steps, it.experiment.unit) == \
        ("eagle3", 3, "sglang-k26-eagle3-eagle3")
    assert not [w for w in it.experiment.engine.args if w.startswith("--spec")]
    assert ids(it.lint, "fail") == set() and not ids(it.differences, "unknown", "fail")


# --------------------------------------------------------------------- unit files

@pytest.mark.parametrize("case", yaml.safe_load((FIXTURES / "adopt" / "units.yaml").read_text()),
                         ids=lambda c: c["what"])
def test_a_unit_says_what_systemd_starts(case):
    unit = parse(case["text"], case.get("name", "x.service"))
    assert unit.commands == (tuple(case["argv"]),) and unit.env == case.get("env", {})
    assert unit.unknown == ()


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12),
                min_size=1, max_size=6), st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), st.text(
                    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12), max_size=3))
@fuzzing(150)
def test_what_the_kit_writes_into_a_unit_it_reads_back(argv, env):
    unit = Unit("a", ("/bin/x", *argv), env)
    back = parse(unit_text(unit, "/r", "u", "system"))
    assert back.commands == (unit.argv,) and back.env == env


def test_environment_files_are_named_with_what_only_the_host_knows():
    unit = parse("[Service]\nEnvironmentFile=-/etc/%p.env\nEnvironmentFile=/etc/b\nExecStart=/bin/x %H $UNSET\n",
                 "a.service")
    assert (unit.env_files, unit.unknown) == (("-/etc/a.env", "/etc/b"), ("%H", "$UNSET"))


def test_a_quote_that_is_not_closed_is_refused_as_systemd_would():
    with pytest.raises(SpecError, match="not closed"):
        parse('[Service]\nExecStart=/bin/x "a b\n', "a.service")


@pytest.mark.parametrize("span, is_s", [("90", 90), ("1min 30s", 90), ("2h", 7200), ("infinity", None), ("", None),
                                        ("soon", None), ("500ms", 0.5)])
def test_time_spans_are_seconds(span, is_s):
    assert seconds(span) == is_s


@pytest.mark.parametrize("settings, field, value", [
    ("TimeoutStopSec=5min", "stop_within_s", 300), ("", "stop_within_s", 90), ("Restart=always", "restart", True),
    ("Restart=no", "restart", False), ("TimeoutStopSec=infinity", "stop_within_s", 90),
])
def test_how_the_unit_is_kept_is_kept(settings, field, value):
    exp = from_unit(K26.replace("Restart=no", settings)).experiment
    assert getattr(exp.serve, field) == value


# ------------------------------------------------------------------ commands and flags

@pytest.mark.parametrize("command, engine, python, launch", [
    ("/v/bin/python -u -m sglang.launch_server --port 1", "sglang", "/v/bin/python", {}),
    ("/usr/bin/numactl --cpunodebind=0 -m 0,1 /v/bin/python3.12 -m sglang.launch_server --port 1", "sglang",
     "/v/bin/python3.12", {"numactl": {"cpunodebind": "0", "membind": "0,1"}}),
    ("/opt/conda/bin/conda run -n sg --no-capture-output python -m sglang.launch_server --port 1", "sglang", "python",
     {"conda": "/opt/conda/envs/sg"}),
    ("/v/bin/python3 /v/bin/vllm serve m --port 1", "vllm", "/v/bin/python3", {}),
    ("/v/bin/vllm serve m --port 1", "vllm", "/v/bin/python", {}),
    ("/usr/local/bin/llama-server -m x.gguf --port 1", "llamacpp", "", {}),
    ("env A=b /v/bin/python -m sglang.launch_server --port 1", "sglang", "/v/bin/python", {}),
])
def test_a_command_is_taken_apart(command, engine, python, launch):
    it = launched(shlex.split(command))
    assert (it.engine, it.python, it.launch, it.flags[-2:]) == (engine, python, launch, ("--port", "1"))


def test_a_shell_around_it_is_read_and_told():
    it = from_words("/bin/bash", "-lc", "source /v/bin/activate && exec python -m sglang.launch_server "
                    "--model-path /m/t --port 30007")
    assert (it.experiment.engine.python, it.experiment.serve.port) == ("/v/bin/python", 30007)
    assert "adopt-wrapper" in ids(it.report)


@pytest.mark.parametrize("prefix", ["/usr/bin/numactl --interleave=all", "numactl -N netdev:eth0", "taskset -c 0-7"])
def test_a_prefix_that_no_field_holds_is_told_and_not_carried(prefix):
    it = from_words(*shlex.split(prefix), *SGLANG)
    assert it.experiment.engine.launch is None and [f for f in it.report if prefix in f.what]


def test_a_prefix_of_the_kits_own_comes_back_typed():
    exp = from_words(*SGLANG).experiment.with_(**{"engine.launch": {"conda": "/opt/conda/envs/x", "numactl":
                                                                    {"cpunodebind": "0"}}})
    again = from_words(*service(exp, "/r").argv).experiment
    assert again.engine.launch == exp.engine.launch and again.engine.python == exp.engine.python


def test_flags_are_known_by_prefix_alias_and_equals_sign_and_the_last_counts():
    exp = from_words(*SGLANG[:3], "--model", "/m/a", "--tp", "2", "--tp-size=4", "--mem-frac=0.7", "--context-len",
                     "8192", "--max-running", "16", "--port=30009").experiment
    assert (exp.target.ref, exp.serve.tp, exp.serve.mem_fraction, exp.serve.context, exp.serve.slots, exp.serve.port) \
        == ("/m/a", 4, 0.7, 8192, 16, 30009)
    assert exp.engine.args == ()


def test_what_is_not_known_stays_as_it_was_written():
    left = ("--frobnicate", "1", "2", "--trust-remote-code", "--json-model-override-args", '{"a": 1}', "--lora-paths",
            "a=/x", "b=/y")
    assert from_words(*SGLANG, *left).experiment.engine.args == left


@pytest.mark.parametrize("flags, arm", [
    ("EAGLE3 3 1 4", {"algorithm": "eagle3", "steps": 3, "topk": 1, "draft_tokens": None}),
    ("EAGLE3 4 4 8", {"algorithm": "eagle3", "steps": 4, "topk": 4, "draft_tokens": 7}),
    ("eagle 2 1 3", {"algorithm": "eagle", "steps": 2, "topk": 1, "draft_tokens": None}),
    ("STANDALONE 2 1 3", {"algorithm": "draft", "steps": 2, "topk": 1, "draft_tokens": None}),
    ("EAGLE3 3 1 9", None), ("EAGLE3 3 4", None), ("LOOKAHEAD 3 1 4", None),
])
def test_speculation_is_an_arm_only_where_it_comes_back_the_same(flags, arm):
    names = ("--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk",
             "--speculative-num-draft-tokens")
    words = [w for pair in zip(names, flags.split(), strict=False) for w in pair]
    it = from_words(*SGLANG, *words, "--speculative-draft-model-path", "/m/d")
    spec = it.experiment.spec
    if arm is None:
        assert spec.algorithm == "none" and it.experiment.engine.args[-2:] == ("--speculative-draft-model-path", "/m/d")
        assert "adopt-by-hand" in ids(it.report) and it.experiment.arm_name == "as-found"
    else:
        assert {k: getattr(spec, k) for k in arm} == arm and it.experiment.engine.args == ()
    assert not ids(it.differences, "unknown", "fail")


FIELD = [c for c in yaml.safe_load((FIXTURES / "lint" / "field-cases.yaml").read_text())
         if c["engine"].startswith("sglang") and isinstance(c.get("flags"), str)]


@pytest.mark.parametrize("case", FIELD, ids=lambda c: c["id"])
def test_commands_people_really_ran_render_again_with_every_difference_explained(case):
    words = launched(["python", "-m", "sglang.launch_server", *shlex.split(case["flags"])]).flags
    if not any(w.startswith("--model") for w in words):
        words = ("--model-path", "/m/target", *words)
    try:
        it = from_words(*SGLANG[:3], *words, environ=case.get("env") or {}, version=case["engine"].split("==")[1])
    except SpecError as e:
        assert "port" in e.what or "model" in e.what
        return
    assert {f.what for f in it.differences if f.id != "render" and f.verdict in ("unknown", "fail")} == set()
    judged = [lint("sglang", case["engine"].split("==")[1], [*SGLANG[:3], *argv], case.get("env"))
              for argv in (words, flags_after(service(it.experiment, "/r").argv))] if renders(it) else []
    assert not judged or ids(judged[0], "fail") == ids(judged[1], "fail"), "the kit's command is judged as theirs"


def renders(it):
    return "render" not in ids(it.differences, "unknown")


def flags_after(argv):
    return list(argv[argv.index("sglang.launch_server") + 1:])


def test_a_port_below_1024_is_refused_and_another_field_out_of_bounds_stays_by_hand():
    with pytest.raises(SpecError, match="port 80"):
        from_words(*SGLANG, "--port", "80")
    it = from_words(*SGLANG, "--max-running-requests", "5000")
    assert it.experiment.engine.args == ("--max-running-requests", "5000") and "adopt-by-hand" in ids(it.report)


@pytest.mark.parametrize("path, cwd, source", [
    ("/m/x", "/", "host:/m/x"), ("./x", "/srv/models", "host:/srv/models/x"), ("x/y/z", "/srv", "host:/srv/x/y/z"),
    ("org/name", "/srv", "hf:org/name@main"),
])
def test_a_model_is_a_path_there_or_a_repository(path, cwd, source):
    assert from_words(*SGLANG[:3], "--model-path", path, cwd=cwd).experiment.target.source == source


def test_llamacpp_and_vllm_are_read_as_far_as_a_config_goes():
    llama = from_words("/r/engines/x/bin/python", "/r/bin/llamacpp_server.py", "-m", "/m/t.gguf", "-c", "8192", "-np",
                       "2", "--port", "8100", "-md", "/m/d.gguf", "--spec-type", "draft-eagle3", "--spec-draft-n-max",
                       "3", "-t", "4", version=None)
    exp = llama.experiment
    assert (exp.engine.name, exp.serve.context, exp.serve.slots, exp.engine.threads) == ("llamacpp", 4096, 2, 4)
    assert (exp.spec.algorithm, exp.spec.steps) == ("eagle3", 3)
    assert exp.engine.args == () and not ids(llama.differences, "unknown", "fail")
    other = from_words("/v/bin/vllm", "serve", "/m/t", "--max-model-len", "8192", "-tp", "2", "--speculative-config",
                       '{"method": "eagle3", "model": "/m/d", "num_speculative_tokens": 3}', version="0.22.1")
    exp = other.experiment
    assert (exp.serve.port, exp.serve.tp, exp.spec.algorithm, exp.spec.drafts, exp.drafter.ref) == \
        (8000, 2, "eagle3", 3, "/m/d")
    assert ids(other.differences) == {"render"} and "vllm" in repr(other.differences)
    assert other.lint.title == "vllm==0.22.1"


DOCKER = ("/usr/bin/docker", "run", "--rm", "--gpus", "all", "-p", "8000:30000", "-e", "HF_TOKEN=sekret-word",
          "lmsysorg/sglang:v0.5.12", "python3")


@pytest.mark.parametrize("found", [
    Found("h", "/r", "system/x.service", process=Process(1, 2, (*DOCKER, *SGLANG[1:]))),
    Found("h", "/r", "pid/1-2", process=Process(1, 2, SGLANG, container=True)),
], ids=["its runtime", "from inside"])
def test_of_a_container_it_is_said_that_its_paths_are_not_the_hosts(found):
    it = adopted(found)
    assert "adopt-container" in ids(it.report) and "sekret-word" not in repr(it) + it.command
    assert "adopt-container" not in ids(from_words(*SGLANG).report)


def test_without_a_release_its_flags_are_judged_by_the_newest_that_was_read():
    words = (*SGLANG, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/m/d",
             "--speculative-num-draft-tokens", "4", "--speculative-eagle-topk", "1")
    assert "spec-steps-missing" in ids(from_words(*words, version=None).lint, "fail")


@pytest.mark.parametrize("argv", [(), ("",), ("/bin/sh",), ("sh", "-c")])
def test_a_process_that_tells_nothing_is_no_server(argv):
    with pytest.raises(SpecError):
        from_words(*argv)


def test_what_is_no_server_is_named():
    with pytest.raises(SpecError, match="no inference server in: /usr/bin/nginx"):
        from_words("/usr/bin/nginx", "-g", "daemon off;")


# ------------------------------------------------------------ the server's own answer

def test_an_answer_alone_gives_the_same_arm_as_the_command_behind_it():
    answer = adopted(Found("h", "/r", "port/30001", info=TREE["/server_info"], served=TREE["/v1/models"], port=30001))
    command = from_words(*SGLANG[:3], *TREE["args"], port=30001)
    for field in ("spec", "target", "drafter"):
        assert getattr(answer.experiment, field) == getattr(command.experiment, field)
    assert answer.experiment.serve == command.experiment.serve
    assert {"adopt-from-answer", "adopt-python"} <= ids(answer.report)


def test_what_the_command_leaves_open_comes_from_the_answer():
    exp = from_words(*SGLANG, version=None, info=TREE["/server_info"], served=TREE["/v1/models"]).experiment
    assert (exp.engine.version, exp.serve.context, exp.serve.slots) == ("0.5.12.post1", 2048, 64)
    assert {"adopt-context", "adopt-slots", "adopt-version"} <= ids(from_words(*SGLANG, version=None).report)


def test_what_the_server_made_of_its_flags_is_told():
    it = from_words(*SGLANG, "--speculative-num-draft-tokens", "4", info=TREE["/server_info"])
    (said,) = [f for f in it.report if f.id == "adopt-resolved"]
    assert said.what == "--speculative-num-draft-tokens 4 was asked for; the server runs with 8"


def test_llamacpps_answer_is_read():
    props = {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4, "model_path": "/m/x.gguf"}
    exp = adopted(Found("h", "/r", "port/8100", info=props, port=8100)).experiment
    assert (exp.engine.name, exp.target.ref, exp.serve.slots, exp.serve.context, exp.serve.port) == \
        ("llamacpp", "/m/x.gguf", 4, 2048, 8100)


# ------------------------------------------------------------------------- secrets

MODEL = str(Path(__file__).parent.parent / "data" / "models" / "micro-llama" / "target")
KEYS = ("sekret-word", "hf_abcdefghijkl", "sk-abcdefghijkl", "pa55", "two words")
SECRET_UNIT = K26.replace("Environment=OMP", 'Environment="SERVICE_PASSWORD=two words" HF_TOKEN=hf_abcdefghijkl '
                          "DB_PASS=pa55\nEnvironment=NOTE=sk-abcdefghijkl\nEnvironmentFile=/etc/sglang/keys\n"
                          "Environment=OMP").replace("--port", "--api-key sekret-word --port")


def test_no_secret_of_a_unit_is_shown_or_kept():
    it = from_unit(SECRET_UNIT, info={**TREE["/server_info"], "api_key": "sekret-word"})
    everything = "\n".join([repr(it), it._repr_html_(), it.command, repr(it.experiment), repr(it.lint),
                            it.experiment.model_dump_json(), it.report.to_json(), it.differences.to_json(),
                            str(vars(it)), unit_text(service(it.experiment, "/r"), "/r", "u", "system")])
    assert not [key for key in KEYS if key in everything]
    assert set(it.masked) == {"SERVICE_PASSWORD", "HF_TOKEN", "DB_PASS", "NOTE", "--api-key"}
    assert {"adopt-key", "adopt-secret", "adopt-environment-file"} <= ids(it.report)
    assert "key-on-argv" in ids(it.lint) and "secret-in-environment" in ids(it.lint)
    assert set(it.experiment.engine.secrets) == {"SERVICE_PASSWORD", "HF_TOKEN", "DB_PASS", "NOTE"}


@pytest.mark.parametrize("words", [("--api-key", "sekret-word"), ("--api-key=sekret-word",), ("--api-k", "sekret-word"),
                                   ("--admin-api-key", "sekret-word"), ("--extra", "Bearer hf_abcdefghijkl"),
                                   ("--json-model-override-args", '{"token": "sekret-word"}')])
def test_a_key_on_the_command_line_is_named_and_not_carried(words):
    it = from_words(*SGLANG, *words)
    assert it.experiment.engine.args == () and len(it.masked) == 1
    assert "adopt-key" in ids(it.report) and not ids(it.differences, "unknown", "fail")


@pytest.mark.parametrize("line, shown", [
    ("server_args=ServerArgs(model_path='/m', api_key='a b', port=1)", "api_key='***'"),
    ("Using HF_TOKEN=hf_abcdefghijkl now", "HF_TOKEN=***"), ("Authorization: Bearer abc", "Bearer ***"),
    ("run --api-key abc --port 1", "--api-key *** --port 1"), ('{"token": "abc"}', '{"token": "***"}'),
    ("https://bob:abc@example.org/x", "https://***@example.org/x"),
])
def test_a_line_is_shown_without_its_secret(line, shown):
    assert shown in masked(line) and "abc" not in masked(line) and "a b" not in masked(line)


@pytest.mark.parametrize("line", [
    "Decode batch, #running-req: 1, #token: 40, token usage: 0.00, gen throughput (token/s): 12.3",
    "api_key=None, tokenizer_path='/m', max_new_tokens=16", "KV Cache is allocated. #tokens: 929458",
])
def test_a_line_without_secrets_is_shown_as_it_is(line):
    assert masked(line) == line


@pytest.mark.parametrize("text", ["A", "KEY", "a", "-", "--a", "key='", "://a:", "\"KEY=\\", "'token=", "token ",
                                  "hf_"])
def test_a_key_behind_a_very_long_line_is_masked_too(text):
    """A pattern that tries every part of such a line against every other would not come to its end."""
    assert "sekret-word" not in masked(text * (300_000 // len(text)) + " --api-key sekret-word")


def test_names_of_secrets_are_known_and_words_masked():
    assert all(map(secret_name, ("HF_TOKEN", "OPENAI_API_KEY", "PGPASSWORD", "db_pass", "SECRET", "KEY_FILE")))
    assert not any(map(secret_name, ("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PATH", "NCCL_ALGO", "PASSAGE")))
    assert masked_words(["--api-key", "a", "--hf-token=b", "HF_TOKEN=c", "--port", "1"]) == \
        ["--api-key", "***", "--hf-token=***", "HF_TOKEN=***", "--port", "1"]


# ---------------------------------------------------------------- the supervisor

FOREIGN = supervisor("foreign:system/x.service")


def test_a_foreign_supervisor_offers_the_whole_protocol_and_refuses_every_change():
    for name, wanted in inspect.getmembers(Supervisor, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(getattr(FOREIGN, name)).parameters) == \
                list(inspect.signature(wanted).parameters)[1:], name
    unit = Unit("x", ("/x",))
    for refused in (lambda: FOREIGN.start("x", "/r", "python3"), lambda: FOREIGN.stop("x", "/r", "python3", 1),
                    lambda: FOREIGN.remove("x", "/r", "python3"), lambda: FOREIGN.install(unit, "/r", "u")):
        with pytest.raises(PlanError, match="x.service is not ours"):
            refused()


@pytest.mark.parametrize("name", ["foreign", "foreign:", "foreign:x.service", "foreign:system/../x.service",
                                  "foreign:system/x; rm", "foreign:pid/1", "foreign:port/x", "process:pid/1-2"])
def test_what_names_no_service_is_refused(name):
    with pytest.raises(SpecError):
        supervisor(name)


def test_only_jobs_of_an_adopted_experiment_are_kept_by_the_kit():
    exp = from_words(*SGLANG).experiment
    assert for_jobs(exp).host.supervisor == "process"
    mine = Experiment.load("configs/micro.yaml")
    assert for_jobs(mine) is mine


# ---------------------------------------------------------------- on a host

@pytest.fixture
def local(tmp_path):
    return LocalHost(tmp_path / "root")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def running(tmp_path, *flags, env=None, command=None, port=None):
    """The stand-in for SGLang as somebody's process, up and answering; its pid and port."""
    command, port = command or [standin.install(tmp_path / "venv")], port or free_port()
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "-m", "sglang.launch_server", "--model-path", MODEL, "--port", str(port), *flags], stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "STANDIN_SPEED": "0", "STANDIN_PYTHON": sys.executable, **(env or {})})
    try:
        host, end = LocalHost(tmp_path / "looking"), time.monotonic() + 20
        while host.http(port, "/health").status not in (200, 503):
            assert process.poll() is None and time.monotonic() < end, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.05)
        yield process.pid, port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_running_process_is_adopted_by_pid_and_by_url(tmp_path, local):
    with running(tmp_path, "--context-length", "2048", "--max-running-requests", "8", env={"NCCL_ALGO": "Ring"}) \
            as (pid, port):
        by_pid = kit.adopt(local, pid=pid)
        assert len(local.ran) == 1, "the rest are answers of the server"
        by_url = kit.adopt(local, url=f"http://127.0.0.1:{port}")
        assert by_pid.experiment == by_url.experiment and (by_pid.pid, by_pid.ours) == (pid, False)
        exp = by_pid.experiment
        assert (exp.serve.port, exp.serve.context, exp.serve.slots) == (port, 2048, 8)
        assert (exp.engine.version, exp.engine.env["NCCL_ALGO"]) == ("0.5.12.post1", "Ring")
        assert not os.listdir(local.root), "nothing was written on the host"
        assert unchanged(exp, local) == ""
        assert "serve.context: 1024" in unchanged(exp.with_(**{"serve.context": 1024}), local)
        now = state(local, supervisor(exp.host.supervisor), "python3", exp.unit)
        assert (now.active, now.pid, now.name) == ("active", pid, exp.unit)
    assert not state(local, supervisor(exp.host.supervisor), "python3", exp.unit).running
    with pytest.raises(PlanError, match="no process"):
        unchanged(exp, local)


def test_its_log_is_followed_where_its_output_is_a_file_and_keys_in_it_are_masked(tmp_path, local):
    with running(tmp_path, "--api-key", "sekret-word") as (pid, _):
        exp = kit.adopt(local, pid=pid).experiment
        lines = recent(local, supervisor(exp.host.supervisor), "python3", exp.unit)
        text = (tmp_path / "server.log").read_text().splitlines()
        assert [len(a.text) > 0 for a in lines] == [len(b) > 0 for b in text]
        assert "sekret-word" not in "".join(line.text for line in lines)
        cut = len(lines) // 2
        rest = recent(local, supervisor(exp.host.supervisor), "python3", exp.unit, lines[cut].cursor)
        assert [line.text for line in rest] == [line.text for line in lines[cut + 1:]]


def test_it_is_benchmarked_and_still_runs(tmp_path, local, monkeypatch):
    for name in ("configs", "data/prompts"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(project.root() / name)
    monkeypatch.chdir(tmp_path)
    with running(tmp_path, "--context-length", "2048", "--max-running-requests", "8", "--enable-metrics") as (pid, _):
        exp = kit.adopt(local, pid=pid).experiment.with_(**{
            "bench.prompts": 2, "bench.output_tokens": 8, "bench.prompt_sets": ("chat",), "bench.warmup": 0,
            "bench.concurrency": (1,)})
        run = kit.bench(exp, local).result(60)
        assert run.complete and run.meta["experiment"]["host"]["supervisor"].startswith(f"foreign:pid/{pid}-")
        with pytest.raises(PlanError, match="other settings"):
            kit.bench(exp.with_(**{"serve.context": 1024}), local).result(60)
        kit.apply(kit.plan(exp, kit.survey(exp, local), "removed"), local).result(60)
        assert Path(f"/proc/{pid}").exists() and not [p for p in Path(local.root).rglob("*") if not p.is_dir()]


def test_a_server_that_a_script_starts_is_found_below_it(tmp_path, local):
    python, port = standin.install(tmp_path / "venv"), free_port()
    script = tmp_path / "start it.sh"
    script.write_text('"$@"; exit $?\n')
    with running(tmp_path, command=["sh", str(script), python], port=port) as (pid, _):
        it = kit.adopt(local, pid=pid)
        assert (it.experiment.serve.port, it.experiment.target.ref) == (port, MODEL)
        assert it.pid != pid and unchanged(it.experiment, local) == ""


def test_behind_a_port_that_passes_on_the_server_is_known_by_its_answer(tmp_path, local):
    """As docker-proxy does for a container."""
    with running(tmp_path, "--context-length", "2048") as (_, port), passing_on(port) as front:
        it = kit.adopt(local, url=f"http://127.0.0.1:{front}")
        assert (it.pid, it.experiment.host.supervisor) == (None, f"foreign:port/{front}")
        assert (it.experiment.serve.port, it.experiment.serve.context) == (front, 2048)
        assert "adopt-from-answer" in ids(it.report)


@contextmanager
def passing_on(port):
    """A process of its own that answers on another port what this one answers."""
    front = free_port()
    program = ("import http.server as s, sys, urllib.request as u\n"
               "class H(s.BaseHTTPRequestHandler):\n"
               "    def do_GET(self):\n"
               "        body = u.urlopen(f'http://127.0.0.1:{sys.argv[1]}{self.path}').read()\n"
               "        self.send_response(200), self.end_headers(), self.wfile.write(body)\n"
               "s.HTTPServer(('127.0.0.1', int(sys.argv[2])), H).serve_forever()\n")
    process = subprocess.Popen([sys.executable, "-c", program, str(port), str(front)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while LocalHost("/tmp").http(front, "/health").status != 200:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield front
    finally:
        process.kill()
        process.wait()


def test_bytes_that_are_no_utf_8_are_shown_and_said(tmp_path, local):
    with running(tmp_path, "--chat-template", b"/x/\xff", env={"NCCL_TOPO_FILE": b"/t/\xe9"}) as (pid, _):
        it = kit.adopt(local, pid=pid)
        exp = it.experiment
        assert exp.engine.args == ("--chat-template", "/x/\\xff") and exp.engine.env["NCCL_TOPO_FILE"] == "/t/\\xe9"
        assert "adopt-bytes" in ids(it.report) and Experiment.model_validate_json(exp.model_dump_json()) == exp
        (repr(it) + it.command).encode()


@pytest.mark.parametrize("unit", ["sglang*", "a b", "../x", "x.service/y", "a\n", "sglang.service;ls", "é"])
def test_what_is_no_name_of_a_unit_is_refused_before_the_host_is_asked(local, unit):
    with pytest.raises(SpecError, match="no name of a service unit"):
        kit.adopt(local, unit)
    assert not local.ran


def test_an_address_is_refused_without_the_password_in_it(local):
    with pytest.raises(SpecError, match="no address") as told:
        kit.adopt(local, url="http://me:sekret-word@127.0.0.1:x")
    assert "sekret-word" not in str(told.value)


def test_no_plan_starts_what_is_not_ours():
    exp = from_words(*SGLANG).experiment
    for holder in (None, Holder(4242, "python -m sglang.launch_server")):
        now = Survey(host="h", root="/r", hostname="h", user="u", os="Linux", boot_id="b", clock_s=0,
                     python=(3, 11, 0), cpu=(2, "x"), load=0.0, mem_free_mib=1, disk_free_mib=1, gpus=(),
                     systemd=True, port=30000, port_holder=holder, shipped={}, engines={}, models={}, units=())
        with pytest.raises(PlanError, match="not ours") as told:
            plan(exp, now)
        assert "stop" not in told.value.next


@pytest.mark.parametrize("how, error, match", [
    ({"pid": 999999999}, PlanError, "no process"), ({"url": "http://127.0.0.1:1"}, PlanError, "nobody listens"),
    ({"url": "http://example.org:30000"}, SpecError, "not this host"),
    ({"url": "http://127.0.0.1:x"}, SpecError, "no address"),
    ({}, SpecError, "one of"), ({"unit": "a", "pid": 1}, SpecError, "one of"),
    ({"unit": "a", "scope": "all"}, SpecError, "scope"),
])
def test_what_cannot_be_adopted_is_said_in_three_lines(local, how, error, match):
    with pytest.raises(error, match=match) as told:
        kit.adopt(local, **how)
    assert told.value.next and isinstance(told.value, KitError)


# ------------------------------------------------------- a host whose systemd is played

SHOWN = {"Id": NAME, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success",
         "MainPID": "0", "ExecMainCode": "0", "ExecMainStatus": "0", "InvocationID": "ab" * 16,
         "NeedDaemonReload": "no", "DropInPaths": "", "NRestarts": "0"}


@pytest.fixture
def played(tmp_path):
    """A host where `systemctl show` and `journalctl` print the files show and journal; the folder they are in."""
    folder = tmp_path / "played"
    folder.mkdir()
    (folder / NAME).write_text(SECRET_UNIT)
    said = 'cat "$0.said"'
    for tool, script in {"systemctl": said, "journalctl": said, "sudo": 'shift 2; exec "$@"'}.items():
        (folder / tool).write_text(f"#!/bin/sh\n{script}\n")
        (folder / tool).chmod(0o755)
    host = LocalHost(tmp_path / "root", env={"PATH": f"{folder}:{os.environ['PATH']}"})

    def show(**changes):
        rows = {**SHOWN, "FragmentPath": str(folder / NAME), **changes}
        (folder / "systemctl.said").write_text("".join(f"{k}={v}\n" for k, v in rows.items()))
    show()
    (folder / "journalctl.said").write_text("".join(json.dumps(
        {"__CURSOR": f"s=a{n};i={n}", "__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + n), "MESSAGE": said}) + "\n"
        for n, said in enumerate(["one", list(b"bin\xffary"), None, "three\nfour", "api_key='sekret-word'"])))
    host.show = show
    return host


def test_a_unit_is_adopted_by_its_name_with_its_drop_ins(played, tmp_path):
    (tmp_path / "played" / "more.conf").write_text("[Service]\nUser=model\n")
    played.show(DropInPaths=str(tmp_path / "played" / "more.conf"), ActiveState="inactive", NeedDaemonReload="yes")
    it = kit.adopt(played, "sglang-k26-eagle3")
    assert (it.unit_name, it.scope, it.pid, it.experiment.host.run_as) == (NAME, "system", None, "model")
    assert {"adopt-reload", "adopt-version"} <= ids(it.report)


def test_its_journal_is_followed_by_cursor_with_bytes_nothing_and_several_lines(played):
    exp = from_unit().experiment
    sup = supervisor(exp.host.supervisor)
    lines = recent(played, sup, "python3", exp.unit)
    assert [line.text for line in lines] == ["one", "bin\\xffary", "[not shown by the journal]", "three", "four",
                                             "api_key='***'"]
    assert [line.cursor for line in lines][3:5] == ["s=a3;i=3~1", "s=a3;i=3"]


@pytest.mark.parametrize("shown, active, how", [
    ({}, "active", {}), ({"LoadState": "not-found", "ActiveState": "inactive"}, "not-found", {}),
    ({"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "3"}, "failed",
     {"exit_code": 3}),
    ({"ActiveState": "failed", "Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"}, "failed",
     {"signal": "SIGKILL"}),
])
def test_its_state_is_systemds(played, shown, active, how):
    played.show(**shown)
    exp = from_unit().experiment
    now = state(played, supervisor(exp.host.supervisor), "python3", exp.unit)
    assert now.active == active and {k: getattr(now, k) for k in how} == how


@pytest.mark.parametrize("installed, version", [
    (["lib/python3.12/site-packages/sglang-0.5.12.post1.dist-info"], "0.5.12.post1"), ([], None),
    (["local/lib/python3.11/dist-packages/sglang-0.5.6.dist-info"], "0.5.6"),
    (["lib/python3.11/site-packages/sglang-0.5.6.dist-info", "lib/python3.12/site-packages/sglang-0.5.7.dist-info",
      "lib/python3.12/site-packages/sglang_router-1.0.dist-info"], None),
])
def test_the_release_of_a_server_that_is_down_is_what_pip_noted(played, tmp_path, installed, version):
    """There is no interpreter to be run: none of theirs is."""
    for folder in installed:
        (tmp_path / "it's" / folder).mkdir(parents=True)
    (tmp_path / "played" / NAME).write_text(K26.replace("/opt/sglang/bin/python", f'"{tmp_path}/it\'s/bin/python"'))
    played.show(ActiveState="inactive")
    assert kit.adopt(played, NAME).experiment.engine.version == version


def test_a_unit_that_is_not_there_or_may_not_be_read_is_named(played):
    played.show(LoadState="not-found")
    with pytest.raises(PlanError, match="no unit sglang-k26-eagle3.service"):
        kit.adopt(played, "sglang-k26-eagle3")
    played.show(FragmentPath="/nowhere/x.service")
    with pytest.raises(PlanError, match="/nowhere/x.service cannot be read"):
        kit.adopt(played, "sglang-k26-eagle3")


def hangs(*_, **__):
    raise CommandTimeout("no answer within 5 s")


@pytest.mark.parametrize("http, said", [(lambda *a, **k: Http(503), "adopt-no-answer"), (hangs, "adopt-no-answer"),
                                        (lambda *a, **k: Http(401), "adopt-asks-key"),
                                        (lambda *a, **k: Http(200, b"<html>"), "adopt-no-answer")],
                         ids=["loads", "hangs", "asks for a key", "is another program"])
def test_a_server_that_tells_nothing_is_known_by_its_command(tmp_path, local, monkeypatch, http, said):
    monkeypatch.setattr(local, "http", http)
    with running(tmp_path) as (pid, _):
        it = kit.adopt(local, pid=pid)
        assert said in ids(it.report) and it.experiment.target.ref == MODEL
