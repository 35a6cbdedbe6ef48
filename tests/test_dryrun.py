"""The engine's own dry run: what it answers becomes findings, and disagreement with lint is said. No SGLang here: a
stand-in with its functions' names raises what the real releases raise (tests/oracle/recorded has their answers)."""

import json
import sys

import pytest
from doubles import LocalHost

from kit import project
from kit.command import Command, Result
from kit.dryrun import MARK, disagreement, dry_run, read
from kit.engines.sglang import ENGINE
from kit.findings import Finding, Report
from kit.spec import Experiment

EXP = Experiment.load(project.root() / "configs" / "k26-eagle3.yaml")


def result(answer=None, exit=0, stdout=b"", stderr=b""):
    said = f"a warning\n{MARK}{json.dumps(answer)}\n".encode() if answer is not None else stdout
    return Result(Command(("env",), limit_s=120.0), exit, said, stderr, "gpu-7")


def told(*args, **more):
    return {f.id: f for f in read(result(*args, **more), EXP, ENGINE.failures)}


def refused(type="AssertionError", msg="", src=(), **more):
    return {"ok": False, "stage": "parse", "sglang": "0.5.12.post1", "python": "3.12.3",
            "error": {"type": type, "msg": msg, "file": "server_args.py", "line": 3810,
                      "func": "_handle_speculative_decoding", "src": list(src), **more}}


def test_the_bare_assertion_of_the_first_deployment_is_told_as_the_missing_flag_and_what_to_set():
    src = ["                self.speculative_eagle_topk is None",
           "                and self.speculative_num_draft_tokens is None", "            )"]
    found = told(refused(src=src), exit=1)["spec-steps-missing"]
    assert found.verdict == "fail" and "--speculative-num-steps is missing" in found.what
    assert "steps, topk and draft tokens" in found.fix and "AssertionError" in found.why


@pytest.mark.parametrize("answer, stderr, id, words", [
    (refused("TypeError", "'>' not supported between instances of 'NoneType' and 'int'"), b"", "spec-topk-missing",
     "--speculative-eagle-topk"),
    (refused("SystemExit", code=2), b"usage: x\nsglang serve: error: unrecognized arguments: --speculate\n", "flag",
     "refuses a flag"),
    (refused("ValueError", "Unknown speculative algorithm name: EAGLE9"), b"", "dry-run", "EAGLE9"),
    ({**refused("ModuleNotFoundError", "No module named 'torchvision'"), "stage": "import"}, b"", "dry-run-import",
     "torchvision"),
])
def test_a_refusal_is_told_in_the_engines_own_words(answer, stderr, id, words):
    found = told(answer, exit=1, stderr=stderr)[id]
    assert found.verdict == "fail" and words in found.what + found.why and found.fix


@pytest.mark.parametrize("exit, stderr, id, verdict", [
    (127, b"env: '/opt/sglang/bin/python': No such file or directory", "dry-run-python", "fail"),
    (126, b"env: '/opt/sglang/bin/python': Permission denied", "dry-run-python", "fail"),
    (124, b"", "dry-run", "unknown"), (137, b"", "dry-run", "unknown"), (None, b"", "dry-run", "unknown"),
    (1, b"Segmentation fault", "dry-run", "fail"), (0, b"", "dry-run", "unknown"),
])
def test_no_answer_is_a_named_finding(exit, stderr, id, verdict):
    assert told(exit=exit, stderr=stderr)[id].verdict == verdict


@pytest.mark.parametrize("junk", [b"@@DRYRUN {", b"@@DRYRUN []", b'@@DRYRUN {"ok": true}', b"@@DRYRUN 3"])
def test_an_answer_that_is_none_is_unknown(junk):
    assert told(stdout=junk)["dry-run"].verdict == "unknown"


def test_what_it_takes_and_changes_is_a_warning_with_the_value_it_will_use():
    taken = {"ok": True, "stage": "done", "sglang": "0.5.12.post1",
             "resolved": {"max_running_requests": 48, "context_length": 32768, "speculative_num_draft_tokens": 4}}
    found = told(taken)
    assert found["dry-run"].verdict == "pass"
    assert found["dry-run-changed"].what == "max_running_requests: 64 is asked, 48 is what it will use"
    assert "dry-run-release" not in found
    assert told({**taken, "sglang": "0.5.16"})["dry-run-release"].verdict == "warn"


@pytest.mark.parametrize("engine, lint, says", [
    ("fail", "pass", "takes what the engine refuses"), ("pass", "fail", "takes what kit.lint refuses"),
    ("fail", "fail", ""), ("pass", "pass", ""), ("fail", "unknown", ""),
])
def test_a_disagreement_with_lint_is_our_fault_and_said(engine, lint, says):
    found = disagreement((Finding("dry-run", engine, "x"),), Report((Finding("r1", lint, "y"),)))
    assert (says in found[0].what and found[0].id == "lint-disagrees") if says else not found


SERVER_ARGS = '''
class Args:
    max_running_requests = 64
    def check_server_args(self): pass

def _handle_speculative_decoding(steps, topk, tokens):
    if steps is None:
        assert (
            topk is None
            and tokens is None
        )

def prepare_server_args(argv):
    value = lambda flag: argv[argv.index(flag) + 1] if flag in argv else None
    _handle_speculative_decoding(value("--speculative-num-steps"), value("--speculative-eagle-topk"),
                                 value("--speculative-num-draft-tokens"))
    return Args()
'''


@pytest.fixture
def host(tmp_path):
    package = tmp_path / "site" / "sglang" / "srt"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("__version__ = '0.5.12.post1'")
    (package / "__init__.py").touch()
    (package / "server_args.py").write_text(SERVER_ARGS.replace("_handle_speculative_decoding(steps, topk, tokens)",
                                                                "_handle_speculative_decoding(steps, speculative_eagle"
                                                                "_topk, speculative_num_draft_tokens)")
                                            .replace("            topk is", "            speculative_eagle_topk is")
                                            .replace("and tokens is", "and speculative_num_draft_tokens is"))
    return LocalHost(tmp_path / "root", env={"PYTHONPATH": str(tmp_path / "site")})


def test_one_round_trip_takes_a_good_command_and_writes_nothing(host, tmp_path):
    exp = EXP.with_(**{"engine.python": sys.executable, "engine.env": {}})
    report = dry_run(exp, host)
    assert report.ok and len(host.ran) == 1 and not list((tmp_path / "root").iterdir())


def test_the_program_itself_finds_the_line_of_the_bare_assertion(host):
    flags = ["--speculative-num-draft-tokens", "3", "--speculative-eagle-topk", "4"]
    exp = EXP.with_(**{"engine.python": sys.executable, "engine.env": {}, "arms": {"eagle3": {"algorithm": "none"}},
                       "engine.args": flags})
    found = {f.id: f for f in dry_run(exp, host)}
    assert found["spec-steps-missing"].verdict == "fail"
    assert "_handle_speculative_decoding" in found["spec-steps-missing"].why
