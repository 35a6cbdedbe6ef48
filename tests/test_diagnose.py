"""diagnose: recorded and reported logs get their right answer; whatever a transport adds changes none; bad input."""

from __future__ import annotations

import gzip
import io
import json
import re
import tracemalloc
from pathlib import Path

import pytest
import yaml
from conftest import fuzzing
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import diagnose_cli
from kit.diagnose import TABLES, diagnose, guess, table
from kit.diagnose.literals import needed
from kit.diagnose.marks import Cause, Mark
from kit.diagnose.reader import BLOCK, LONGEST, batches
from kit.diagnose.serving import WINDOWS, Serving
from kit.diagnose.shapes import ZEROS, Shapes
from kit.diagnose.sieve import Sieve
from kit.seams import LogLine

FIXTURES = Path(__file__).parent / "fixtures"
LOGS = FIXTURES / "diagnose" / "logs"
CASES = [pytest.param(c, id=c["id"]) for name in ("field-cases", "causes")
         for c in yaml.safe_load((FIXTURES / "diagnose" / f"{name}.yaml").read_text())]
LLAMA_FAILURES = sorted((FIXTURES / "llamacpp").glob("fail-*.log"))
SERVED = sorted(p.name for p in LOGS.glob("sglang-0.5.12-served-*"))
SEED = "sglang-0.5.12-seed-flags.log.gz"


