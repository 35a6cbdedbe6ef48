"""The views, driven without kernel or browser: what they show, what their buttons do, what a saved copy keeps."""

import threading
import time

import ipywidgets as W
import pandas as pd
import plotly.graph_objects as go
import pytest

from kit import ui_controls
from kit.errors import CheckError, PlanError
from kit.job import Job
from kit.spec import Experiment, Spec
from kit.ui import MAX_LINES, controls, watch
from kit.ui_controls import FIELDS, bounds, field_of, help_of, read, shown, terms


def eventually(said, limit_s=5.0):
    end = time.monotonic() + limit_s
    while not said():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)


class Engine:
    name = "llamacpp"
    algorithms = ("none", "ngram", "eagle3")

    def terms(self, spec):
        return {"--n-max": str(spec.drafts)} if spec.drafts else {}


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr("kit.ui.engine_of", lambda exp: Engine())


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setattr("kit.ui.engine_of", lambda exp: None)


@pytest.fixture
def exp():
    return Experiment.model_validate({
        "name": "lap", "host": "rehearsal", "engine": {"name": "llamacpp"},
        "target": {"source": "host:/m/t.gguf"}, "drafter": {"source": "host:/m/d.gguf"},
        "arms": {"baseline": {}, "eagle3": {"algorithm": "eagle3"}}, "arm_name": "eagle3"})


def release_after(gate, value=None):
    return lambda job: gate.wait(5) and value


# -- watch

def test_a_view_follows_its_job_to_the_end():
    gate, said = threading.Event(), threading.Event()

    def work(job):
        job.phase("load")
        job.progress(1, 4, "shard 1")
        job.line("first words")
        said.set()
        gate.wait(5)

    job = Job.start("serve", work)
    view = watch(job)
    assert said.wait(5)
    eventually(lambda: "first words" in view.tail.value)
    assert view.bar.value == 0.25 and "running · load" in view.words.value and "1 of 4" in view.words.value
    assert not view.cancel.disabled
    gate.set()
    eventually(lambda: view.cancel.disabled)
    assert "done" in view.words.value and view.bar.value == 1.0 and view.error.value == ""
    eventually(lambda: not job._observers)


def test_the_cancel_button_cancels_and_twice_is_fine():
    calls = []

    def work(job):
        while True:
            job.progress(0)
            time.sleep(0.005)

    view = watch(Job.start("turn", work, cancel=lambda: calls.append(1)))
    view.cancel.click()
    view.cancel.click()
    view.job.wait()
    eventually(lambda: view.cancel.disabled and "cancelled" in view.words.value)
    assert calls == [1]


def test_a_view_says_that_it_is_cancelling_while_the_work_goes_on():
    gate = threading.Event()
    view = watch(Job.start("slow to stop", release_after(gate)))
    view.cancel.click()
    eventually(lambda: "cancelling" in view.words.value and view.cancel.disabled)
    gate.set()
    view.job.wait()


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_job_shows_its_error_in_three_lines_however_early_it_fails(late):
    def work(job):
        raise CheckError("hidden sizes differ: 576 and 64", where="<drafter>", next="choose another")

    job = Job.start("check", work)
    view = watch(job.wait() if late else job)
    eventually(lambda: view.error.value)
    assert view.error.value.count("\n") == 2
    assert "576 and 64" in view.error.value and "&lt;drafter&gt;" in view.error.value
    assert "failed" in view.words.value and view.cancel.disabled


def test_a_job_without_a_total_has_no_bar():
    gate = threading.Event()
    view = watch(Job.start("endless", release_after(gate)))
    assert view.bar.layout.display == "none"
    gate.set()
    view.job.wait()


def test_lines_are_escaped_cut_and_only_the_last_are_sent():
    def work(job):
        for i in range(1000):
            job.line(f"line {i}.")
        job.line("<script>alert(1)</script>\x1b[31mred\x1b[0m" + "x" * 10_000)

    view = watch(Job.start("log", work).wait(), lines=10_000)
    html = view.tail.value
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "\x1b" not in html and "red" in html and len(html) < 20_000
    assert html.count("line ") == MAX_LINES - 1 and "line 999." in html and "line 500." not in html


def test_a_flood_of_lines_reaches_the_view_in_few_updates_and_does_not_hold_the_work():
    updates = []
    go_on, flooded = threading.Event(), threading.Event()

    def work(job):
        go_on.wait(5)
        for i in range(5000):
            job.line(f"line {i}.")
        flooded.set()

    view = watch(Job.start("flood", work))
    view.tail.observe(lambda change: updates.append(1), "value")
    go_on.set()
    assert flooded.wait(5)
    eventually(lambda: "line 4999." in view.tail.value)
    assert 1 <= len(updates) < 50


def test_a_closed_view_lets_the_job_go_on_and_is_not_kept_by_it():
    gate = threading.Event()
    job = Job.start("closed", release_after(gate, 7))
    watch(job).close()
    assert not job._observers and not job.ended
    gate.set()
    assert job.result() == 7


