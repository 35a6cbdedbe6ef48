"""The engine's own dry run: its answer becomes findings with what to set, whatever goes wrong; lint is held to it.

What real releases answer is recorded in tests/oracle/recorded; the program itself runs here against the stand-in.
"""

import json
from collections import Counter

import pytest

from kit import project
from kit.command import Command, Result
from kit.dryrun import dry_run
from kit.engines.sglang import ENGINE
from kit.errors import LinkLost
from kit.spec import Experiment

HERE = project.root()
PROGRAM = HERE / "kit" / "remote" / "sglang_dryrun.py"
RECORDED = HERE / "tests" / "oracle" / "recorded"
EXP = Experiment.load(HERE / "configs" / "k26-eagle3.yaml")
S, K, N = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
NUMBERS_NONE = "assert ( self.speculative_eagle_topk is None and self.speculative_num_draft_tokens is None"


def result(answer=None, exit=1, flags=(), stdout=b"", stderr=b""):
    said = f"a warning\n@@DRYRUN {json.dumps(answer)}\n".encode() if answer is not None else stdout
    return Result(Command(("env", "A=1", "/opt/sglang/bin/python", "-", *flags), limit_s=180.0), exit, said, stderr,
                  "gpu-7")


def refused(type, msg="", stage="parse", version="0.5.12.post1", **more):
    return {"ok": False, "stage": stage, "resolved": {}, "drafter": "",
            "versions": {"sglang": version, "torch": "2.11.0", "transformers": "5.6.0", "python": "3.12.3"},
            "error": {"type": type, "msg": msg, "file": "server_args.py", "line": 3809, "src": "", "module": "",
                      "func": "_handle_speculative_decoding", **more}}


def accepted(version="0.5.12.post1", **resolved):
    return {"ok": True, "stage": "done", "resolved": resolved, "error": None, "drafter": "", "took_s": 8.4,
            "versions": {"sglang": version}}


def told(*args, **more):
    return {f.id: f for f in ENGINE.read_dry_run(result(*args, **more), EXP).findings}


class Answers:
    """A host that gives one result to every command."""

    name, root, user = "gpu-7", "/r", "pat"

    def __init__(self, answer):
        self.answer, self.ran = answer, []

    def run(self, command):
        self.ran.append(command)
        return Result(command, self.answer.exit, self.answer.stdout, self.answer.stderr, self.name)


# -- what is run

def test_the_command_is_the_unit_s_own_flags_environment_and_interpreter_with_the_program_on_stdin():
    unit, command = ENGINE.service(EXP, "/r"), ENGINE.dry_run(EXP, "/r")
    assert command.stdin == PROGRAM.read_bytes() and command.argv[0] == "env"
    at = command.argv.index("/opt/sglang/bin/python")
    assert command.argv[at + 1:] == ("-", *unit.argv[3:])
    env = dict(word.split("=", 1) for word in command.argv[1:at])
    assert {k: env[k] for k in unit.env} == dict(unit.env)
    assert env["HF_HUB_OFFLINE"] == "1" and command.limit_s > 100


def test_the_launch_prefix_is_tried_too():
    numa = EXP.with_(**{"engine.launch": {"numactl": {"membind": "0"}}})
    argv = ENGINE.dry_run(numa, "/r").argv
    at = argv.index("/usr/bin/numactl")
    assert argv[at:at + 3] == ("/usr/bin/numactl", "--membind=0", "/opt/sglang/bin/python")


def test_an_engine_without_a_dry_run_costs_no_round_trip():
    host = Answers(result())
    assert dry_run(Experiment.load(HERE / "configs" / "micro.yaml"), host).ok and host.ran == []


# -- refusals