def raw(name: str) -> bytes:
    data = (LOGS / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


def read(name: str, **more):
    return diagnose(io.BytesIO(raw(name)), **more)


def found(diagnosis, id: str):
    return next(f for f in diagnosis.report if f.id == id)


def ids(diagnosis, verdict: str) -> set[str]:
    return {f.id for f in diagnosis.report if f.verdict == verdict}


def numbered(data: bytes) -> list[tuple[int, bytes]]:
    return [pair for batch in batches(io.BytesIO(data)) for pair in zip(batch.numbers, batch.lines, strict=True)]


# ------------------------------------------------------------------ right answers

def test_an_eagle3_head_under_eagle_is_named_though_a_draft_now_and_then_is_accepted():
    said = read("sglang-0.5.12-wrong-algorithm.log.gz")
    assert found(said, "accept-length-low").verdict == "fail" and said.exit_status == 1
    straight = raw("sglang-0.5.12-wrong-algorithm.log.gz").replace(b"='EAGLE'", b"='EAGLE3'")
    assert found(diagnose(io.BytesIO(straight)), "accept-length-low").verdict == "warn"


@pytest.mark.parametrize("case", CASES)
def test_a_reported_log_gets_its_right_answer(case):
    said = diagnose(case["log"].splitlines(), case.get("engine", ""), silent_s=case.get("silent_s"))
    expected = case["expect"]
    assert found(said, expected["id"]).verdict == expected["verdict"], said
    assert said.exit_status == expected["exit"], said
    assert said.cause == (expected["id"] if expected["verdict"] == "fail" else ""), "it claims another cause"


@pytest.mark.parametrize("case", [c for c in CASES if str(c.values[0].get("status", "")).startswith("unknown")])
def test_no_cause_is_claimed_where_the_report_has_none(case):
    said = diagnose(case["log"].splitlines())
    assert not ids(said, "fail") and ids(said, "unknown")


@pytest.mark.parametrize("path", LLAMA_FAILURES, ids=lambda p: p.stem)
def test_recorded_failures_of_llama_cpp_are_named(path):
    said = diagnose(io.BytesIO(path.read_bytes()))
    assert said.engine == "llamacpp" and said.state == "failed" and said.exit_status == 1
    assert path.stem.removeprefix("fail-").startswith(said.cause)


def test_every_cause_of_the_tables_has_a_fixture():
    shown = {(c.values[0]["expect"]["id"], c.values[0]["expect"]["verdict"]) for c in CASES}
    shown |= {(diagnose(io.BytesIO(p.read_bytes())).cause, "fail") for p in LLAMA_FAILURES}
    own = {c.id for c in TABLES["llamacpp"].CAUSES}     # those are held by the tests of that engine
    wanted = {(m.id, m.verdict) for name in TABLES for m in table(name) if isinstance(m, Cause)}
    assert {w for w in wanted if w[0] not in own} <= shown


def test_the_motivating_flags_are_read_from_a_bare_assertion():
    said = read(SEED, engine="sglang==0.5.12.post1")
    assert (said.state, said.cause, said.exit_status) == ("failed", "spec-steps-missing", 1)
    assert found(said, "spec-steps-missing").evidence == "24: AssertionError"
    assert "while it read its arguments" in found(said, "stopped-at").what


@pytest.mark.parametrize("name,phase", [("sglang-0.5.12-slow-capture-piecewise.log.gz", "capture-piecewise"),
                                        ("sglang-0.5.12-slow-capture-tp2.log.gz", "capture of TP0, TP1 (0/12 done)")])
def test_a_slow_start_is_told_from_a_failed_one(name, phase):
    said = read(name)
    assert said.state == "starting" and said.exit_status == 0 and not ids(said, "fail")
    what = found(said, "unfinished").what
    assert "not failed" in what and phase in what and "ended from outside" in what
    assert "not a crash" in found(said, "ruled-out").what


def test_a_log_cut_before_loading_is_unfinished():
    said = read("sglang-0.5.12-cut-before-loading.log.gz")
    assert said.state == "starting" and said.exit_status == 0
    assert "before the first phase" in found(said, "unfinished").what


@pytest.mark.parametrize("name", SERVED)
def test_a_server_that_was_told_to_stop_did_not_fail(name):
    """Its children "crash with exit code -15" and it receives SIGQUIT, after the SIGTERM."""
    said = read(name)
    assert said.state == "stopped" and said.exit_status == 0 and not ids(said, "fail") and not ids(said, "unknown")


def test_phases_of_two_ranks_and_a_drafter():
    took = {p.id: p.seconds for p in read("sglang-0.5.12-served-tp2-eagle3.log.gz").phases}
    assert took["distributed"] == 3.18 and took["load-target"] == 3.56     # the longer of TP0 and TP1
    assert took["load-drafter"] < 1 and took["capture-draft"] == 9.65
    assert took["warmup"] == 4.0                                            # by the stamps, 21:14:06 to 21:14:10
    assert list(took).index("load-drafter") > list(took).index("capture")


def test_decode_lines_by_hand():
    """Five lines; the first follows idle, four are left."""
    said = read("sglang_decode_batches_eagle3_2025.txt")
    lengths, rates = (1.95, 1.80, 2.05, 1.80), (178.86, 165.41, 188.68, 165.59)
    assert f"{sum(lengths) / len(lengths):.2f} (windows 1.80 to 2.05)" in found(said, "accept-length").what
    assert f"{sum(rates) / len(rates):.1f} tokens/s" in found(said, "throughput").what


def test_graphs_that_are_off_are_said():
    said = found(read("sglang-0.5.12-served-eagle3.log.gz"), "graphs-off")
    assert said.what.startswith("14 of 14") and "as asked" in said.why
    assert "graphs-off" not in ids(read("sglang-0.5.12-served-eagle3-tree.log.gz"), "warn")


@pytest.mark.parametrize("name,state,exit,ending", [
    ("cuda_device_asserts.txt", "failed", 2, "index-past-table"),
    ("journal_json_message_bytes.txt", "unreadable", 2, "input"),
    ("journal_restart_loop.txt", "failed", 1, "start-timeout"),
    ("journal_start_timeout.txt", "failed", 1, "start-timeout"),
    ("lspci_acsctl.txt", "unreadable", 2, "input"),
    ("nccl_hang_4090_p2p_vs_shm.txt", "starting", 0, "nccl-hang"),
    ("sglang_child_failed_tail.txt", "failed", 2, "cause"),
    ("sglang_graph_capture_oom_2026.txt", "failed", 1, "graph-capture-memory"),
    ("sglang_ray_nested_prefix.txt", "failed", 2, "cause"),
    ("sglang_startup_compose_prefix_2025.txt", "starting", 0, "unfinished"),
    ("sglang_startup_to_ready_phases.txt", "serving", 0, "phases"),
    ("vllm_spec_decode_example_summary.txt", "serving", 0, "accept-length"),
    ("vllm_specdecoding_metrics_2026.txt", "serving", 0, "accept-length"),
])
def test_log_samples(name, state, exit, ending):
    said = read(name)
    assert (said.state, said.exit_status) == (state, exit), said
    assert ending in {f.id for f in said.report}


def test_out_of_memory_in_capture_is_not_the_oom_killer_though_the_worker_got_sigkill():
    assert "not the kernel's OOM killer" in found(read("sglang_graph_capture_oom_2026.txt"), "ruled-out").what


def test_vllm_acceptance_is_weighted_by_what_was_drafted():
    """2.83 of 69 tokens, 2.67 of 912, 2.74 of 1092."""
    mean = (2.83 * 69 + 2.67 * 912 + 2.74 * 1092) / (69 + 912 + 1092)
    assert f"accept length {mean:.2f}" in found(read("vllm_specdecoding_metrics_2026.txt"), "accept-length").what


# ------------------------------------------------------------ what a transport adds

def journal(lines, as_bytes=False):
    for n, line in enumerate(lines):
        message = list(line) if as_bytes else line.decode("utf-8", "replace")
        yield json.dumps({"__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + n * 1_000_000), "MESSAGE": message,
                          "SYSLOG_IDENTIFIER": "python"}).encode()


WRAPPED = {
    "compose": lambda lines: [b"llm0-1  | " + line for line in lines],
    "ray": lambda lines: [b"[2025-12-18T16:24:02+08:00] job-pod-0 >> (SGLangEngine pid=3111) " + n for n in lines],
    "syslog": lambda lines: [b"Nov 30 20:15:09 gpu1 python[4242]: " + line for line in lines],
    "kubernetes": lambda lines: [b"2025-12-18T16:24:02.123456789Z stderr F " + line for line in lines],
    "colour": lambda lines: [b"\x1b[32m" + line + b"\x1b[0m" for line in lines],
    "crlf": lambda lines: [line + b"\r" for line in lines],
    "progress": lambda lines: [b"\r  0%|     | 0/27 [00:00<?, ?it/s]\r  4%|#   | 1/27 [00:35<15:14, 35.17s/it]\r" + line
                               for line in lines],
    "journal": journal,
    "journal-bytes": lambda lines: journal(lines, as_bytes=True),
    "docker-json": lambda lines: [json.dumps({"log": n.decode("utf-8", "replace") + "\n", "stream": "stderr",
                                              "time": "2025-01-01T00:00:00Z"}).encode() for n in lines],
    "interleaved": lambda lines: [x for n in lines for x in (n, b"[2026-11-30 20:15:09 TP7] a line of another rank")],
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("name", [SEED, "sglang_graph_capture_oom_2026.txt", "sglang-0.5.12-slow-capture-tp2.log.gz",
                                  "sglang_decode_batches_eagle3_2025.txt"])
def test_what_a_transport_adds_changes_no_answer(name, wrap):
    plain = raw(name).replace(b"\r", b"\n").splitlines()
    straight, wrapped = diagnose(plain), diagnose(io.BytesIO(b"\n".join(wrap(plain)) + b"\n"))
    assert (wrapped.state, wrapped.cause, wrapped.engine) == (straight.state, straight.cause, straight.engine)
    assert [p.id for p in wrapped.phases] == [p.id for p in straight.phases]
    assert {f.what for f in wrapped.report if f.id == "accept-length"} == \
        {f.what for f in straight.report if f.id == "accept-length"}


@pytest.mark.parametrize("name", SERVED)
def test_no_cut_of_a_healthy_log_is_a_failure(name):
    data = raw(name)
    data = data[:data.index(b"SIGTERM received")]
    for cut in range(0, len(data), len(data) // 60):
        said = diagnose(io.BytesIO(data[:cut]))
        assert not ids(said, "fail") and said.state != "failed", (cut, said)


def test_lines_of_a_live_service_are_read_with_their_own_clock():
    lines = [LogLine(str(n), 1000.0 + n * 5, text) for n, text in enumerate(
        ["Load weight begin. avail mem=139.13 GB", "Load weight end. avail mem=126.33 GB, mem usage=12.80 GB."])]
    assert {p.id: p.seconds for p in diagnose(lines, "sglang").phases} == {"load-target": 5.0}


def test_a_record_of_the_journal_may_hold_null_and_several_messages():
    records = [b'{"MESSAGE": null, "__CURSOR": "a"}', b'{"MESSAGE": ["one", [116, 119, 111]], "__CURSOR": "b"}',
               b'{"MESS']
    assert numbered(b"\n".join(records)) == [(1, b""), (2, b"one"), (2, b"two"), (3, b'{"MESS')]


# ------------------------------------------------------------------ systemd

def test_a_restart_loop_is_seen_with_its_cause():
    seed = raw(SEED).splitlines()
    log = []
    for n in range(1, 4):
        log += [*seed, b"systemd[1]: sglang.service: Main process exited, code=exited, status=1/FAILURE",
                b"systemd[1]: sglang.service: Failed with result 'exit-code'.",
                b"systemd[1]: sglang.service: Scheduled restart job, restart counter is at %d." % n]
    said = diagnose(log)
    assert said.state == "failed" and said.cause == "spec-steps-missing" and said.starts == 4
    loop = found(said, "restart-loop")
    assert "3 restarts" in loop.what and "spec-steps-missing × 3" in loop.why


def test_a_start_that_works_after_one_that_failed_is_healthy():
    log = [*raw(SEED).splitlines(), b"systemd[1]: sglang.service: Scheduled restart job, restart counter is at 1.",
           b"[2026-05-01 09:59:00] server_args=ServerArgs(model_path='/m/t', tp_size=1)",
           b"[2026-05-01 09:59:00] The server is fired up and ready to roll!"]
    said = diagnose(log)
    assert (said.state, said.exit_status) == ("serving", 0)
    assert found(said, "earlier-start").why == "spec-steps-missing"


def test_a_server_started_again_in_one_log_is_judged_by_its_last_start():
    said = diagnose(io.BytesIO(raw("sglang-0.5.12-served-base.log.gz") + raw("sglang-0.5.12-slow-capture-tp2.log.gz")))
    assert said.starts == 2 and said.state == "starting"


def test_the_main_process_that_ends_its_own_tree_is_not_the_oom_killer():
    said = diagnose(["[2026-05-01 10:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):",
                     "RuntimeError: selected index k out of range",
                     "[2026-05-01 10:00:00] Received sigquit from a child process. It usually means the child failed.",
                     "systemd[1]: sglang.service: Main process exited, code=killed, status=9/KILL",
                     "systemd[1]: sglang.service: Failed with result 'signal'."])
    assert said.cause == "spec-tree-too-wide"
    assert "not the kernel's OOM killer" in found(said, "ruled-out").what


# ------------------------------------------------------------------ bad input

@pytest.mark.parametrize("data", [b"", b"\n", b"\0" * 5000, bytes(range(256)) * 40, b"{" * 20000, b'{"MESSAGE": ' * 9,
                                  b"\r" * 3000, b"\x1b[" * 500, "ein Gedicht\n".encode("utf-16")])
def test_what_is_no_log_is_not_judged(data):
    said = diagnose(io.BytesIO(data))
    assert said.state == "unreadable" and said.exit_status == 2
    assert found(said, "input").verdict == "unknown"


def test_a_line_without_an_end_takes_bounded_memory():
    class Endless(io.RawIOBase):
        left = 40

        def read(self, size):
            self.left -= 1
            if self.left > 0:
                return b"x" * size
            return b"\nThe server is fired up and ready to roll!\n" if self.left == 0 else b""

    tracemalloc.start()
    try:
        said = diagnose(Endless())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said.state == "serving"
    assert said.lines == 2 and peak < 8 * BLOCK


def test_a_long_line_gives_its_beginning_once_and_the_numbers_go_on():
    data = b"a\n" + b"y" * (3 * BLOCK) + b"\nb\n"
    pairs = numbered(data)
    assert [n for n, _ in pairs] == [1, 2, 3] and pairs[2][1] == b"b" and len(pairs[1][1]) <= max(LONGEST, 2 * BLOCK)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_get_an_answer(data):
    said = diagnose(io.BytesIO(data))
    assert said.exit_status in (0, 1, 2) and json.loads(said.report.to_json())


PIECES = [line for name in ("sglang_graph_capture_oom_2026.txt", SEED, "vllm_specdecoding_metrics_2026.txt",
                            "sglang_decode_batches_eagle3_2025.txt", "journal_json_message_bytes.txt",
                            "journal_start_timeout.txt", "nccl_hang_4090_p2p_vs_shm.txt",
                            "sglang_ray_nested_prefix.txt")
          for line in raw(name).splitlines()]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=60)), max_size=40),
       st.sampled_from([b"\n", b"\r", b"\r\n", b""]), st.sampled_from(["", *TABLES]))
