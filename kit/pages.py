"""One offline HTML file: the verdict in words, the numbers, the plots, how it was measured, and on what.

Nothing in it reaches outside: plotly.js is embedded once, and the content policy forbids every request.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from kit import analysis, plots, verdict
from kit.errors import KitError

POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
          "base-uri 'none'; form-action 'none'")
CONFIG = {"responsive": True, "displaylogo": False, "plotlyServerURL": "",
          "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}
STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #4d535e; --line: #d5d9e0; --page: #fff; --band: #f4f5f8;
        --accent: #0a5ea8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ec; --soft: #b4bac5; --line: #3c424d; --page: #15181d; --band: #1e2229; --accent: #7fb8ee; }
  .js-plotly-plot :is(.cartesianlayer, .infolayer) text { fill: var(--soft) !important; }
  .js-plotly-plot .cartesianlayer path.crisp { stroke: var(--line) !important; }
  .js-plotly-plot .shapelayer path { stroke: var(--soft) !important; }
  .js-plotly-plot .legend .bg { fill: transparent !important; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0; }
main, header, footer { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem; }
h1 { line-height: 1.2; margin: 1.5rem 0 .5rem; } h2 { margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line);
  padding-top: 1.25rem; } h3 { margin: 1.5rem 0 .25rem; }
a { color: var(--accent); } nav a { margin-right: 1.1rem; } .skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--page); padding: .3rem .6rem; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.headline { font-size: 1.2rem; font-weight: 600; } .flawed { border-left: 4px solid #D55E00; padding: .1rem 1rem;
  background: var(--band); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; caption-side: top; }
th, td { padding: .28rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--line); } .n { text-align: right;
  font-variant-numeric: tabular-nums; } tbody tr:nth-child(even) { background: var(--band); }
tbody th { font-weight: 600; white-space: nowrap; }
figure { margin: 1.25rem 0; } figcaption { color: var(--soft); font-size: .9rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 1.2rem; overflow-wrap: anywhere; } code { overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: .9rem; margin-top: 2.5rem; padding-bottom: 2rem; }
@media print { nav, .modebar-container { display: none !important; } figure, tr { break-inside: avoid; } }
"""
COLUMNS: tuple[tuple[str, str, Callable[[dict], str]], ...] = (
    ("arm", "", lambda r: verdict.label(r["arm"], r["algorithm"])),
    ("prompts", "", lambda r: str(r["prompt_set"])),
    ("con­cur­rency", "n", lambda r: str(r["concurrency"])),
    ("output tok/s", "n", lambda r: _fixed(r["tok_s"], 1)),
    ("speed-up", "n", lambda r: _fixed(r["speedup"], 2, "×")),
    ("first token, ms", "n", lambda r: _fixed(r["ttft_ms"], 0)),
    ("per token, ms", "n", lambda r: _fixed(r["tpot_ms"], 1)),
    ("accept length", "n", lambda r: _fixed(r["accept_length"], 2)),
    ("tokens / step", "n", lambda r: _fixed(r["tokens_per_step"], 2)),
    ("step costs, single steps", "n", lambda r: _fixed(r["step_cost"], 2)),
    ("accept length to break even", "n", lambda r: _fixed(r["break_even_length"], 2)),
    ("same text", "n", lambda r: f"{r['identical']}/{r['compared']}" if pd.notna(r["compared"]) and r["compared"]
     else "–"),
    ("note", "", lambda r: str(r["note"] or "")),
)
METHOD = (
    "Closed loop: at concurrency n, n requests are in flight until the list of prompts is done. Every arm gets the "
    "same prompts in the same order; answers are streamed and decoded greedily.",
    "Output tokens per second are the tokens of the answered requests over the wall time of the cell. Time to first "
    "token and time per token are medians over requests; time per token is (last − first token) / (tokens − 1), "
    "whatever the number of tokens in a chunk.",
    "Speed-up is the ratio of throughputs, arm over baseline. Accept length is 1 + accepted drafts / steps that had a "
    "draft, from the engine's own counters before and after the cell.",
    "A step's cost is derived, not observed: time per token × tokens per step, in units of the baseline's time per "
    "token. Tokens per step is decoded tokens / (decoded tokens − accepted drafts). The cost holds everything that a "
    "step does, drafting and scheduling too.",
    "The accept length to break even supposes that a step goes on costing what it cost here.",
)
NOT = (
    "An interval: there is one run per arm, and a second may differ by more than the difference seen.",
    "Another machine, model, prompt set or load: acceptance depends on the text, the cost of a step on the hardware.",
    "A proof that speculation is lossless: equal texts on a few prompts show no fault, unequal ones may be numerics.",
)