@pytest.mark.parametrize(("file", "func", "src"), [
    ("server_args.py", "_handle_speculative_decoding", NUMBERS_NONE),
    ("speculative_hook.py", "_handle_eagle_family", NUMBERS_NONE.replace("self.", "server_args.")),
    ("server_args.py", "__post_init__", "self.speculative_eagle_topk is None"),
    ("speculative_hook.py", "_handle_eagle_family", ""),            # no source is installed
])
def test_the_bare_assertion_of_the_first_deployment_names_the_missing_flag_and_what_to_set(file, func, src):
    found = told(refused("AssertionError", file=file, func=func, src=src), flags=(K, "4", N, "3"))
    steps = found["spec-steps-missing"]
    assert steps.verdict == "fail" and steps.what == f"{S} is missing beside {K} 4 and {N} 3"
    assert f"set {S} 2 {K} 1 {N} 3" in steps.fix and f"{S} 3 {K} 4 {N} 16" in steps.fix
    assert "AssertionError without a text" in steps.why and func in steps.why


@pytest.mark.parametrize("error", [
    refused("AssertionError", src=NUMBERS_NONE, func="check_lora"), refused("AssertionError", "tp_size % nnodes"),
    refused("AssertionError", src="assert self.tp_size > 0")])
def test_another_assertion_is_not_taken_for_it(error):
    assert set(told(error, flags=(K, "4"))) == {"dry-run-refused"}


def test_an_assertion_with_the_steps_given_is_another_one_too():
    assert set(told(refused("AssertionError"), flags=(S, "3", K, "4", N, "3"))) == {"dry-run-refused"}


NONE_AND_INT = "'>' not supported between instances of 'NoneType' and 'int'"


@pytest.mark.parametrize(("error", "flags", "id", "says"), [
    (refused("TypeError", NONE_AND_INT), (S, "3"), "spec-topk-missing", f"{K} is missing beside {S} 3"),
    (refused("TypeError", NONE_AND_INT), ("--speculative-num-st", "5"), "spec-topk-missing", f"set {S} 5 {K} 1 {N} 6"),
    (refused("TypeError", NONE_AND_INT, func="elsewhere"), (S, "3"), "dry-run-refused", "TypeError"),
    (refused("SystemExit", "unrecognized arguments: --speculate"), (), "dry-run-flag", "--speculate"),
    (refused("ValueError", "Unknown speculative algorithm name: EAGLE9"), (), "dry-run-refused", "EAGLE9"),
    (refused("FileNotFoundError", "the drafter is not there: /m/x", "files"), (), "dry-run-model-missing", "drafter's"),
    (refused("OSError", "/m/x does not appear to have a file named config.json. Checkout"), (),
     "dry-run-model-missing", "no checkpoint"),
    (refused("ModuleNotFoundError", "No module named 'sglang'", "import", ""), (), "dry-run-engine-missing",
     "this Python has no SGLang"),
    (refused("ModuleNotFoundError", "No module named 'torchvision'", "import"), (), "dry-run-engine-broken",
     "torchvision is missing"),
    (refused("ImportError", "libcudart.so.13: cannot open shared object file", "import"), (), "dry-run-engine-broken",
     "cannot be imported"),
    (refused("ValueError", "'qwen3_asr' is already used by a Transformers config, pick another name.", "import"), (),
     "dry-run-engine-broken", "transformers there (5.6.0) is too new"),
    (refused("SyntaxError", "invalid syntax", "import"), (), "dry-run-python-wrong", "not made for Python 3.12.3"),
    (refused("Python", "Python 3.6.15", "python", ""), (), "dry-run-python-wrong", "engine.python is Python 3.6.15"),
    (refused("RuntimeError", "No accelerator (CUDA, XPU, HPU, NPU, MUSA) is available."), (), "dry-run-no-gpu",
     "CUDA_VISIBLE_DEVICES"),
    (refused("ValueError", "loading this model requires you to execute … trust_remote_code=True"), (),
     "dry-run-remote-code", "--trust-remote-code"),
    (refused("ValueError", "Transformers does not recognize this architecture"), (), "dry-run-architecture",
     "a newer SGLang"),
    (refused("ValueError", "Warning: Target model's context_length (262144) is greater than the derived context_length "
             "(131072). This may", "drafter"), (), "dry-run-context", "the 131072 that the drafter was made for"),
    (refused("Timeout", "no end within 150 s", "import"), (), "dry-run-timeout", "in the stage import"),
    (refused("OfflineModeIsEnabled", "Cannot reach https://hub: offline mode is enabled"), (), "dry-run-offline",
     "by its hub name"),
])
def test_a_refusal_is_told_in_sglang_s_own_words_with_what_to_do(error, flags, id, says):
    found = told(error, flags=flags)
    assert list(found) == [id]
    assert says in f"{found[id].what} {found[id].fix}" and found[id].fix
    assert found[id].verdict == ("unknown" if id in ("dry-run-timeout", "dry-run-offline") else "fail")