def test_any_mixture_of_real_lines_gets_an_answer(lines, end, engine):
    said = diagnose(io.BytesIO(end.join(lines)), engine)
    assert said.exit_status in (0, 1, 2) and json.loads(said.report.to_json())
    assert (said.exit_status == 1) == bool(ids(said, "fail"))


# ------------------------------------------------------------------ tables and parts

MARKS = {(m.relaxed.pattern.decode()): m.id for m in table("")}


@pytest.mark.parametrize("pattern", MARKS, ids=MARKS.values())
def test_what_a_pattern_needs_is_in_every_text_that_it_matches(pattern):
    words = needed(pattern)
    assert "" not in words

    @settings(max_examples=12, deadline=None)
    @given(st.from_regex(pattern.encode(), alphabet=None))
    def holds(text):
        assert any(word.encode() in text for word in words), text
    holds()


@pytest.mark.parametrize("pattern,words", [
    ("abc", {"abc"}), ("a?bcd", {"bcd"}), ("abc+de", {"cde"}), ("ab*cd", {"cd"}), (r"a\.b\d", {"a.b"}),
    ("[ab]cd", {"cd"}), ("x(?:one|two)y", {"xoney", "xtwoy"}), ("(?:one|two)?three", {"three"}), ("one|", {""}),
    (r"(ab|c\w)d", {"ab", "c"}), ("(?=abc)d", {"d"}), ("^a{0}bc$", {"bc"}), ("ab{2}", {"a"}), ("[^]]x", {"x"}),
    ("a.*longer", {"longer"}),
])
def test_literals_of_a_pattern(pattern, words):
    assert needed(pattern) == words


