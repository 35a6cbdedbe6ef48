"""The report: one file that needs nothing else, says the verdict first, and survives hostile names."""

import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from plotly.offline import get_plotlyjs
from test_analysis import cell, eagle, texts

from kit import analysis
from kit.errors import KitError
from kit.pages import report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def write(folder, *cells, requests=None, name="r.html", **how):
    points = pd.DataFrame(cells or (cell(), eagle()), columns=list(analysis.POINTS))
    how = {"title": "A title", "provenance": {"host": "gpu-7"}, **how}
    return report(points, requests, path=folder / name, **how)


class Page(HTMLParser):
    """Tags with attributes, ids, and the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    requests = pd.DataFrame(texts("baseline", "1", "a") + texts("eagle3", "1", "b"), columns=list(analysis.REQUESTS))
    path = write(tmp_path_factory.mktemp("report"), requests=requests,
                 provenance={"host": "gpu-7", "arms": {"eagle3": {"--spec-draft-n-max": "3"}}, "sha256": ["ab" * 32]})
    return path.read_text(encoding="utf-8")


def test_it_is_one_file_under_six_megabytes_with_plotly_once(page):
    assert len(page.encode()) < 6_000_000
    assert page.count(get_plotlyjs()) == 1


def test_nothing_in_it_reaches_outside(page):
    parsed = Page(page)
    for tag, attrs in parsed.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert attrs.get(name, "#").startswith("#"), (tag, attrs)
    ours = page.replace(get_plotlyjs(), "")
    assert not re.search(r"https?://|@import|url\(", ours)
    policy = next(m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "http" not in policy


def test_the_verdict_comes_before_table_plots_method_and_provenance(page):
    sections = [s["id"] for s in Page(page).all("section")]
    assert sections == ["verdict", "results", "plots", "method", "provenance", "reference"]
    assert "EAGLE-3: on chat slower (0.80x)" in Page(page).text


def test_numbers_texts_and_provenance_are_in_it(page):
    text = Page(page).text
    for said in ("0.80×", "2.50", "0/1", "gpu-7", "--spec-draft-n-max", "ab" * 32, "no interval"):
        assert said in text, said


def test_every_plot_is_drawn_for_both_sections_under_its_own_id(page):
    ids = [attrs["id"] for _, attrs in Page(page).tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for name in ("speedup", "throughput", "step-cost", "positions", "latency"):
        assert {f"here-{name}", f"recorded-{name}"} <= set(ids)
        assert all(re.search(rf'Plotly\.newPlot\(\s*"{where}-{name}"', page) for where in ("here", "recorded"))


def test_the_recorded_runs_are_marked_as_anothers_and_their_flaws_named(page):
    said = Page(page).text
    assert "Of another machine" in said
    for flaw in analysis.reference()[1]["flaws"]:
        assert flaw in said
    assert "baseline again: 51/64 at 1, 61/64 at 4, 60/64 at 16, 53/64 at 64; eagle3: 46/64 at 1" in said


def test_the_recorded_section_can_be_left_out(tmp_path):
    text = write(tmp_path, reference=False).read_text()
    assert "H200" not in text.replace(get_plotlyjs(), "")


def test_it_can_be_walked_by_keyboard_and_screen_reader(page):
    parsed = Page(page)
    assert parsed.all("html")[0]["lang"] == "en" and len(parsed.all("h1")) == 1
    assert all(len(parsed.all(tag)) == 1 for tag in ("main", "header", "footer", "nav"))
    ids = {attrs.get("id") for _, attrs in parsed.tags}
    assert all(link["href"][1:] in ids for link in parsed.all("a"))
    assert all(s["aria-labelledby"] in ids for s in parsed.all("section"))
    assert len(parsed.all("caption")) == len(parsed.all("table")) == 2
    assert all(th.get("scope") for th in parsed.all("th"))
    assert all(f.get("aria-label") for f in parsed.all("figure"))


def test_it_has_a_dark_look(page):
    assert "prefers-color-scheme: dark" in page


def test_hostile_names_stay_text(tmp_path):
    cells = [{**c, "arm": c["arm"] + HOSTILE if c["arm"] != "baseline" else "baseline", "prompt_set": HOSTILE}
             for c in (cell(), eagle(accept_by_position=(0.5,)))]
    path = write(tmp_path, *cells, title=HOSTILE, name="a'% b.html",
                 provenance={HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}], "deeper": {HOSTILE: HOSTILE}})
    parsed = Page(path.read_text(encoding="utf-8"))
    assert not parsed.all("img")
    assert HOSTILE in parsed.text
    benign = Page(write(tmp_path).read_text(encoding="utf-8"))
    assert len(parsed.all("script")) == len(benign.all("script"))


def test_an_empty_or_broken_measurement_still_makes_a_report(tmp_path):
    nothing = report(pd.DataFrame(columns=list(analysis.POINTS)), pd.DataFrame(columns=list(analysis.REQUESTS)),
                     title="none", path=tmp_path / "deep" / "n.html", provenance={})
    assert "Nothing to compare" in nothing.read_text()
    alone = write(tmp_path, eagle(failed=6, **dict.fromkeys(("tok_s", "tpot_ms_p50", "accept_length", "accepted"))))
    assert "no request succeeded" in alone.read_text()


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KitError, match="cannot write the report"):
        write(tmp_path / "file")