def report(points: pd.DataFrame, requests: pd.DataFrame | None, *, title: str, path: str | Path,
           provenance: Mapping[str, Any], reference: bool = True, baseline: str = "baseline") -> Path:
    """Write the report to `path` and return it.

    points, requests  frames as in `kit.analysis`
    provenance        host, engine, versions, checksums, arms in the engine's terms: shown as nested lists
    reference         add the recorded H200 runs as a second section

    Raises KitError when the file cannot be written.
    """
    frame = analysis.compare(points, requests, baseline)
    body = [_section("verdict", "Verdict", _words(frame, baseline)),
            _section("results", "Results", _table(frame, f"Every measured cell. {title}")),
            _section("plots", "Plots", _plots(points, frame, "here", baseline)),
            _section("method", "Method", f"{_items(METHOD)}<h3>What the numbers are not</h3>{_items(NOT)}"),
            _section("provenance", "Provenance", _facts(provenance))]
    links = {"verdict": "Verdict", "results": "Results", "plots": "Plots", "method": "Method",
             "provenance": "Provenance"}
    if reference:
        body.append(_section("reference", *_reference()))
        links["reference"] = "Recorded H200 runs"
    text = _page(title, links, body)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise KitError(f"cannot write the report: {e.strerror}", where=str(path),
                       next="choose a folder you may write to") from None
    return path


# ------------------------------------------------------------------- parts

def _words(frame: pd.DataFrame, baseline: str) -> str:
    said = verdict.sentences(frame, baseline)
    words = f"<p class='headline'>{_e(verdict.headline(frame, baseline))}</p>" + (_items(said) if len(said) > 1 else "")
    return words.replace("n-gram", "n\u2011gram")        # a hyphen at which no line breaks


def _table(frame: pd.DataFrame, caption: str) -> str:
    """The comparison as a table; columns in which nothing is known are left out."""
    records = frame.to_dict("records")
    columns = [c for c in COLUMNS if any(c[2](record) not in ("", "–") for record in records)]
    head = "".join(f"<th scope='col' class='{kind}'>{_e(name)}</th>" for name, kind, _ in columns)
    rows = []
    for record in records:
        arm, *values = (f"{_e(show(record))}" for _, _, show in columns)
        cells = (f"<td class='{kind}'>{value}</td>" for (_, kind, _), value in zip(columns[1:], values, strict=True))
        rows.append(f"<tr><th scope='row'>{arm}</th>{''.join(cells)}</tr>")
    return (f"<div class='scroll' tabindex='0' role='region' aria-label='{_e(caption)}'><table>"
            f"<caption>{_e(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>")


def _plots(points: pd.DataFrame, frame: pd.DataFrame, where: str, baseline: str,
           by_position: pd.DataFrame | None = None, position_note: str = "") -> str:
    shown = (
        ("speedup", plots.speedup(frame, baseline), "Above 1 the arm is faster than the baseline, below it is slower."),
        ("throughput", plots.throughput(points), "All tokens of all requests, per second of wall time."),
        ("step-cost", plots.step_cost(frame, baseline),
         "Per token, an arm wins where its yield (open markers) lies above its cost (filled markers)."),
        ("positions", plots.acceptance_by_position(points if by_position is None else by_position),
         position_note or "How often the first, second, … draft was accepted, at each arm's lowest concurrency; "
         "nothing where the engine's counters do not tell it."),
        ("latency", plots.latency(points), "Medians over the requests of a cell."))
    return "".join(_figure(f"{where}-{name}", figure, caption) for name, figure, caption in shown)