@pytest.mark.parametrize(("exit", "stderr", "id", "says"), [
    (127, b"env: '/opt/sglang/bin/python': No such file or directory", "dry-run-python", "is not there"),
    (126, "env: ‘/opt/sglang/bin/python’: Permission denied".encode(), "dry-run-python", "cannot be run"),
    (127, "env: ‘/usr/bin/numactl’: No such file or directory".encode(), "dry-run-program", "/usr/bin/numactl"),
    (127, b"sh: 1: exec: /opt/sglang/bin/python: not found", "dry-run-python", "is not there"),
    (124, b"", "dry-run-timeout", "180 s"),
    (137, b"", "dry-run-killed", "SIGKILL"),
    (139, b"Segmentation fault", "dry-run-killed", "SIGSEGV"),
    (1, b"Traceback: what", "dry-run-garbage", "exit 1"),
    (0, b"", "dry-run-garbage", "exit 0"),
])
def test_no_answer_at_all_is_a_named_finding(exit, stderr, id, says):
    found = told(exit=exit, stderr=stderr)
    assert list(found) == [id] and says in found[id].what and found[id].fix


@pytest.mark.parametrize("junk", [b"@@DRYRUN {", b"@@DRYRUN []", b'@@DRYRUN {"error": "x"}', b"@@DRYRUN 3",
                                  b'@@DRYRUN {"versions": 1}', b"\xff\xfe", b'@@DRYRUN {"resolved": [1]}'])
def test_an_answer_that_is_none_is_garbage_and_no_crash(junk):
    assert list(told(stdout=junk)) == ["dry-run-garbage"]


def test_a_broken_connection_is_the_host_s_error():
    with pytest.raises(LinkLost):
        dry_run(EXP, Answers(result(exit=None)))


# -- what is taken and changed

@pytest.mark.parametrize(("resolved", "flags", "id", "says"), [
    ({"speculative_algorithm": "EAGLE3", "max_running_requests": 48}, (), "resolved-max-running-requests",
     "at most 48"),
    ({"max_running_requests": 48}, ("--max-running-requests", "64"), "resolved-max-running-requests", "becomes 48"),
    ({"speculative_algorithm": "EAGLE3", "disable_overlap_schedule": True, "speculative_eagle_topk": 4}, (),
     "resolved-overlap-off", "overlap scheduler is off"),
    ({"speculative_num_draft_tokens": 4}, (N, "3"), "resolved-speculative-num-draft-tokens", f"{N} 3 becomes 4"),
    ({"speculative_adaptive": False}, ("--speculative-adaptive",), "resolved-adaptive-off", "not in force"),
    ({"enable_mixed_chunk": False}, ("--enable-mixed-chunk",), "resolved-mixed-chunk-off", "not in force"),
])
def test_what_sglang_changes_without_a_refusal_is_a_warning_with_the_value_in_force(resolved, flags, id, says):
    found = told(accepted(**resolved), exit=0, flags=flags)
    assert set(found) == {"dry-run", id} and found[id].verdict == "warn" and says in found[id].what
    assert found["dry-run"].what == "SGLang 0.5.12.post1 accepts the command (8.4 s)"


@pytest.mark.parametrize(("resolved", "flags"), [
    ({"max_running_requests": 64}, ("--max-running-requests=64",)),
    ({"mem_fraction_static": 0.88}, ("--mem-fraction-static", "0.880")), ({"max_running_requests": 48}, ()),
    ({"attention_backend": "triton"}, ("--attention-backend", "Triton")), ({"kv_cache_dtype": "x"}, ("--a", "b")),
    ({"disable_overlap_schedule": True}, ()),
    ({"speculative_algorithm": "EAGLE"}, ("--speculative-algorithm", "NEXTN")),
])
def test_what_is_in_force_as_asked_is_not_warned_of(resolved, flags):
    assert set(told(accepted(**resolved), exit=0, flags=flags)) == {"dry-run"}


