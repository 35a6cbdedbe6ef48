"""Run folders: complete or absent, never half."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from doubles import LocalHost

from kit import metrics, store
from kit.errors import KitError, LinkLost
from kit.spec import Experiment

EXP = Experiment.load(Path(__file__).parent.parent / "configs" / "micro.yaml").arm("eagle3")
ID = "20250131T120000Z-micro-eagle3-1f3a"
RECORD = {"id": "chat-000", "set": "chat", "concurrency": 1, "phase": "measure", "text": "x", "error": None,
          "usage": {"completion_tokens": 2}, "chunks": {"t_s": [0.1, 0.2], "tokens": [None, None]},
          "finish_reason": "stop", "t_send": 0.0, "t_end": 0.3}
CELL = {"set": "chat", "concurrency": 1, "metrics_before": None, "metrics_after": None}


def meta(run_id=ID):
    return {"id": run_id, "experiment": EXP.model_dump(mode="json"), "arm": EXP.arm_name, "engine": {"name": "demo"}}


def on_host(tmp_path, name=ID, done=True):
    """What the load program leaves in a run's folder on the host."""
    folder = tmp_path / "it's a host" / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text("{}")
    (folder / "records.jsonl").write_text(json.dumps(RECORD) + "\n")
    (folder / "cells.jsonl").write_text(json.dumps(CELL) + "\n")
    if done:
        (folder / "done.json").write_text('{"measured": 1}')
    return str(folder)


def collect(tmp_path, name=ID, done=True):
    remote = on_host(tmp_path, name, done)
    return store.collect(LocalHost(tmp_path / "it's a host"), remote, meta(name), tmp_path / "runs")


def left_over(tmp_path):
    return sorted(p.name for p in (tmp_path / "runs").iterdir())


def test_a_run_comes_home_whole(tmp_path):
    run = collect(tmp_path)
    assert run.complete and run.records == (RECORD,) and run.cells == (CELL,) and run.done == {"measured": 1}
    assert run.meta["schema"] == 1 and run.meta["arm"] == "eagle3" and run.meta["created"]
    assert store.load(ID, tmp_path / "runs") == run and left_over(tmp_path) == [ID]
    assert metrics.points([run]).iloc[0].output_tokens == 2


def test_collecting_a_complete_run_twice_adds_and_changes_nothing(tmp_path):
    first = collect(tmp_path)
    before = (first.folder / "run.json").read_bytes()
    (tmp_path / "it's a host" / "runs" / ID / "records.jsonl").write_text("")
    assert collect(tmp_path) == first and (first.folder / "run.json").read_bytes() == before


def test_an_incomplete_run_is_kept_and_replaced_by_its_complete_self(tmp_path):
    early = collect(tmp_path, done=False)
    assert not early.complete and "did not come to its end" in early.problem and early.records == (RECORD,)
    assert collect(tmp_path).complete and left_over(tmp_path) == [ID]


def test_a_link_that_breaks_leaves_nothing_half(tmp_path):
    class Breaks(LocalHost):
        def get(self, path, local, progress=None):
            super().get(path, local, progress)
            if path.endswith("cells.jsonl"):
                raise LinkLost("the connection broke", where=self.name)
    remote = on_host(tmp_path)
    with pytest.raises(LinkLost):
        store.collect(Breaks(tmp_path / "it's a host"), remote, meta(), tmp_path / "runs")
    assert left_over(tmp_path) == [] and store.runs(tmp_path / "runs") == []


def test_a_run_that_is_not_on_the_host_is_named(tmp_path):
    with pytest.raises(KitError, match=ID):
        store.collect(LocalHost(tmp_path / "h"), str(tmp_path / "h" / "runs" / ID), meta(), tmp_path / "runs")


def test_runs_are_listed_newest_first(tmp_path):
    names = [f"2025013{d}T120000Z-micro-{arm}-1f3a" for d, arm in ((0, "ngram"), (1, "baseline"))]
    for name in names:
        collect(tmp_path, name)
    (tmp_path / "runs" / "notes").mkdir()
    assert [r.id for r in store.runs(tmp_path / "runs")] == names[::-1]
    assert store.runs(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name, content, says", [
    ("run.json", "{", "run.json: not JSON"),
    ("run.json", "[]", "run.json: not an object"),
    ("run.json", json.dumps({**meta(), "schema": 99}), "run.json: schema 99"),
    ("run.json", json.dumps({"schema": 1, "id": ID}), "run.json: no experiment"),
    ("run.json", json.dumps({**meta(), "schema": 1, "experiment": {"name": "micro"}}), "run.json: host"),
    ("run.json", b"\xff\xfe", "run.json: not JSON"),
    ("records.jsonl", '{"a": 1}\n', "records.jsonl: line 1"),
    ("records.jsonl", "{\n", "records.jsonl: line 1 is not JSON"),
    ("cells.jsonl", None, "cells.jsonl is missing"),
])
def test_what_cannot_be_read_is_listed_with_its_problem(tmp_path, name, content, says):
    path = collect(tmp_path).folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    run, = store.runs(tmp_path / "runs")
    assert not run.complete and says in run.problem and says in repr(run)
    metrics.points([run]), metrics.requests([run])      # and nothing downstream trips over it


def test_a_last_line_cut_while_being_written_is_left_out(tmp_path):
    run = collect(tmp_path, done=False)
    with open(run.folder / "records.jsonl", "a") as f:
        f.write('{"id": "chat-0')
    assert store.load(ID, tmp_path / "runs").records == (RECORD,)


@pytest.mark.parametrize("run_id", [ID, "../../etc", "", "latest"])
def test_a_run_that_is_not_here_is_an_error_in_words(tmp_path, run_id):
    with pytest.raises(KitError):
        store.load(run_id, tmp_path)


def test_ids_sort_by_time_and_never_repeat():
    early, late = (store.new_id(EXP, datetime(2025, 1, day, 9, tzinfo=UTC)) for day in (1, 2))
    assert early.startswith("20250101T090000Z-micro-eagle3-") and early < late
    assert len({store.new_id(EXP, datetime(2025, 1, 1, tzinfo=UTC)) for _ in range(20)}) == 20


def test_what_is_no_folder_is_no_run(tmp_path):
    collect(tmp_path)
    (tmp_path / "runs" / ID.replace("1f3a", "0001")).write_text("a file")
    (tmp_path / "runs" / ID.replace("1f3a", "0002")).symlink_to("/nowhere")
    assert [run.id for run in store.runs(tmp_path / "runs")] == [ID]


def test_a_store_that_cannot_be_written_says_where_the_run_still_is(tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(KitError, match="cannot keep the run") as caught:
        collect(tmp_path)
    assert f"runs/{ID}" in caught.value.next