def _figure(name: str, figure: go.Figure, caption: str) -> str:
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config=CONFIG, div_id=name, default_width="100%",
                           default_height=f"{figure.layout.height or plots.TEMPLATE.layout.height}px")
    return f"<figure aria-label='{_e(figure.layout.title.text)}'>{drawn}<figcaption>{_e(caption)}</figcaption></figure>"


def _reference() -> tuple[str, str]:
    """(heading, content) of the recorded runs."""
    points, card = analysis.reference()
    frame = analysis.compare(points)
    points = analysis.newest(points)
    shares = points[points["arm"].isin(card["by_position"])].drop_duplicates("arm")
    shares = shares.assign(accept_by_position=[tuple(card["by_position"][a]) for a in shares["arm"]])
    steps = ", ".join(f"{arm}: {n} steps" for arm, n in card["by_position_steps"].items())
    same = "; ".join(f"{arm}: " + ", ".join(f"{n}/{of} at {c}" for c, (n, of) in cells.items())
                     for arm, cells in card["identical"].items())
    flawed = (f"<div class='flawed' role='note'><p><strong>Of another machine.</strong> These runs are never joined to "
              f"the numbers above. What to know of them:</p>{_items(card['flaws'])}</div>")
    return card["title"], "".join((
        flawed, "<h3>What they say</h3>", _words(frame, "baseline"),
        f"<p>Texts equal to the baseline's, by concurrency: {_e(same)}.</p>",
        _table(frame.assign(note=""), "Recorded on one H200: the same prompts in every row"),
        _plots(points, frame, "recorded", "baseline", shares,
               f"From the server's own counts, one prompt at a time ({steps}). For a tree, position means depth."),
        "<h3>Where they come from</h3>", _facts(card["provenance"])))


def _facts(facts: Any) -> str:
    """Nested mappings and lists as definition lists."""
    if isinstance(facts, Mapping):
        return "<dl>" + "".join(f"<dt>{_e(k)}</dt><dd>{_facts(v)}</dd>" for k, v in facts.items()) + "</dl>"
    if isinstance(facts, (list, tuple)):
        return _items(facts) if facts else "–"
    return f"<code>{_e(facts)}</code>" if facts not in (None, "") else "–"


def _items(texts: Iterable[Any]) -> str:
    return "<ul>" + "".join(f"<li>{_e(t)}</li>" for t in texts) + "</ul>"


def _section(name: str, heading: str, content: str) -> str:
    return f"<section id='{name}' aria-labelledby='{name}-h'><h2 id='{name}-h'>{_e(heading)}</h2>{content}</section>"


def _page(title: str, links: Mapping[str, str], body: Iterable[str]) -> str:
    nav = "".join(f"<a href='#{name}'>{_e(text)}</a>" for name, text in links.items())
    return (f"<!doctype html><html lang='en'><head><meta charset='utf-8'><meta http-equiv='Content-Security-Policy' "
            f"content=\"{POLICY}\"><meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>{_e(title)}</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>"
            f"<a class='skip' href='#verdict'>Skip to the verdict</a><header><h1>{_e(title)}</h1>"
            f"<nav aria-label='Sections'>{nav}</nav></header><main>{''.join(body)}</main>"
            "<footer>Made by Specbook. This file is complete: it opens without a network.</footer></body></html>")


def _fixed(value: float, digits: int, unit: str = "") -> str:
    return "–" if pd.isna(value) else f"{value:.{digits}f}{unit}"


def _e(text: Any) -> str:
    return html.escape(str(text), quote=True)
