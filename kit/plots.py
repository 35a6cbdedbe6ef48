"""Frames → figures. Each function is pure: a frame in, a `go.Figure` out, nothing registered or shown.

One template for all; arms are told apart by colour, marker and dash; one panel per prompt set.
Of several runs of an arm the newest is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kit.analysis import newest
from kit.verdict import label

# Okabe and Ito's palette for colour vision deficiency, without yellow (no contrast); the first look is the baseline's.
COLOURS = ("#7f7f7f", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES = ("dot", "solid", "dash", "dashdot", "longdash", "solid", "dash")
PATTERNS = ("", "/", "x", ".", "\\", "-", "+")
INK, LINE = "#4d535e", "#d5d9e0"
AXIS = {"gridcolor": LINE, "linecolor": LINE, "zerolinecolor": LINE, "showline": True, "ticks": "outside",
        "tickcolor": LINE, "automargin": True, "title": {"standoff": 8, "font": {"size": 13}}}
TEMPLATE = go.layout.Template(layout={
    "font": {"family": "system-ui, sans-serif", "size": 14, "color": INK},
    "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "colorway": COLOURS, "height": 400,
    "title": {"x": 0.01, "xref": "container", "font": {"size": 17}}, "margin": {"l": 64, "r": 16, "t": 84, "b": 104},
    "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#8a909b", "activecolor": "#0072B2"},
    "hoverlabel": {"bgcolor": "rgba(255,255,255,0.95)", "font": {"size": 13, "color": INK}},
    "xaxis": AXIS, "yaxis": AXIS, "bargap": 0.25})


def throughput(points: pd.DataFrame) -> go.Figure:
    """Output tokens per second over concurrency; a log axis where the values span more than a decade.

    >>> throughput(pd.DataFrame()).layout.annotations[0].text
    'Nothing measured to show here.'
    """
    points = _known(newest(points), "tok_s")
    wide = len(points) > 0 and points["tok_s"].max() > 10 * points["tok_s"].min()
    figure = _panels(points, "Throughput", ["output tokens / s" + (", log scale" if wide else "")])
    for column, cells, look in _each(points):
        _line(figure, 1, column, cells, "tok_s", look, "%{y:.1f} tok/s")
    return _by_concurrency(_log_values(figure, points["tok_s"]) if wide else figure, points)


def speedup(compare: pd.DataFrame, baseline: str = "baseline") -> go.Figure:
    """Throughput of each arm relative to the baseline; the line at 1 is the baseline itself."""
    arms = _beside(compare, baseline, "speedup")
    figure = _panels(arms, "Speed-up", ["× baseline's throughput"])
    for column, cells, look in _each(arms):
        _line(figure, 1, column, cells, "speedup", look, "%{y:.2f}×")
    if len(arms):
        figure.add_hline(y=1, line={"color": INK, "width": 1.5})
        figure.add_annotation(text="1.0 = baseline", x=1, xref="x domain", xanchor="right", y=1, yref="y",
                              yanchor="bottom", showarrow=False, font={"size": 12})
    return _by_concurrency(figure, arms)


def step_cost(compare: pd.DataFrame, baseline: str = "baseline") -> go.Figure:
    """What a step costs (single steps of the baseline) and what it yields (tokens), over concurrency.

    Per token an arm wins where its yield (open markers) is above its cost (filled).
    """
    arms = _beside(compare, baseline, "step_cost")
    figure = _panels(arms, "Cost and yield of an engine step", ["single steps, or tokens"])
    for column, cells, look in _each(arms):
        name, symbol = look["name"], look["marker"]["symbol"]
        for value, what, dash, mark, unit in (("step_cost", "cost", "solid", symbol, "single steps"),
                                              ("tokens_per_step", "yield", "dot", f"{symbol}-open", "tokens")):
            line = look | {"name": f"{name}: {what}, {unit}", "legendgroup": name + what}
            line |= {"line": look["line"] | {"dash": dash}, "marker": look["marker"] | {"symbol": mark}}
            _line(figure, 1, column, cells, value, line, f"%{{y:.2f}} {unit}")
    return _by_concurrency(figure, arms)


def acceptance_by_position(points: pd.DataFrame) -> go.Figure:
    """P(draft position i accepted) over the steps with a draft, at the lowest concurrency of each arm."""
    points = newest(points)
    if len(points):
        points = points[[isinstance(p, (tuple, list)) and len(p) > 0 for p in points["accept_by_position"]]]
        points = points.sort_values("concurrency").drop_duplicates(["arm", "prompt_set"]).sort_index()
    figure = _panels(points, "Acceptance by draft position", ["accepted, % of steps"])
    for column, cells, look in _each(points):
        shares = cells["accept_by_position"].iloc[0]
        figure.add_bar(x=list(range(1, len(shares) + 1)), y=[100 * s for s in shares], row=1, col=column,
                       marker={"color": look["line"]["color"],
                               "pattern": {"shape": look["pattern"], "size": 7, "solidity": 0.2, "fgcolor": "white",
                                           "fillmode": "overlay"}},
                       **{k: look[k] for k in ("name", "legendgroup", "showlegend")},
                       hovertemplate=f"%{{y:.1f}} % (concurrency {cells['concurrency'].iloc[0]})")
    if len(points):
        figure.update_yaxes(range=[0, 100])
        figure.update_xaxes(title_text="draft position", dtick=1)
    return figure


def latency(points: pd.DataFrame) -> go.Figure:
    """Medians over concurrency: time to first token above, time per output token below (where measured)."""
    points = newest(points)
    wanted = {"ttft_ms_p50": "first token, ms", "tpot_ms_p50": "per token, ms"}
    values = [v for v in wanted if len(_known(points, v))]
    points = points if values else points.iloc[:0]
    figure = _panels(points, "Latency, medians", [wanted[v] for v in values])
    for column, cells, look in _each(points):
        for row, value in enumerate(values, 1):
            _line(figure, row, column, cells, value, look | {"showlegend": look["showlegend"] and row == 1},
                  "%{y:.1f} ms")
    figure = _by_concurrency(figure, points)
    if len(values) == 2:
        figure.update_layout(height=600).update_xaxes(showticklabels=False, title_text=None, row=1)
    return figure


# ---------------------------------------------------------------- shared parts

def _known(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """The rows where `value` was measured."""
    return frame[frame[value].notna()] if len(frame) else pd.DataFrame(columns=[value])


def _beside(compare: pd.DataFrame, baseline: str, value: str) -> pd.DataFrame:
    """The arms that could be compared, without the baseline itself."""
    known = _known(compare, value)
    return known[known["arm"] != baseline] if len(known) else known


def _panels(frame: pd.DataFrame, title: str, units: list[str]) -> go.Figure:
    """One column per prompt set, one row per unit; without data a figure that says so."""
    if frame.empty:
        figure = go.Figure(layout={"template": TEMPLATE, "title": {"text": title}, "height": 200})
        figure.update_xaxes(visible=False).update_yaxes(visible=False)
        return figure.add_annotation(text="Nothing measured to show here.", showarrow=False, font={"size": 15})
    sets = [f"{_text(s)} prompts" for s in frame["prompt_set"].unique()]
    # x axes are not shared: plotly.js draws nothing on matched log axes that have a range
    figure = make_subplots(rows=len(units), cols=len(sets), shared_yaxes=True, column_titles=sets,
                           horizontal_spacing=0.04, vertical_spacing=0.08)
    figure.update_layout(template=TEMPLATE, title={"text": title}, hovermode="x unified")
    figure.update_yaxes(rangemode="tozero")
    for row, unit in enumerate(units, 1):
        figure.update_yaxes(title_text=unit, row=row, col=1)
    return figure


def _each(frame: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame, dict]]:
    """(column, cells by concurrency, look) per arm and prompt set. Grey is for arms without speculation."""
    if frame.empty:
        return
    columns = {name: number for number, name in enumerate(frame["prompt_set"].unique(), 1)}
    coloured = 0
    for (arm, algorithm), of_arm in frame.groupby(["arm", "algorithm"], sort=False):
        n = 0 if algorithm == "none" else 1 + coloured % (len(COLOURS) - 1)
        coloured += algorithm != "none"
        name = _text(label(arm, algorithm))
        for nth, (prompt_set, cells) in enumerate(of_arm.groupby("prompt_set", sort=False)):
            yield columns[prompt_set], cells.sort_values("concurrency"), {
                "name": name, "legendgroup": name, "showlegend": nth == 0, "pattern": PATTERNS[n],
                "line": {"color": COLOURS[n], "dash": DASHES[n], "width": 2},
                "marker": {"symbol": MARKERS[n], "size": 9}}


def _line(figure: go.Figure, row: int, column: int, cells: pd.DataFrame, value: str, look: dict, hover: str) -> None:
    look = {k: v for k, v in look.items() if k != "pattern"}
    figure.add_scatter(x=cells["concurrency"].tolist(), y=cells[value].tolist(), row=row, col=column,
                       mode="lines+markers", hovertemplate=hover, **look)


def _by_concurrency(figure: go.Figure, frame: pd.DataFrame) -> go.Figure:
    """A log axis (equal steps for doublings) whose ticks are the concurrencies that were measured."""
    if frame.empty:
        return figure
    ticks = sorted({int(c) for c in frame["concurrency"]})
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    pad = max(0.06 * (high - low), 0.05)
    return figure.update_xaxes(type="log", tickmode="array", tickvals=ticks, ticktext=[str(t) for t in ticks],
                               range=[low - pad, high + pad], title_text="concurrency, requests in flight")


def _log_values(figure: go.Figure, values: pd.Series) -> go.Figure:
    """A log value axis with full numbers at 1, 2, 5 of each decade."""
    decades = range(math.floor(math.log10(values.min())), math.ceil(math.log10(values.max())) + 1)
    ticks = [m * 10.0 ** d for d in decades for m in (1, 2, 5)]
    return figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])


def _text(name: str) -> str:
    """A name as it is: plotly would read tags in it."""
    return html.escape(str(name), quote=False)