@fuzzing(150)
@given(st.lists(st.binary(min_size=1, max_size=7).filter(lambda w: b"\n" not in w), min_size=1, max_size=9),
       st.lists(st.binary(max_size=12), max_size=20), st.randoms())
def test_the_sieve_finds_just_the_lines_that_hold_a_word(words, pieces, rng):
    mixed = [piece + rng.choice(words) if rng.random() < .3 else piece for piece in pieces]
    text = b"".join(piece + rng.choice([b"", b" ", b"\n"]) for piece in mixed)
    expected = [i for i, line in enumerate(text.split(b"\n")) if any(word in line for word in words)]
    assert Sieve(words).lines(text) == expected


# Every line of every fixture, each with the words of some mark or none.
ALL_LOGS = [*(raw(p.name) for p in sorted(LOGS.iterdir())), *(p.read_bytes() for p in LLAMA_FAILURES),
            *(c.values[0]["log"].encode() for c in CASES)]
ALL_LINES = [line for data in ALL_LOGS for line in data.splitlines()]


def both_ways(data: bytes, engine: str):
    """(read with the sieve from the second block on, read with every pattern tried on every line)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kit.diagnose.reader.BLOCK", 2048)
        patch.setattr("kit.diagnose.NEW", -10**9)
        quick = diagnose(io.BytesIO(data), engine)
        patch.setattr("kit.diagnose.NEW", 10**9)
        patch.setattr("kit.diagnose.shapes.needed", lambda pattern: {""})
        return quick, diagnose(io.BytesIO(data), engine)


@pytest.mark.parametrize("engine", ["", "sglang"])
def test_the_quick_way_of_reading_gives_the_answers_of_the_plain_one(engine):
    prose = b"it is all new here\n" * 200
    for data in ALL_LOGS:
        quick, plain = both_ways(prose + data, engine)
        assert quick == plain


@fuzzing(40)
@given(st.randoms(), st.integers(10, 400), st.sampled_from(["", *TABLES]))
def test_of_any_mixture_of_lines_the_quick_way_gives_the_answers_of_the_plain_one(rng, count, engine):
    prose = [b"%x was said of %x" % (rng.getrandbits(64), rng.getrandbits(64)) for _ in range(40)]
    quick, plain = both_ways(b"\n".join(prose + rng.choices(ALL_LINES + prose, k=count)), engine)
    assert quick == plain


def test_a_log_of_lines_that_are_all_new_is_still_read_right(monkeypatch):
    """The sieve comes in after the first batch, and what stands far below is found as ever."""
    prose = b"".join(b"%x not found around the model, and %s\n" % (i * 2654435761 % 2**32, b"abcdefgh"[i % 8:] * 3)
                     for i in range(60_000))
    log = prose + raw(SEED).replace(b"\r", b"\n") + prose
    reading = []
    monkeypatch.setattr("kit.diagnose.sieve.Sieve.__init__", lambda self, words, old=Sieve.__init__:
                        (reading.append(1), old(self, words))[1])
    said = diagnose(io.BytesIO(log), "sglang")
    assert reading and said.cause == read(SEED, engine="sglang").cause == "spec-steps-missing"


def test_a_pattern_with_digits_of_its_own_is_confirmed_on_the_line():
    shapes = Shapes([Mark("cause", "a", r"status=203/EXEC")])
    line = b"status=217/EXEC"
    seen = shapes.learn(line.translate(ZEROS)).seen
    assert seen and not seen[0].exact.search(line) and seen[0].exact.search(b"status=203/EXEC")


def test_lines_that_differ_in_digits_share_a_shape():
    shapes = Shapes(table("sglang"))
    one, two = (b"[2026-05-01 10:00:%d TP1] Load weight begin. avail mem=%d.10 GB" % n for n in ((10, 93), (59, 44)))
    assert one.translate(ZEROS) == two.translate(ZEROS)
    shape = shapes.learn(one.translate(ZEROS))
    assert shape.seen[0].mark.id == "load" and shape is shapes.known[two.translate(ZEROS)]


def test_serving_keeps_its_mean_in_bounded_windows():
    serving = Serving()
    for n in range(1, 5001):
        serving.line(n, b"", 2.0, 1.0 + n % 2, 100.0, 0.5, 0, False)
    assert len(serving.windows) <= WINDOWS and serving.kept == 4999 and serving.dropped == 1
    assert abs(serving.accept_length - 1.5) < 0.001 and serving.tokens_per_s == 100.0


def test_of_very_many_decode_lines_each_nth_stands_for_the_others(monkeypatch):
    monkeypatch.setattr("kit.diagnose.serving.THOROUGH", 64)
    line = "[2026-05-01 10:00:00 TP0] Decode batch, #running-req: 8, #token: 5120, token usage: 0.{:02}, " \
           "accept len: {:.2f}, accept rate: 0.54, cuda graph: True, gen throughput (token/s): 500.00, #queue-req: 0"
    said = diagnose([line.format(n % 50, 2 + n % 3 / 10) for n in range(3000)])
    assert "accept length 2.1" in found(said, "accept-length").what     # 2.0, 2.1, 2.2 in turn
    kept = int(re.match(r"mean of (\d+) lines \(each \d+th was read\)", found(said, "throughput").why)[1])
    assert abs(kept - 3000) < 100 and "500.0 tokens/s" in found(said, "throughput").what


def test_engines_are_told_apart():
    assert guess(raw(SEED).splitlines()) == "sglang"
    assert guess(raw("vllm_specdecoding_metrics_2026.txt").splitlines()) == "vllm"
    assert guess([b"hello"]) == ""


# ------------------------------------------------------------------ command

def run(capsys, *argv):
    status = diagnose_cli.main(list(map(str, argv)))
    return status, capsys.readouterr().out


def test_command_prints_findings_and_sets_the_status(capsys):
    status, printed = run(capsys, LOGS / SEED, "--engine", "sglang==0.5.12.post1", "--json")
    assert status == 1
    assert {"id", "verdict", "what", "why", "fix", "evidence"} == set(json.loads(printed)[0])
    assert run(capsys, LOGS / SERVED[0])[0] == 0
    assert "| 24: AssertionError" in run(capsys, LOGS / SEED)[1]


@pytest.mark.parametrize("argv", [["/nowhere/at/all.log"], [LOGS], [LOGS / SEED, "--engine", "tgi"],
                                  [LOGS / SEED, "--engine", "sglang==banana"]])
def test_command_cannot_judge(capsys, argv):
    status, printed = run(capsys, *argv, "--json")
    assert status == 2 and [f["verdict"] for f in json.loads(printed)] == ["unknown"]


def test_command_reads_what_a_config_runs_on_its_host(capsys, tmp_path):
    """Where it cannot: the error of the kit, as a finding. What it says of a service, test_health shows."""
    status, printed = run(capsys, "--service", tmp_path / "none.yaml", "--json")
    assert status == 2 and json.loads(printed)[0]["verdict"] == "unknown"
    for argv in ([], [LOGS / SEED, "--service", "x.yaml"]):
        with pytest.raises(SystemExit) as left:
            run(capsys, *argv)
        assert left.value.code == 2


def test_a_broken_archive_is_said(tmp_path, capsys):
    (tmp_path / "a.gz").write_bytes((LOGS / SEED).read_bytes()[:300])
    (tmp_path / "b.gz").write_bytes(b"\x1f\x8bnonsense that is no archive")
    assert [run(capsys, tmp_path / name)[0] for name in ("a.gz", "b.gz")] == [2, 2]


def test_a_release_newer_than_those_read_is_listed_and_the_log_judged(capsys):
    status, printed = run(capsys, LOGS / SERVED[0], "--engine", "sglang==9.9.0")
    assert status == 0 and "newer than all releases read" in printed


def test_command_reads_standard_input(capsys, monkeypatch):
    class Piped:
        buffer = io.BytesIO(raw(SEED))
    monkeypatch.setattr("sys.stdin", Piped)
    assert run(capsys, "-")[0] == 1
