"""The load program, run as it is on a host: a process of its own against servers with known truth."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from servers import DemoEngine, Script, Server

from kit import workload
from kit.errors import SpecError
from kit.spec import Experiment

LOAD = Path(__file__).parent.parent / "kit" / "remote" / "load.py"
STREAMS = Path(__file__).parent / "fixtures" / "streams"
spec = importlib.util.spec_from_file_location("load", LOAD)
load = importlib.util.module_from_spec(spec)
spec.loader.exec_module(load)


def job(port, prompts=("a", "b", "c", "d"), concurrency=(1, 2), warmup=("w",), **changes):
    def requests(texts):
        return [{"id": text, "path": path, "body": body}
                for text in texts for path, body in [DemoEngine().generation(text, 16, True)]]
    return {"schema": 1, "run_id": "r", "url": f"http://127.0.0.1:{port}", "metrics_path": "/metrics",
            "flush_path": "",
            "cells": [{"prompt_set": "p", "concurrency": c} for c in concurrency], "requests": {"p": requests(prompts)},
            "warmup": requests(warmup), "limit_s": 20, "settle_s": 0, "give_up_after": 3, **changes}


def start(folder, job, **env):
    (folder / "job.json").write_text(json.dumps(job))
    return subprocess.Popen([sys.executable, "-S", str(LOAD), str(folder / "job.json"), str(folder / "out")],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})


def run(folder, job, **env):
    process = start(folder, job, **env)
    out, err = process.communicate(timeout=60)
    return process.returncode, out.splitlines(), err


def lines(folder, name):
    return [json.loads(line) for line in (folder / "out" / name).read_text().splitlines()]


def measured(folder, concurrency=None):
    return [r for r in lines(folder, "records.jsonl")
            if r["phase"] == "measure" and concurrency in (None, r["concurrency"])]


def test_a_complete_run_sends_the_same_prompts_in_the_same_order_at_every_concurrency(tmp_path):
    with Server(Script()) as server:
        code, said, _ = run(tmp_path, job(server.port, concurrency=(1, 3)))
    assert code == 0
    assert server.prompts[:5] == ["w", "a", "b", "c", "d"]
    assert sorted(server.prompts[6:]) == ["a", "b", "c", "d"]
    assert [r["id"] for r in measured(tmp_path, 1)] == ["a", "b", "c", "d"]
    assert server.most_in_flight == 3
    assert said[-1].startswith("progress 10 10 p c=3: ")
    done = json.loads((tmp_path / "out" / "done.json").read_text())
    assert (done["measured"], done["failed"]) == (8, 0) and 0 < done["client_cpu_s"] < done["wall_s"]


def test_the_cache_is_emptied_before_each_measured_cell_and_a_refusal_is_asked_again(tmp_path):
    with Server(Script(flush_refusals=2)) as server:
        code, _, _ = run(tmp_path, job(server.port, ("a", "b"), (1, 2), flush_path="/flush_cache"))
    assert code == 0 and [c["flushed"] for c in lines(tmp_path, "cells.jsonl")] == [200, 200]
    assert server.prompts[:6] == ["w", "(flush)", "(flush)", "(flush)", "a", "b"]
    assert server.prompts[6:8] == ["w", "(flush)"]


def test_a_cache_that_cannot_be_emptied_is_on_record(tmp_path):
    with Server(Script(flush_refusals=99)) as server:
        code, _, _ = run(tmp_path, job(server.port, ("a",), (1,), flush_path="/flush_cache"))
    assert code == 0 and [c["flushed"] for c in lines(tmp_path, "cells.jsonl")] == [400]


def test_a_record_holds_when_every_chunk_arrived(tmp_path):
    with Server(Script(step_s=0.2, steps=4, tokens_per_step=3, coalesce=2, cached_tokens=4)) as server:
        assert run(tmp_path, job(server.port, prompts=("a",), concurrency=(1,), warmup=()))[0] == 0
        sent = server.sent["a"]
    record, = measured(tmp_path)
    assert record["text"] == "w " * 13 and record["finish_reason"] == "stop" and record["error"] is None
    assert record["usage"] == {"prompt_tokens": 7, "completion_tokens": 13, "cached_tokens": 4}
    chunks = record["chunks"]
    assert chunks["chars"] == [2, 12, 12] and chunks["tokens"] == [None] * 3
    t0 = lines(tmp_path, "cells.jsonl")[0]["measure"]["t0_monotonic"]
    first, second, third = (t0 + t for t in chunks["t_s"])      # one clock for both processes
    assert sent[0] <= first < sent[1] <= second < sent[2] <= third <= t0 + record["t_end"]


def test_metrics_pages_enclose_the_measured_phase_only(tmp_path):
    with Server(Script(steps=4, tokens_per_step=2, drafts=3)) as server:
        assert run(tmp_path, job(server.port, concurrency=(2,)))[0] == 0
    cell, = lines(tmp_path, "cells.jsonl")
    before, after = (DemoEngine().acceptance(cell[k]) for k in ("metrics_before", "metrics_after"))
    assert before.steps == 4 and (after - before).steps == 16
    assert cell["warmup"]["requests"] == 1 and cell["measure"]["output_tokens"] == 4 * 9


FAULTS = {"http-500": "http-500", "broken": "broken-stream", "half": "broken-stream", "stall": "timeout",
          "empty": "empty", "bad-json": "bad-json", "error-event": "server-error"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_is_counted_with_its_kind_and_the_run_goes_on(tmp_path, fault):
    with Server(Script(faults={"b": fault})) as server:
        code, _, _ = run(tmp_path, job(server.port, concurrency=(1,), limit_s=0.5 if fault == "stall" else 20))
    assert code == 0
    assert [r["error"] for r in measured(tmp_path)] == [None, FAULTS[fault], None, None]
    assert lines(tmp_path, "cells.jsonl")[0]["measure"]["failed"] == 1
    if fault in ("broken", "half", "stall", "bad-json"):
        assert measured(tmp_path)[1]["text"] == "w w "         # what came is kept


def test_a_connection_cut_after_the_answer_is_no_failure(tmp_path):
    with Server(Script(faults={"b": "reset-after-end"})) as server:
        assert run(tmp_path, job(server.port, concurrency=(1,)))[0] == 0
    assert [r["error"] for r in measured(tmp_path)] == [None] * 4


def test_a_server_that_dies_ends_the_run_and_every_request_is_still_counted(tmp_path):
    with Server(Script(faults={"b": "die"})) as server:
        code, said, _ = run(tmp_path, job(server.port, prompts=tuple("abcdefgh")))
    assert code == 3 and said[-1].startswith("stopped: refused")
    assert [r["error"] for r in measured(tmp_path, 1)] == [
        None, "broken-stream", "refused", "refused", "refused", "not-sent", "not-sent", "not-sent"]
    assert [r["error"] for r in measured(tmp_path, 2)] == ["not-sent"] * 8
    assert not (tmp_path / "out" / "done.json").exists()


def test_term_ends_it_at_once_and_keeps_what_was_measured(tmp_path):
    with Server(Script(faults={"b": "stall"})) as server:
        process = start(tmp_path, job(server.port, concurrency=(1,), limit_s=3600))
        assert server.stalled.wait(30)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 143
    assert [(r["id"], r["error"]) for r in measured(tmp_path)] == [("a", None), ("b", "cancelled")]
    assert not (tmp_path / "out" / "done.json").exists()


def test_a_full_disk_ends_the_run_with_its_reason(tmp_path):
    class Full:
        def write(self, _): raise OSError(28, "No space left on device")
    with Server(Script()) as server:
        agent = load.Run(job(server.port), tmp_path)
        agent.records = Full()
        assert agent.go() == 1
    assert "No space left" in agent.stop


def test_another_job_file_than_the_unit_was_made_for_is_refused(tmp_path):
    code, _, err = run(tmp_path, job(1), SPECBOOK_JOB_SHA256="0" * 64)
    assert code == 2 and "not the job" in err and not (tmp_path / "out").exists()


def test_a_folder_with_records_is_never_written_again(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "records.jsonl").write_text("kept\n")
    code, _, err = run(tmp_path, job(1))
    assert code == 2 and "records.jsonl" in err
    assert (tmp_path / "out" / "records.jsonl").read_text() == "kept\n"


# ------------------------------------------------------------------ streams as engines really send them

def digest(name, size=7):
    """The recorded stream, arriving in pieces of a few bytes."""
    data = (STREAMS / name).read_bytes()
    return load.digest([(i / 1000, data[i:i + size]) for i in range(0, len(data), size)], 0.0)


def payloads(name):
    return [json.loads(line[5:]) for line in (STREAMS / name).read_text().splitlines()
            if line.startswith("data: {")]


def test_sglang_completions_stream_is_read():
    said = digest("sglang-0.5.12-completions.txt")
    expected = "".join(c["text"] for e in payloads("sglang-0.5.12-completions.txt") for c in e["choices"])
    assert said["error"] is None and said["text"] == expected and said["finish_reason"] == "length"
    assert said["usage"] == {"prompt_tokens": 276, "completion_tokens": 24}


def test_sglang_generate_stream_repeats_all_text_and_counts_tokens_per_chunk():
    events = payloads("sglang-0.5.12-generate.txt")
    said = digest("sglang-0.5.12-generate.txt")
    assert said["error"] is None and said["text"] == events[-1]["text"] and said["finish_reason"] == "length"
    assert sum(said["chunks"]["chars"]) == len(events[-1]["text"])
    assert said["chunks"]["tokens"] == [e["meta_info"]["completion_tokens"] for e in events]
    assert said["usage"]["cached_tokens"] == 274 and said["server"]["meta_info"]["spec_verify_ct"] == 14


def test_llamacpp_stream_is_read_across_split_characters():
    said = digest("llamacpp-chat.txt", size=1)
    assert said["error"] is None and said["text"] == "それはどわな" and said["finish_reason"] == "length"
    assert said["usage"]["completion_tokens"] == said["server"]["timings"]["predicted_n"] == 12


# ------------------------------------------------------------------ the job file

def experiment(**changes):
    return Experiment.load(Path(__file__).parent.parent / "configs" / "micro.yaml").with_(**changes)


def test_every_arm_gets_the_same_requests_and_warm_up_prompts_are_others():
    exp = experiment()
    jobs = [workload.job(exp.arm(a), DemoEngine(), "r") for a in exp.arms]
    assert all(j == jobs[0] for j in jobs)
    first = jobs[0]
    assert [(c["prompt_set"], c["concurrency"]) for c in first["cells"]] == [
        ("chat", 1), ("chat", 2), ("repetitive", 1), ("repetitive", 2)]
    texts = {json.dumps(r["body"]) for rows in first["requests"].values() for r in rows}
    assert len(texts) == 8 and len(first["warmup"]) == 2
    assert not texts & {json.dumps(r["body"]) for r in first["warmup"]}


@pytest.mark.parametrize("name", ["chat", "repetitive"])
def test_prompt_sets_have_enough_different_prompts(name):
    rows = workload.prompts(name)
    assert len(rows) >= 16 and len({r["prompt"] for r in rows}) == len(rows)


@pytest.mark.parametrize("changes, says", [
    ({"bench.prompts": 4000}, "4000 wanted"),
    ({"bench.concurrency": (1, 8)}, "never make 8"),
    ({"bench.prompt_sets": ("chatt",)}, "no prompt set 'chatt'"),
])
def test_a_load_that_cannot_mean_what_it_says_is_refused(changes, says):
    with pytest.raises(SpecError, match=says):
        workload.job(experiment(**changes), DemoEngine(), "r")


@pytest.mark.parametrize("line, says", [("{", "not JSON lines"), ('{"id": "x"}', "needs the texts"),
                                        ('{"id": "x", "category": "c", "prompt": "p"}\n' * 2, "same id")])
def test_a_broken_prompt_file_names_its_line(tmp_path, line, says):
    (tmp_path / "mine.jsonl").write_text(line + "\n")
    with pytest.raises(SpecError, match=says):
        workload.prompts("mine", tmp_path)


def test_the_unit_changes_with_the_job():
    exp = experiment().arm("eagle3")
    content, sha = workload.encode(workload.job(exp, DemoEngine(), "r"))
    other = workload.encode(workload.job(exp.with_(**{"bench.output_tokens": 7}), DemoEngine(), "r"))[1]
    units = [workload.unit(exp, "/a b", "python3", "r", s) for s in (sha, sha, other)]
    assert units[0].digest == units[1].digest != units[2].digest
    assert units[0].name == "bench-micro-eagle3" and units[0].kind == "job"
    assert units[0].argv == ("python3", "/a b/bin/load.py", "/a b/runs/r/job.json", "/a b/runs/r")
    assert workload.encode(json.loads(content))[0] == content


def test_requests_sent_after_the_end_was_asked_for_are_cut(tmp_path):
    with Server(Script(faults={"a": "stall"})) as server:
        agent = load.Run(job(server.port, concurrency=(1,), warmup=(), limit_s=3600), tmp_path)
        threading.Thread(target=lambda: server.stalled.wait(30) and agent.end("cancelled"), daemon=True).start()
        assert agent.go() == 143
