"""Figures as values: what is drawn, how arms are told apart, and what an empty frame shows."""

import math

import pandas as pd
import plotly.io as pio
import pytest
from test_analysis import cell, compared, eagle

from kit import analysis, plots

BOTH = [(s, c) for s in ("chat", "code") for c in (4, 1)]
CELLS = [cell(prompt_set=s, concurrency=c) for s, c in BOTH] + [
    eagle(prompt_set=s, concurrency=c, accept_by_position=(0.5, 0.25 / c)) for s, c in BOTH] + [
    eagle(arm="ngram", algorithm="ngram", prompt_set="chat", concurrency=c) for c in (1, 4)]
POINTS = pd.DataFrame(CELLS, columns=list(analysis.POINTS))
FRAME = analysis.compare(POINTS)
OF_POINTS = (plots.throughput, plots.acceptance_by_position, plots.latency)
OF_COMPARE = (plots.speedup, plots.step_cost)
ALL = [(draw, POINTS) for draw in OF_POINTS] + [(draw, FRAME) for draw in OF_COMPARE]
NAMES = [draw.__name__ for draw, _ in ALL]


@pytest.mark.parametrize(("draw", "frame"), ALL, ids=NAMES)
def test_an_empty_frame_is_a_figure_that_says_so(draw, frame):
    for empty in (pd.DataFrame(), frame.iloc[:0]):
        figure = draw(empty)
        assert not figure.data and figure.layout.annotations[0].text == "Nothing measured to show here."


@pytest.mark.parametrize(("draw", "frame"), ALL, ids=NAMES)
def test_drawing_leaves_the_frame_and_the_global_defaults_alone(draw, frame):
    before, default = frame.copy(deep=True), pio.templates.default
    first, second = draw(frame), draw(frame)
    pd.testing.assert_frame_equal(frame, before)
    assert pio.templates.default == default and first.to_json() == second.to_json()


@pytest.mark.parametrize(("draw", "frame"), ALL, ids=NAMES)
def test_arms_differ_by_more_than_colour_and_each_is_named_once(draw, frame):
    figure = draw(frame)
    shown = [t for t in figure.data if t.showlegend]
    assert len({t.name for t in shown}) == len(shown) > 0
    if shown[0].type == "bar":
        beside_colour = {t.marker.pattern.shape for t in shown}
    else:
        beside_colour = {(t.marker.symbol, t.line.dash) for t in shown}
    assert len(beside_colour) == len(shown)


@pytest.mark.parametrize(("draw", "frame"), ALL, ids=NAMES)
def test_both_kinds_of_axis_are_labelled(draw, frame):
    figure = draw(frame)
    assert [a for a in figure.select_xaxes() if a.title.text]
    assert figure.layout.yaxis.title.text


def test_ticks_are_the_measured_concurrencies_on_a_log_axis():
    axis = plots.throughput(POINTS).layout.xaxis
    assert axis.type == "log" and axis.tickvals == (1, 4) and axis.ticktext == ("1", "4")
    assert axis.range[0] < 0 and axis.range[1] > math.log10(4)


def test_lines_run_in_order_of_concurrency():
    for trace in plots.throughput(POINTS).data:
        assert list(trace.x) == sorted(trace.x)


def test_one_concurrency_alone_still_has_an_axis():
    axis = plots.throughput(POINTS[POINTS["concurrency"] == 4]).layout.xaxis
    assert axis.tickvals == (4,) and axis.range[0] < math.log10(4) < axis.range[1]


def test_throughput_goes_to_a_log_axis_when_it_spans_a_decade():
    assert plots.throughput(POINTS).layout.yaxis.type is None
    wide = pd.DataFrame([cell(tok_s=200.0), cell(concurrency=64, tok_s=8000.0)])
    axis = plots.throughput(wide).layout.yaxis
    assert axis.type == "log" and "log scale" in axis.title.text and {200.0, 5000.0} <= set(axis.tickvals)


def test_speedup_shows_the_ratio_of_each_arm_and_a_line_at_one():
    figure = plots.speedup(FRAME)
    assert {t.name for t in figure.data} == {"EAGLE-3", "n-gram"}
    assert all(y == pytest.approx(0.8) for t in figure.data for y in t.y)
    assert {s.y0 for s in figure.layout.shapes} == {1}


def test_acceptance_is_shown_in_percent_at_the_lowest_concurrency():
    bars = plots.acceptance_by_position(POINTS).data
    assert len(bars) == 2 and all(list(b.y) == [50, 25] and list(b.x) == [1, 2] for b in bars)


def test_step_cost_draws_cost_and_yield():
    lines = {t.name: list(t.y) for t in plots.step_cost(compared(cell(), eagle())).data}
    assert lines == {"EAGLE-3: cost, single steps": [pytest.approx(2.5)],
                     "EAGLE-3: yield, tokens": [pytest.approx(2.0)]}


def test_latency_shows_only_what_was_measured():
    assert len({t.yaxis for t in plots.latency(POINTS[POINTS["prompt_set"] == "chat"]).data}) == 2
    recorded = plots.latency(analysis.reference()[0].assign(tpot_ms_p50=None, tpot_ms_p95=None))
    assert len({t.yaxis for t in recorded.data}) == 1 and recorded.layout.yaxis.title.text == "first token, ms"


def test_matched_log_axes_are_avoided():
    """plotly.js draws nothing on matched log axes that have a range."""
    assert not [a for a in plots.latency(POINTS).select_xaxes() if a.matches]


def test_a_name_is_shown_as_text_and_not_read_as_markup():
    figure = plots.throughput(pd.DataFrame([cell(arm="<b>x</b>", prompt_set="<a href='//e'>")]))
    assert figure.data[0].name == "&lt;b&gt;x&lt;/b&gt;"
    assert not [a.text for a in figure.layout.annotations if "<" in a.text]
