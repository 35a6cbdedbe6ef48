"""lint against what SGLang's own parser answered: recorded by `tests/oracle/run.py ask`, replayed here."""

import json

from oracle import run

RESULT = json.loads(run.RESULT.read_text()) if run.RESULT.exists() else {}


def test_result_is_there_and_was_made_from_these_inputs():
    assert RESULT, "no tests/oracle/result.json: run `python tests/oracle/run.py score`"
    assert RESULT["inputs_sha256"] == run.inputs_hash(), \
        "the oracle or its answers changed: run `python tests/oracle/run.py score` (and `ask`, if the sets changed)"


def test_enough_releases_answered_enough_sets_and_both_ways():
    assert len(RESULT["versions"]) >= 4
    for version, counts in RESULT["versions"].items():
        assert counts["sets"] >= 300, version
        assert counts["refused"] >= 50 and counts["sets"] - counts["refused"] >= 50, version


def test_recorded_answers_belong_to_the_generated_sets():
    assert run.read(run.RECORDED / "sets.jsonl") == run.generate()


def test_lint_differs_from_the_engine_only_where_the_result_says():
    now = run.score()
    assert now["differ"] == RESULT["differ"]
    assert now["versions"] == RESULT["versions"]
