"""Fact parsers against what hosts print: tests/facts/cases.yaml. A new case is a new entry there."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
import yaml

from kit import facts
from kit.command import sh
from kit.errors import ParseError

CASES = yaml.safe_load((Path(__file__).parent / "facts" / "cases.yaml").read_text())
BY_NAME = {f.name: f for f in facts.FACTS}


def plain(value):
    """Dataclasses and tuples as YAML would write them."""
    if dataclasses.is_dataclass(value):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['fact']}-{c['output'][:20]!r}")
def test_fact_is_read_from_what_the_host_printed(case):
    parse = BY_NAME[case["fact"]].parse
    if case.get("error"):
        with pytest.raises(ValueError):
            parse(case["output"])
    else:
        assert plain(parse(case["output"])) == case["value"]


def survey_here(root, port="1"):
    command = sh(facts.script(), str(root), "python3", port)
    done = subprocess.run(["sh", "-c", command.shell()], input=command.stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return facts.parse(done.stdout.decode())


def test_the_script_runs_on_this_machine_and_every_fact_is_read(tmp_path):
    read = survey_here(tmp_path / "not made yet")
    assert set(read) == {f.name for f in facts.FACTS} | {"units"}
    assert read["cpu"][0] >= 1 and read["disk_free_mib"] > 0 and read["python"] >= (3, 9)
    assert not (tmp_path / "not made yet").exists(), "a survey changes nothing"


def test_a_half_fetched_model_in_a_folder_with_odd_names_is_seen(tmp_path):
    root = tmp_path / "a'b \"c\" 100%"
    model = root / "models" / "m-1"
    model.mkdir(parents=True)
    (model / "x y.gguf.part").write_bytes(b"123")
    present = survey_here(root)["models"]["m-1"]
    assert present.sizes == {"x y.gguf.part": 3} and not present.complete


def test_the_holder_of_a_busy_port_is_named(tmp_path):
    import os
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        assert survey_here(tmp_path, str(s.getsockname()[1]))["port_holder"].pid == os.getpid()


def test_a_survey_that_broke_off_says_so():
    with pytest.raises(ParseError, match="broke off"):
        facts.parse("\x1eos\nLinux")


def test_a_fact_that_is_not_understood_is_named():
    with pytest.raises(ParseError, match="fact load"):
        facts.parse("\x1eload\nhigh\n\x1eend\n")


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"files": []}', '{"files": ["a"]}', '{"files": {"a": 1}}'])
def test_a_manifest_that_is_none_makes_the_model_incomplete(manifest):
    here = facts._models(f"dir m\nmanifest {manifest}\nfile 3 a\n")["m"]
    assert not here.complete and here.sizes == {"a": 3}


def test_an_engine_whose_record_was_cut_short_is_not_there():
    assert facts._engines('junk {"req\nempty \nlist []\ngood {"installed": []}\n') == {"good": {"installed": []}}