def test_a_saved_view_reads_as_text():
    def work(job):
        job.line("<last> words")
        raise ValueError("odd")

    view = watch(Job.start("saved", work).wait())
    saved = view._repr_mimebundle_()
    assert saved["text/plain"] == repr(view)
    assert "saved: failed" in saved["text/plain"] and "| <last> words" in saved["text/plain"]
    assert "odd" in saved["text/plain"] and "&lt;last&gt;" in saved["text/html"]


# -- controls: fields

def test_every_control_has_a_name_its_bounds_and_its_help_from_the_model(exp, engine):
    knobs = controls(exp)
    assert tuple(knobs.fields) == FIELDS
    for name, widget in knobs.fields.items():
        assert widget.description and not isinstance(widget, W.IntSlider)
        assert field_of(name).description in widget.tooltip
    steps = knobs.fields["spec.steps"]
    assert (steps.min, steps.max) == bounds(field_of("spec.steps"))
    assert help_of("spec.draft_tokens").endswith("empty: automatic")
    labels = [w for row in knobs.children if isinstance(row, W.HBox) for w in row.children]
    assert all(w.description for w in labels if isinstance(w, W.Button))


def test_only_algorithms_of_the_engine_are_offered(exp, engine):
    assert controls(exp).fields["spec.algorithm"].options == Engine.algorithms


def test_an_unknown_engine_offers_all(exp, no_engine):
    assert set(controls(exp).fields["spec.algorithm"].options) >= {"none", "suffix", "mtp"}


def test_an_experiment_the_engine_cannot_serve_is_shown_and_explained(exp, engine):
    knobs = controls(exp.with_(**{"spec.algorithm": "suffix"}))
    assert knobs.fields["spec.algorithm"].value == "suffix"
    assert "llamacpp does not offer suffix" in knobs.problem and knobs.apply.disabled


def test_no_such_engine_is_no_error(exp):
    assert ui_controls.engine_of(exp.with_(**{"engine.name": "unheard-of"})) is None


@pytest.mark.parametrize("name, raw, value", [
    ("spec.draft_tokens", "", None), ("spec.draft_tokens", " 7 ", "7"), ("spec.steps", 4, 4),
    ("bench.concurrency", "1, 2 8", ("1", "2", "8")), ("bench.concurrency", "", ())])
def test_fields_are_read_without_judging(name, raw, value):
    assert read(name, raw) == value


@pytest.mark.parametrize("value", [None, 3, "eagle3", (1, 2)])
def test_values_are_shown_as_their_widget_holds_them(value):
    assert shown(value) == {None: "", 3: 3, "eagle3": "eagle3", (1, 2): "1, 2"}[value]


# -- controls: the setting

def test_a_change_makes_a_checked_experiment_and_a_difference(exp, engine):
    knobs = controls(exp)
    assert knobs.experiment == exp and knobs.diff == []
    knobs.fields["spec.steps"].value = 5
    knobs.fields["bench.concurrency"].value = "1, 4"
    knobs.fields["spec.draft_tokens"].value = "6"
    assert knobs.experiment.spec == Spec(algorithm="eagle3", steps=5, draft_tokens=6)
    assert knobs.diff == [("arms.eagle3.draft_tokens", None, 6), ("arms.eagle3.steps", 3, 5),
                          ("bench.concurrency", (1, 2), (1, 4))]
    assert knobs.loaded == exp and exp.spec.steps == 3
    assert "arms.eagle3.steps         3 → 5" in repr(knobs)


@pytest.mark.parametrize("name, value, said", [
    ("spec.steps", 99, "arms.eagle3.steps"), ("spec.steps", 0, "arms.eagle3.steps"),
    ("spec.draft_tokens", "many", "arms.eagle3.draft_tokens"), ("bench.concurrency", "1, x", "bench.concurrency"),
    ("bench.concurrency", "", "bench.concurrency"), ("bench.concurrency", "2 2", "named once"),
    ("serve.context", 1, "serve.context")])
def test_an_impossible_value_is_explained_and_the_last_valid_setting_stays(exp, engine, name, value, said):
    knobs = controls(exp, on_apply=lambda e: pytest.fail("applied"))
    knobs.fields["spec.topk"].value = 2
    valid, before = knobs.experiment, knobs.fields[name].value
    knobs.fields[name].value = value
    assert said in knobs.problem and said in repr(knobs)
    assert knobs.experiment == valid and knobs.apply.disabled
    knobs.apply.click()
    assert knobs.job is None
    knobs.fields[name].value = before
    assert knobs.problem == "" and not knobs.apply.disabled


def test_an_algorithm_that_needs_a_missing_drafter_is_explained(engine, exp):
    bare = exp.with_(arms={"baseline": {}}, arm_name="baseline", drafter=None)
    knobs = controls(bare)
    knobs.fields["spec.algorithm"].value = "eagle3"
    assert "needs a drafter" in knobs.problem and knobs.experiment == bare


def test_reset_goes_back_to_the_loaded_experiment(exp, engine):
    knobs = controls(exp)
    knobs.fields["spec.steps"].value = 99
    knobs.fields["spec.algorithm"].value = "ngram"
    knobs.reset.click()
    assert knobs.experiment == exp and knobs.diff == [] and knobs.problem == ""
    assert knobs.fields["spec.steps"].value == 3


