"""lint: every rule has fixtures that make it speak and that leave it silent; field cases; bad input; argparse."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from conftest import fuzzing
from hypothesis import given
from hypothesis import strategies as st

from kit.lint import lint
from kit.lint.case import RULES, Target, capability
from kit.lint.flags import known_versions, read, table
from kit.lint.pasted import unwrap
from kit.lint.versions import neighbours, parse
from kit.lint_cli import main

FIXTURES = Path(__file__).parent / "fixtures" / "lint"
RULE_IDS = sorted({id for rules in RULES.values() for id, _ in rules})
CASES = [pytest.param(p.stem, c, id=f"{p.stem}-{i}") for p in sorted(FIXTURES.glob("*.yaml")) if p.stem != "field-cases"
         for i, c in enumerate(yaml.safe_load(p.read_text()))]
FIELD = [pytest.param(c, id=c["id"]) for c in yaml.safe_load((FIXTURES / "field-cases.yaml").read_text())]
MOTIVATING = ("--model-path /models/Kimi-K2.6 --port 30001 --host 0.0.0.0 --tp-size 8 --mem-fraction-static 0.88 "
              "--context-length 32768 --max-running-requests 64 --disable-cuda-graph --attention-backend triton "
              "--trust-remote-code --grammar-backend none --speculative-algorithm EAGLE3 "
              "--speculative-draft-model-path /models/kimi-k2.6-eagle3 --speculative-num-draft-tokens 3 "
              "--speculative-eagle-topk 4")


def judge(case: dict):
    name, _, version = case["engine"].partition("==")
    words = [case["flags"]] if "\n" in case["flags"] else shlex.split(case["flags"])
    return lint(name, version, words, case.get("env"), case.get("gpu"), case.get("config"), case.get("architecture"),
                Target(**case["target"]) if "target" in case else None)


def verdicts(report, rule: str) -> list[str]:
    return [f.verdict for f in report if f.id == rule]


@pytest.mark.parametrize("rule,case", CASES)
def test_rule_says_what_its_fixture_expects(rule, case):
    report = judge(case)
    said = [f for f in report if f.id == rule]
    expected = [] if case["expect"] == "quiet" else sorted(case["expect"].split(","))
    assert sorted({f.verdict for f in said}) == expected, repr(report)
    if case.get("says"):
        text = " ".join(f"{f.what} {f.why} {f.fix} {f.evidence}" for f in said)
        assert re.search(case["says"], text), text


@pytest.mark.parametrize("rule", RULE_IDS)
def test_every_rule_has_a_fixture_that_speaks_and_one_that_is_silent(rule):
    expects = [c["expect"] for c in yaml.safe_load((FIXTURES / f"{rule}.yaml").read_text())]
    assert "quiet" in expects and set(expects) - {"quiet"}


def test_every_fixture_belongs_to_a_rule():
    assert {p.stem for p in FIXTURES.glob("*.yaml")} - {"field-cases"} == set(RULE_IDS)


@pytest.mark.parametrize("case", FIELD)
def test_field_case_gets_its_answer(case):
    report = judge(case)
    for rule, verdict in (case["expect"] or {}).items():
        assert verdict in verdicts(report, rule), repr(report)
    claimed = {f.id for f in report if f.verdict == "fail"} - set(case["expect"] or {})
    assert not claimed, f"claims {claimed}, which the case does not establish"


@pytest.mark.parametrize("version", [".".join(map(str, v)) for v in known_versions("sglang")])
def test_motivating_command_is_refused_in_every_release(version):
    report = lint("sglang", version, shlex.split(MOTIVATING))
    missing = [f for f in report if f.id == "spec-steps-missing"]
    assert [f.what for f in missing] == ["--speculative-num-steps is missing"]
    assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in missing[0].fix
    assert [f.id for f in report if f.verdict == "fail"] == ["spec-steps-missing"]


def test_adding_only_the_steps_to_the_motivating_command_still_warns_of_wasted_depth():
    report = lint("sglang", "0.5.12", shlex.split(MOTIVATING + " --speculative-num-steps 3"))
    assert report.ok
    assert verdicts(report, "spec-depth-wasted") == ["warn"]
    assert any("num_speculative_tokens 2" in f.what for f in report if f.id == "spec-terms")


@pytest.mark.parametrize("text", [
    f"ExecStart=/opt/venv/bin/python -m sglang.launch_server {MOTIVATING}",
    f"[Unit]\nDescription=x\n[Service]\nUser=llm\nEnvironment=\"A=b c\" OMP_NUM_THREADS=8\n"
    f"ExecStart=/opt/venv/bin/python \\\n  -m sglang.launch_server {MOTIVATING}\n[Install]\n",
    f"$ OMP_NUM_THREADS=8 sudo env X=1 python3 -m sglang.launch_server \\\n {MOTIVATING}",
    f"sglang serve {MOTIVATING}",
    f"docker run --gpus all img python3 -m sglang.launch_server {MOTIVATING}",
])
def test_a_command_may_be_pasted_as_it_is(text):
    pasted = unwrap([text])
    assert pasted.engine == "sglang" and pasted.argv[:2] == ("--model-path", "/models/Kimi-K2.6")
    assert verdicts(lint("sglang", "0.5.12", [text]), "spec-steps-missing") == ["fail"]


@pytest.mark.parametrize("engine,version,text", [
    ("vllm", "0.32.0", "serve org/m --tensor-parallel-size 2"),
    ("vllm", "0.32.0", "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.32.0 --model org/m -tp 2"),
    ("vllm", "0.32.0", "cd /srv && nohup vllm serve org/m -tp 2 > serve.log 2>&1 &"),
    ("vllm", "0.32.0", "vllm serve -tp 2 org/m | tee serve.log"),
    ("sglang", "0.5.23", "serve org/m --tp-size 2"),
    ("sglang", "0.5.16", "sglang serve org/m --model-type llm --tp-size 2"),
    ("sglang", "0.5.9", "sglang serve --model-path org/m --tp-size 2 2>/dev/null"),
])
def test_a_model_may_stand_after_serve_and_the_shell_around_it(engine, version, text):
    report = lint(engine, version, [text])
    assert report.ok and not [f for f in report if f.id in ("flag-required", "flag-unknown", "command")], repr(report)


@pytest.mark.parametrize("version,model,verdict", [
    ("0.5.15", "org/m", ["fail"]), ("0.5.16", "org/m", []), ("0.5.15", "--model-path org/m", [])])
def test_sglang_takes_a_model_right_after_serve_since_0_5_16(version, model, verdict):
    assert verdicts(lint("sglang", version, [f"sglang serve {model} --tp-size 2"]), "flag-unknown") == verdict


def test_a_lone_serve_is_a_launcher_only_in_first_place():
    assert unwrap(["serve m --tp 2"]).argv == ("m", "--tp", "2")
    assert unwrap(["--served-model-name", "serve", "--tp", "2"]).argv[0] == "--served-model-name"


def test_environment_of_a_pasted_command_counts_and_the_callers_wins():
    line = ("SGLANG_ENABLE_SPEC_V2=True python -m sglang.launch_server --model m --speculative-algorithm EAGLE "
            "--speculative-num-steps 3 --speculative-eagle-topk 1")
    assert verdicts(lint("sglang", "0.5.9", [line]), "spec-overlap") == []
    assert verdicts(lint("sglang", "0.5.9", [line], {"SGLANG_ENABLE_SPEC_V2": "0"}), "spec-overlap") == ["warn"]


def test_another_engines_command_is_told():
    report = lint("sglang", "0.5.12", ["vllm serve m"])
    assert [f.what for f in report if f.id == "command"] == ["this launches vllm, not sglang"]


def test_secrets_are_never_repeated():
    text = ("HF_TOKEN=hf_abcdefghijk python -m sglang.launch_server --model m --api-key sk-very-secret "
            "--api-key sk-other-secret")
    out = lint("sglang", "0.5.12", [text]).to_json()
    assert "secret\"" not in out and "very-secret" not in out and "other-secret" not in out and "hf_abc" not in out


def test_config_file_comes_before_the_command_line():
    config = ("speculative-algorithm: EAGLE3\nspeculative_num_steps: 3\nspeculative-eagle-topk: 4\n"
              "trust-remote-code: true\n")
    report = lint("sglang", "0.5.12", ["--config", "x.yaml", "--speculative-eagle-topk", "1"], config=config)
    assert verdicts(report, "spec-tokens-missing") == [] and verdicts(report, "trust-remote-code") == ["warn"]
    assert verdicts(lint("sglang", "0.5.12", ["--config", "x.yaml"], config=config), "spec-tokens-missing") == ["fail"]


def test_vllm_settings_may_come_from_json_dots_or_short_flags():
    for words in (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'],
                  ["--speculative_config.method", "ngram", "--speculative-config.num_speculative_tokens=4"],
                  ["-sc.method=ngram", "-sc.num_speculative_tokens", "4"],
                  ["--spec-method", "ngram", "--spec-tokens", "4"]):
        assert any("verified 5" in f.what for f in lint("vllm", "0.32.0", words) if f.id == "spec-terms"), words


def test_release_between_two_that_were_read_is_unknown_where_they_differ():
    words = shlex.split("--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 4 "
                        "--speculative-num-draft-tokens 8 --max-running-requests 4 --speculative-draft-model-path d "
                        "--quantization fp8")
    assert verdicts(lint("sglang", "0.5.2", words), "draft-quantization") == []
    report = lint("sglang", "0.5.4", ["--enable-beta-spec"])
    assert verdicts(report, "flag-unknown") == ["unknown"]
    assert "so in 0.5.5, not in 0.5.3" in next(f.what for f in report if f.id == "flag-unknown")


def test_newer_release_keeps_what_never_changed_and_doubts_the_rest():
    report = lint("sglang", "0.9.9", shlex.split(MOTIVATING) + ["--from-the-future"])
    assert verdicts(report, "spec-steps-missing") == ["fail"]
    assert "so in every release that was read, 0.4.6 … " in next(f.why for f in report if f.id == "spec-steps-missing")
    assert verdicts(report, "flag-unknown") == ["unknown"]
    assert verdicts(report, "engine-version") == ["unknown"]


def test_newer_release_doubts_a_rule_that_an_old_one_did_not_have():
    """topk without N at 0.4.9 … 0.5.2 became what all later ones refuse: true of the newest, not of every one."""
    words = shlex.split("--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-draft-model-path d")
    assert verdicts(lint("sglang", "0.5.23", words), "spec-topk-missing") == ["fail"]
    report = lint("sglang", "0.9.9", words)
    assert verdicts(report, "spec-topk-missing") == ["unknown"] and report.ok


@pytest.mark.parametrize("words,status", [
    (["--engine", "sglang==0.5.12", "--", "--tp-size", "8"], 0),
    (["--engine", "sglang==0.5.12", "--", *shlex.split(MOTIVATING)], 1),
    (["--engine", "sglang==0.5.12", "--json", "--", "--speculative-algorithm", "EAGLE"], 0),
    (["--engine", "tgi==3.0", "--", "--tp-size", "8"], 2),
    (["--engine", "sglang==main", "--", "--tp-size", "8"], 2),
    (["--engine", "sglang==0.3.0", "--", "--tp-size", "8"], 2),
    (["--engine", "sglang==7.0.0", "--", "--tp-size", "8"], 2),
    (["--engine", "sglang==7.0.0", "--", *shlex.split(MOTIVATING)], 1),
    (["--engine", "sglang==0.5.12"], 2),
    (["--engine", "sglang==0.5.12", "--", "python -m sglang.launch_server --x 'unclosed"], 2),
])
def test_exit_status(words, status, capsys):
    assert main(words) == status
    printed = capsys.readouterr().out
    if "--json" in words:
        assert all(set(f) == {"id", "verdict", "what", "why", "fix", "evidence"} for f in json.loads(printed))
    else:
        assert printed.strip()


def test_cli_reads_a_unit_from_standard_input_and_a_config_beside_it(tmp_path, monkeypatch, capsys):
    config = tmp_path / "serve.yaml"
    config.write_text("speculative-algorithm: EAGLE3\nspeculative-eagle-topk: 4\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"[Service]\nExecStart=/v/bin/python -m sglang.launch_server "
                                                 f"--model-path m --config {config}\n"))
    assert main(["--engine", "sglang==0.5.12", "-"]) == 1
    assert "--speculative-num-steps is missing" in capsys.readouterr().out


@pytest.mark.parametrize("glue", [" ", "="])
def test_cli_looks_into_the_model_where_it_is_on_this_machine(tmp_path, capsys, glue):
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    words = ["--engine", "sglang==0.5.23", "--", f"sglang serve --model-path{glue}{tmp_path} "
             "--speculative-algorithm DSPARK"]
    assert main(words) == 1
    (tmp_path / "dspark").mkdir()
    (tmp_path / "dspark" / "config.json").write_text("{}")
    assert main(words) == 0
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert main(words) == 0
    assert "right only if the target carries" in capsys.readouterr().out


@pytest.mark.parametrize("text,expected", [("sm_120", 120), ("SM90", 90), ("12.0", 120), ("8.6", 86), ("sm_103a", 103),
                                           ("Blackwell", None), ("", None), (None, None)])
def test_capability_is_read_from_numbers_not_names(text, expected):
    assert capability(text) == expected


def test_unknown_gpu_name_is_told():
    assert verdicts(lint("sglang", "0.5.12", ["--tp-size", "2"], gpu="Blackwell"), "gpu") == ["unknown"]


@pytest.mark.parametrize("text,expected", [("0.5.12.post1", (0, 5, 12)), ("0.5.10rc0", (0, 5, 10)),
                                           ("v0.32.0+cpu", (0, 32, 0)), ("main", None), ("", None)])
def test_versions_are_compared_by_release(text, expected):
    assert parse(text) == expected


def test_neighbours_of_a_release():
    known = [(0, 5, 3), (0, 5, 5)]
    assert neighbours((0, 5, 3), known) == ((0, 5, 3), (0, 5, 3))
    assert neighbours((0, 5, 9), known) == ((0, 5, 5), None)
    assert neighbours((0, 1, 0), known) == (None, (0, 5, 3))


# ------------------------------------------------------------------ against argparse itself

class Refused(Exception): ...


class StrictParser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(message)


def stdlib_parser(engine: str, version) -> argparse.ArgumentParser:
    parser = StrictParser()
    seen = set()
    types = {"int": int, "float": float, "json": json.loads}
    for flag in table(engine, version).by_name.values():
        if flag.name in seen or flag.name == "--help" or flag.kind in ("gone", "size"):
            continue
        seen.add(flag.name)
        if flag.kind == "flag":
            parser.add_argument(*flag.names, action="store_true")
        elif flag.kind == "bool":
            parser.add_argument(*flag.names, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(*flag.names, type=types.get(flag.kind, str), nargs=flag.nargs,
                                choices=flag.choices or None)
    return parser


PARSER = stdlib_parser("sglang", (0, 5, 12))
TABLE = table("sglang", (0, 5, 12))
NAMES = sorted(n for n, f in TABLE.by_name.items() if f.kind not in ("gone", "size") and f.name != "--help")
WORD = st.sampled_from(["3", "-1", "0.5", "-.5", "x", "", "a b", "--", "EAGLE3", "triton", "{}", "-x", "--nope", "-"])


@st.composite
def command_lines(draw):
    words = []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(NAMES))
        name = name[:draw(st.integers(3, len(name)))] if draw(st.booleans()) else name
        value = draw(WORD.filter(lambda w: w != "--"))      # --a=-- trips a fault of older argparse releases
        words += [f"{name}={value}"] if draw(st.booleans()) else [name, *draw(st.lists(WORD, max_size=2))]
    return words


def stdlib_accepts(words) -> bool:
    try:
        return not PARSER.parse_known_args(words)[1]
    except (Refused, SystemExit):
        return False


@fuzzing(250)
@given(command_lines())
def test_flag_reader_accepts_and_refuses_what_argparse_does(words):
    """Every flag of a release, in a real ArgumentParser: the same words must be accepted and refused."""
    assert (not read(words, TABLE).problems) == stdlib_accepts(words), words


@fuzzing(100)
@given(st.lists(st.one_of(st.text(max_size=30), st.sampled_from(NAMES), WORD), max_size=6),
       st.sampled_from(["sglang==0.5.12", "sglang==0.5.4", "sglang==9.0", "vllm==0.32.0", "vllm==0.20.0"]))
def test_any_text_gets_findings_and_never_a_traceback(words, engine):
    name, _, version = engine.partition("==")
    report = lint(name, version, words, {"SGLANG_ENABLE_SPEC_V2": "?"}, "sm_120", {"tp-size": [1, None]})
    json.loads(report.to_json())


@pytest.mark.parametrize("words", [
    ["--tp-size", "9" * 5000], ["--mem-fraction-static", "nan"], ["--mem-fraction-static", "inf"], ["--" * 5000],
    ["--speculative-config", "[" * 100_000], ["--speculative-config.a.b.c", "1"], ["--speculative-config."],
    ["--x=" + "y" * 1_000_000], ["--cuda-graph-bs", *map(str, range(5000))], ["[Service]\nExecStart="], ["\0"],
    ["--speculative-config", '{"num_speculative_tokens": 1e999, "method": ["x"], "model": {}}'],
    ["--speculative-num-steps", "1e3"], ["--nnodes", "0", "--tp-size", "0"],
])
@pytest.mark.parametrize("engine,version", [("sglang", "0.5.12"), ("vllm", "0.32.0")])
def test_hostile_values_are_findings(engine, version, words):
    json.loads(lint(engine, version, words).to_json())