def test_a_drafter_whose_context_could_not_be_read_is_said():
    assert told({**accepted(), "drafter": "KeyError: 'x'"}, exit=0)["dry-run-drafter"].verdict == "unknown"


# -- recorded answers of real releases

def recorded():
    sets = [json.loads(line) for line in (RECORDED / "sets.jsonl").read_text().splitlines()]
    for path in sorted(RECORDED.glob("[0-9]*.jsonl")):
        for asked, line in zip(sets, path.read_text().splitlines(), strict=True):
            yield path.stem, asked["argv"], json.loads(line)


def replayed(version, argv, row):
    if row["ok"]:
        return accepted(version), 0
    file, _, func = row.get("where", ":").partition(":")
    return refused(row["error"], row.get("says", ""), row["stage"], version, file=file, func=func), 1


def test_1800_recorded_answers_of_six_releases_are_all_read_as_what_they_are():
    """No source lines are recorded: the assertion must be known by its function and the flags alone."""
    ids = Counter()
    for version, argv, row in recorded():
        answer, exit = replayed(version, argv, row)
        told = ENGINE.read_dry_run(result(answer, exit, tuple(argv)), EXP)
        assert told.version == version and told.accepted is (True if row["ok"] else told.accepted)
        assert (told.accepted is True) == row["ok"]
        ids.update(f.id for f in told.findings)
        if row.get("error") == "AssertionError" and not row["says"] and not any(a.startswith(S) for a in argv):
            numbers = [a for a in argv if a.split("=")[0] in (K, N)]
            assert not numbers or told.findings[0].id == "spec-steps-missing", (version, argv)
    assert ids["spec-steps-missing"] > 50 and ids["spec-topk-missing"] > 50 and ids["dry-run-flag"] > 100
    assert not ids["dry-run-garbage"]


# -- lint is held to it

def disagreements(exp, answer, exit):
    return [f for f in dry_run(exp, Answers(result(answer, exit))) if f.id == "lint-disagrees"]


def by_hand(*args):
    return EXP.with_(**{"spec.algorithm": "none", "engine.args": args})


def test_lint_that_takes_what_the_engine_refuses_is_shown_as_our_fault_with_both_texts():
    found = disagreements(EXP, refused("ValueError", "moon phase is wrong"), 1)
    assert "a fault of ours" in found[0].what and found[0].verdict == "warn"
    assert "lint: nothing against it" in found[0].why and "moon phase is wrong" in found[0].why


def test_lint_that_refuses_what_the_engine_takes_is_too():
    found = disagreements(by_hand("--speculative-algorithm", "EAGLE3", K, "4", N, "3"), accepted(), 0)
    assert "spec-steps-missing" in found[0].why and "accepts the command" in found[0].why


@pytest.mark.parametrize(("exp", "answer", "exit"), [
    (EXP, accepted(), 0),
    (by_hand("--speculative-algorithm", "EAGLE3", K, "4", N, "3"), refused("AssertionError", src=NUMBERS_NONE), 1),
    (by_hand("--speculative-algorithm", "EAGLE3", S, "3", K, "4", N, "64", "--speculative-draft-model-path", "/m"),
     accepted(), 0),                                    # too wide a tree: lint says that the parser takes it
    (EXP, refused("ModuleNotFoundError", "No module named 'sglang'", "import"), 1),
    (EXP, refused("RuntimeError", "No accelerator (CUDA) is available."), 1),
    (EXP, refused("FileNotFoundError", "the target is not there: /m", "files"), 1),
    (EXP, None, 137),
])
def test_agreement_and_circumstances_are_no_disagreement(exp, answer, exit):
    assert disagreements(exp, answer, exit) == []


def test_another_release_than_the_config_was_written_for_is_said_and_lint_judges_the_one_there():
    found = {f.id: f for f in dry_run(EXP, Answers(result(accepted("0.5.16"), 0)))}
    assert "0.5.16 is installed there" in found["dry-run-version"].what
    assert found["dry-run-version"].fix == "engine.version: 0.5.16"
    assert "dry-run-version" not in {f.id for f in dry_run(EXP, Answers(result(accepted(), 0)))}