def test_three_drafts_are_four_verified_tokens_for_sglang_and_three_for_vllm():
    table = terms(Spec(algorithm="eagle3", steps=3), Engine())
    assert table["SGLang"] == {"--speculative-num-steps": "3", "--speculative-eagle-topk": "1",
                               "--speculative-num-draft-tokens": "4"}
    assert table["vLLM"] == {"num_speculative_tokens": "3"}
    assert table["llamacpp (this host's engine)"] == {"--n-max": "3"}


def test_without_speculation_nobody_has_terms():
    assert not any(terms(Spec(), Engine()).values())


def test_what_was_measured_before_is_shown_and_a_broken_store_is_told(exp, engine):
    knobs = controls(exp, measured=lambda e: pd.DataFrame({"tok_s": [float(e.spec.steps)]}))
    knobs.fields["spec.steps"].value = 8
    assert "8.0" in repr(knobs)

    def broken(experiment):
        raise OSError("store from a newer schema")

    assert "store from a newer schema" in repr(controls(exp, measured=broken))


# -- controls: apply

def test_apply_runs_the_setting_once_however_often_it_is_clicked(exp, engine):
    gate, started = threading.Event(), []

    def probe(experiment):
        started.append(experiment)
        return Job.start("probe", release_after(gate, "12.5 tok/s"))

    knobs = controls(exp, on_apply=probe)
    knobs.fields["spec.steps"].value = 4
    knobs.apply.click()
    knobs.apply.click()
    assert knobs.running and knobs.apply.disabled
    assert [e.spec.steps for e in started] == [4]
    assert "probe: " in repr(knobs)
    gate.set()
    eventually(lambda: not knobs.running)
    assert knobs.result == "12.5 tok/s" and "12.5 tok/s" in repr(knobs) and not knobs.apply.disabled
    knobs.apply.click()
    eventually(lambda: not knobs.running)
    assert len(started) == 2


def test_clicks_from_two_handler_threads_start_one_job(exp, engine):
    gate, barrier, started = threading.Event(), threading.Barrier(8), []

    def probe(experiment):
        started.append(1)
        return Job.start(f"probe {len(started)}", release_after(gate))

    knobs = controls(exp, on_apply=probe)

    def click():
        barrier.wait(5)
        knobs.apply.click()

    clicks = [threading.Thread(target=click) for _ in range(8)]
    [t.start() for t in clicks]
    [t.join() for t in clicks]
    assert started == [1]
    gate.set()
    eventually(lambda: not knobs.running)


def test_a_probe_that_ended_before_it_could_be_watched_is_settled_too(exp, engine):
    knobs = controls(exp, on_apply=lambda e: Job.start("instant", lambda job: 3).wait())
    knobs.apply.click()
    assert knobs.result == 3 and not knobs.running


def test_a_probe_that_fails_shows_why_and_can_be_tried_again(exp, engine):
    def refuse(job):
        raise PlanError("port 8101 is busy", where="gpu-7", next="stop pid 4242")

    knobs = controls(exp, on_apply=lambda e: Job.start("probe", refuse))
    knobs.apply.click()
    eventually(lambda: not knobs.running)
    assert knobs.result is None and "stop pid 4242" in repr(knobs) and not knobs.apply.disabled


@pytest.mark.parametrize("on_apply, said", [
    (lambda e: (_ for _ in ()).throw(PlanError("not connected", next="connect first")), "connect first"),
    (lambda e: 1 / 0, "ZeroDivisionError"), (lambda e: None, "gave a NoneType, not a Job")])
def test_an_apply_that_cannot_start_is_told_in_the_view(exp, engine, on_apply, said):
    knobs = controls(exp, on_apply=on_apply)
    knobs.apply.click()
    assert said in repr(knobs) and knobs.job is None
    assert not knobs.running and not knobs.apply.disabled


def test_without_anything_to_apply_the_button_is_off(exp, engine):
    knobs = controls(exp)
    knobs.apply.click()
    assert knobs.apply.disabled and knobs.job is None


def test_a_figure_is_handed_over_and_named_but_never_put_into_a_widget(exp, engine):
    figure = go.Figure(go.Bar(y=[1.2]), layout={"title": {"text": "speed-up"}})
    knobs = controls(exp, on_apply=lambda e: Job.start("probe", lambda job: figure))
    knobs.apply.click()
    eventually(lambda: not knobs.running)
    assert knobs.result is figure and "figure: speed-up" in repr(knobs)

    def inside(widget):
        yield widget
        for child in getattr(widget, "children", ()):
            yield from inside(child)

    assert not any(isinstance(w, W.Output) for w in inside(knobs))


def test_values_shown_by_the_controls_are_escaped(exp, engine):
    knobs = controls(exp, measured=lambda e: "<script>alert(1)</script>")
    assert "<script>" not in knobs._said.value and "&lt;script&gt;" in knobs._said.value
    assert "<script>" not in knobs._repr_mimebundle_()["text/html"]
