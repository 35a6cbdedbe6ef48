"""The sentences: who is faster, why, and how far to trust it."""

import pandas as pd
import pytest
from test_analysis import cell, compared, eagle, texts

from kit import analysis, verdict


def said(*cells, **how):
    return " ".join(verdict.sentences(compared(*cells, **how)))


def test_a_loss_is_explained_by_the_price_of_a_step():
    words = said(cell(), eagle(tok_s=61.0, tpot_ms_p50=17.0))
    assert ("EAGLE-3 on chat at concurrency 1 is slower: 0.61x. A verify step of 4 tokens costs 3.4 single steps, "
            "drafting included, and yields only 2.0 tokens.") in words


def test_a_gain_is_explained_likewise():
    words = said(cell(), eagle(tok_s=160.0, tpot_ms_p50=6.25))
    assert "is faster: 1.60x" in words and "costs 1.2 single steps, drafting included, and yields 2.0 tokens" in words


@pytest.mark.parametrize(("speedup", "word"), [
    (0.94, "slower"), (0.96, "no clear difference"), (1.0, "no clear difference"), (1.04, "no clear difference"),
    (1.06, "faster"), (float("nan"), "cannot tell")])
def test_less_than_five_percent_is_no_clear_difference(speedup, word):
    assert verdict.word(speedup) == word


def test_the_convention_and_the_single_run_are_named():
    words = said(cell(), eagle())
    assert "no interval" in words and "5%" in words and "convention" in words


def test_ngram_says_how_often_it_found_a_draft():
    words = said(cell(), eagle(arm="ngram", algorithm="ngram", accepted=100.0, steps=100.0))
    assert "n-gram on chat" in words and "The average step" in words
    assert "A draft was found in 20% of the steps" in words


def test_unequal_text_is_counted_and_both_explanations_are_named():
    requests = pd.DataFrame(texts("baseline", "1", "a", "b") + texts("eagle3", "1", "a", "c"),
                            columns=list(analysis.REQUESTS))
    words = said(cell(), eagle(), requests=requests)
    assert "EAGLE-3 1/2 on chat at concurrency 1" in words
    assert "numerics" in words and "faulty verification" in words


def test_equal_text_is_said_only_when_it_was_compared():
    requests = pd.DataFrame(texts("baseline", "1", "a") + texts("eagle3", "1", "a"), columns=list(analysis.REQUESTS))
    same = "The text is the baseline's on every prompt"
    assert same in said(cell(), eagle(), requests=requests)
    assert same not in said(cell(), eagle())


def test_an_accept_length_that_moves_with_concurrency_is_raised_unasked():
    words = said(cell(), cell(concurrency=4), eagle(), eagle(concurrency=4, accept_length=1.5))
    assert "the accept length falls from 2.00 at concurrency 1 to 1.50 at 4" in words
    assert "the accept length" not in said(cell(), cell(concurrency=4), eagle(), eagle(concurrency=4))


def test_no_accepted_draft_points_at_the_drafter():
    assert "the drafter does not fit" in said(cell(), eagle(accepted=0.0, accept_length=1.0))
    assert "(accept length 1.07)" in said(cell(), eagle(accept_length=1.07)), "as the wrong algorithm gave on a GPU"
    assert "the drafter does not fit" not in said(cell(), eagle(accept_length=1.47))


def test_a_contradiction_between_throughput_and_token_time_is_said():
    words = said(cell(), eagle(tok_s=80.0, tpot_ms_p50=5.0))
    assert "is slower: 0.80x" in words and "Token by token that would be 2.00x" in words


def test_what_cannot_be_compared_says_why():
    assert "cannot be compared: no baseline cell with these prompts at this concurrency." in said(eagle())
    blind = said(cell(), eagle(accepted=None, accept_length=None))
    assert "Why is not known (acceptance unknown: no counters)." in blind
    assert "2 of 6 requests failed" in said(cell(), eagle(failed=2))


def test_an_arm_without_speculation_is_compared_too():
    assert "graphs-off on chat at concurrency 1 is slower: 0.80x." in said(
        cell(), cell(arm="graphs-off", tok_s=80.0, tpot_ms_p50=12.5))


def test_the_headline_names_concurrencies_only_where_the_verdict_depends_on_them():
    frame = compared(cell(), cell(concurrency=2), eagle(tok_s=150.0), eagle(concurrency=2),
                     eagle(arm="ngram", algorithm="ngram", tok_s=50.0),
                     eagle(arm="ngram", algorithm="ngram", concurrency=2, tok_s=60.0))
    assert verdict.headline(frame) == (
        "EAGLE-3: on chat faster at concurrency 1 (1.50x), slower at concurrency 2 (0.80x). "
        "n-gram: on chat slower (0.50 to 0.60x).")


def test_only_a_baseline_leaves_nothing_to_compare():
    assert verdict.sentences(compared(cell())) == ["Nothing to compare: no arm beside the baseline was measured."]


def test_the_recorded_tree_is_questioned_and_the_chain_is_not():
    words = verdict.sentences(analysis.compare(analysis.reference()[0]))
    raised = [w for w in words if "the accept length falls" in w]
    assert len(raised) == 1 and raised[0].startswith("tree (EAGLE-3) on python: the accept length falls from 3.84")
