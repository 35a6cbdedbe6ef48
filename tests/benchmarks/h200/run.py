"""The kit against real SGLang on one GPU, unattended: by the calls that the notebooks make, through SSH.

    python tests/benchmarks/h200/run.py OUT [--stages survey,refused,micro,…] [--seconds 560] [--repeats 2]

Each stage runs even where an earlier one failed; what was found lies in OUT/records.tar.gz after each, the table in
OUT/stages.json and OUT/log.txt. In the end everything that was started is stopped and what was put there is removed.
README.md beside this says what the machine needs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import kit
from kit import launches, project, rehearsal, surveys, workload
from kit.command import Command, sh
from kit.diagnose import diagnose
from kit.diagnose_cli import shown
from kit.errors import KitError
from kit.following import recent, state
from kit.job import Job
from kit.prelaunch import preflight
from kit.spec import Experiment
from kit.steps import Check, Plan
from kit.supervisors import supervisor

sys.path.insert(0, str(Path(__file__).parent))
from recorder import Recorder  # noqa: E402

HERE = Path(__file__).parent
CONFIGS = ("as-first-written", "micro", "ballast")
PAGES = ("/health", "/health_generate", "/server_info", "/get_server_info", "/model_info", "/get_model_info",
         "/v1/models", "/v1/loads", "/get_load", "/metrics")
HOST_FACTS = r"""
for c; do printf '\n$ %s\n' "$c"; sh -c "$c" 2>&1 | head -n 200; done"""
HOST_COMMANDS = (
    "nvidia-smi", "nvidia-smi topo -m", "nvidia-smi topo -p2p r", "lscpu", "numactl -H", "uname -a",
    "nvidia-smi --query-gpu=index,name,memory.total,memory.used,driver_version,compute_cap,power.limit --format=csv",
    "cat /etc/os-release", "cat /proc/meminfo", "df -h", "ulimit -a", "cat /proc/sys/kernel/random/boot_id")
# Read from /proc, as a machine may lack ps; SGLang's children name themselves sglang::…
SERVERS = r"""for p in /proc/[0-9]*; do
  words=$(tr '\0' ' ' 2>/dev/null < "$p/cmdline") || continue
  case $words in *sglang.launch_server*|*sglang::*) echo "${p#/proc/} $words" ;; esac
done"""
FREE_WITHIN_S = 30
GREEDY_TOKENS = 96


class Lab:
    """What the stages share: the recorder, the live host, and how the notebooks' calls are made and kept."""

    def __init__(self, rec: Recorder, repeats: int):
        self.rec, self.repeats = rec, repeats
        self.runs: dict[str, list] = {}

    @property
    def host(self):
        return kit.connect("rehearsal")         # the same connection each time, or a new one where it broke

    def load(self, name: str, arm: str = "") -> Experiment:
        exp = Experiment.load(HERE / f"{name}.yaml")
        return exp.arm(arm) if arm else exp

    def survey(self, exp: Experiment):
        return kit.survey(exp, self.host)

    # -- the calls of the notebooks

    def apply(self, plan: Plan, name: str, limit_s: float, reserve: bool = True) -> Any:
        """Plan and lines are kept, also of one that fails."""
        self.rec.keep(f"{name}-plan.txt", repr(plan) + "\n")
        job = kit.apply(plan, self.host)
        try:
            return self.rec.finish(job, limit_s, reserve)
        finally:
            self.rec.keep(f"{name}-lines.txt", "\n".join(job.lines()) + "\n")

    @contextmanager
    def serving(self, exp: Experiment, stage: str, notes: dict, plan: Plan | None = None) -> Iterator[float]:
        """Started, followed and healthy inside; afterwards stopped, GPU memory free, and the log read."""
        before = self.gpu_mib()
        follower: list[Job] = []
        try:
            plan = plan or kit.plan(exp, self.survey(exp))
            self.rec.keep(f"{stage}/plan.txt", repr(plan) + "\n")
            job = kit.apply(plan, self.host)
            try:
                self._until_started(job, exp)
                follower.append(kit.follow(exp, self.host))
                healthy_s = self.rec.finish(job, exp.serve.healthy_within_s + 60)
            finally:
                self.rec.keep(f"{stage}/apply-lines.txt", "\n".join(job.lines()) + "\n")
            notes |= {"healthy_s": round(healthy_s, 1), "gpu_mib_serving": self.gpu_mib()}
            self.pages(exp, f"{stage}/pages-healthy.json")
            self.rec.keep(f"{stage}/again-plan.txt", repr(kit.plan(exp, self.survey(exp))) + "\n")
            yield healthy_s
            self.pages(exp, f"{stage}/pages-after.json")
        finally:
            failed = [name for name, step in (("stop", lambda: self.stop(exp, stage, notes, before)),
                                              ("log", lambda: self.read_log(exp, stage, notes)),
                                              ("follower", lambda: self._unfollow(follower, stage, notes)))
                      if not self._cleaned(name, step, stage)]
            notes |= {"cleanup_failed": failed} if failed else {}

    def _cleaned(self, name: str, step: Callable[[], None], stage: str) -> bool:
        """False where it failed; it is kept, and hides neither the next step nor the stage's own error."""
        try:
            step()
        except Exception:
            self.rec.say(f"{stage}: {name} failed")
            self.rec.keep(f"{stage}/cleanup-{name}.txt", traceback.format_exc())
            return False
        return True

    def _unfollow(self, follower: list[Job], stage: str, notes: dict) -> None:
        for followed in follower:
            notes |= {"follower_ended_with_the_unit": followed.wait(10).ended, "followed_lines": followed.line_count}
            followed.cancel()
            self.rec.keep(f"{stage}/followed.txt", "\n".join(followed.lines()) + "\n")

    def _until_started(self, job: Job, exp: Experiment) -> None:
        """Or until the plan has failed before it came so far; then `finish` says why."""
        sup = supervisor(exp.host.supervisor)
        while not job.ended and self.rec.left_s() > 0:
            if any(name == f"start {exp.unit}" for name, _ in job.phases) and \
                    state(self.host, sup, exp.host.python, exp.unit).running:
                return
            time.sleep(0.3)

    def stop(self, exp: Experiment, stage: str, notes: dict, before: int | None) -> None:
        """Stopped by a plan; then the GPU's memory, the port and the processes are looked at."""
        self.apply(kit.plan(exp, self.survey(exp), "stopped"), f"{stage}/stop", 90, reserve=False)
        began = time.monotonic()
        while before is not None and self.gpu_mib() > before + 64 and time.monotonic() - began < FREE_WITHIN_S:
            time.sleep(0.2)
        now, left = self.survey(exp), self.host.run(sh(SERVERS)).text
        self.rec.keep(f"{stage}/after-stop.txt", f"{now!r}\n\nprocesses that name sglang:\n{left}\n"
                      f"{self.host.run(sh('nvidia-smi || true')).text}")
        notes |= {"gpu_mib_before": before, "gpu_mib_after_stop": self.gpu_mib(),
                  "free_after_s": round(time.monotonic() - began, 1), "port_after_stop": now.port_holder or "free",
                  "processes_left": len(left.splitlines()), "plan_after_stop": len(kit.plan(exp, now, "stopped"))}

    def read_log(self, exp: Experiment, stage: str, notes: dict) -> None:
        """The log as the kit gives it, its phases, and what diagnose reads in it."""
        units = Path(self.host.root) / "units"
        if units.is_dir():      # the embedded host is this machine
            self.rec.keep_tree(units, f"{stage}/units")
        sup, python = supervisor(exp.host.supervisor), exp.host.python
        if state(self.host, sup, python, exp.unit).active == "not-found":
            notes["log"] = "none: nothing was started"
            return
        said = recent(self.host, sup, python, exp.unit)
        self.rec.keep(f"{stage}/{exp.unit}.log", "\n".join(line.text for line in said) + "\n")
        self.rec.keep(f"{stage}/log-times.json", [(line.cursor, line.time_s) for line in said])
        found = diagnose(said, exp.engine.release)
        self.rec.keep(f"{stage}/diagnose.txt", shown(found.report) + "\n")
        self.rec.keep(f"{stage}/diagnose.json", found.report.to_json())
        self.rec.keep(f"{stage}/phases.csv", kit.phases(exp, self.host).to_csv(index=False))
        self.rec.keep(f"{stage}/diagnose-phases.txt", "\n".join(map(repr, found.phases)) + "\n")
        notes |= {"log_lines": len(said), "diagnosed": found.state, "cause": found.cause}

    def bench(self, exp: Experiment, stage: str, notes: dict) -> None:
        for n in range(self.repeats):
            job = kit.bench(exp, self.host, again=True)
            try:
                run = self.rec.finish(job, 240)
            finally:
                self.rec.keep(f"{stage}/bench-{n}-lines.txt", "\n".join(job.lines()) + "\n")
            self.runs.setdefault(exp.unit, []).append(run)
            self.rec.keep_tree(run.folder, f"runs/{run.id}")
            table = kit.summary([run])
            self.rec.keep(f"{stage}/bench-{n}.csv", table.to_csv(index=False))
            self.rec.say(f"{run.id}\n{table.to_string(index=False)}")
            notes[f"bench_{n}"] = run.id
            if self.rec.left_s() < 90:
                break

    def stop_all(self, wants: tuple[str, ...] = ("stopped",)) -> None:
        for name in CONFIGS:
            exp = self.load(name)
            for want in wants:
                self.apply(kit.plan(exp, self.survey(exp), want), f"undo/{name}-{want}", 60, reserve=False)

    # -- the server's own words

    def pages(self, exp: Experiment, name: str) -> None:
        asked = {}
        for page in PAGES:
            answer = self.host.http(exp.serve.port, page, timeout_s=20)
            asked[page] = [answer.status, answer.body.decode("utf-8", "replace")]
        self.rec.keep(name, asked)

    def greedy(self, exp: Experiment, stage: str, notes: dict, concurrency: int, count: int) -> None:
        """The set's first prompts through /generate: texts, and each request's own count of verify steps.

        Straight to the port, not through SSH: the embedded host is this machine.
        """
        def ask(row: dict) -> dict:
            body = {"text": row["prompt"], "sampling_params": {"temperature": 0, "max_new_tokens": GREEDY_TOKENS}}
            request = Request(f"http://127.0.0.1:{exp.serve.port}/generate", json.dumps(body).encode(),
                              {"Content-Type": "application/json"})
            with urlopen(request, timeout=60) as answer:
                return {"id": row["id"], **json.loads(answer.read())}

        rows = workload.prompts(exp.bench.prompt_sets[0])[:count]
        with ThreadPoolExecutor(concurrency) as pool:
            answers = list(pool.map(ask, rows))
        self.rec.keep(f"{stage}/greedy-{concurrency}.json", answers)
        notes[f"accept_c{concurrency}"] = accept_length([a["meta_info"] for a in answers])

    def shapes(self, exp: Experiment, stage: str) -> None:
        """Streams and refusals, byte for byte, for fixtures."""
        text = workload.prompts(exp.bench.prompt_sets[0])[0]["prompt"]
        chat = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0}
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        sampling = {"temperature": 0, "max_new_tokens": 24}
        asks = {"generate": ("/generate", {"text": text, "sampling_params": sampling}),
                "generate-stream": ("/generate", {"text": text, "sampling_params": sampling, "stream": True}),
                "chat": ("/v1/chat/completions", chat),
                "chat-stream": ("/v1/chat/completions", chat | usage),
                "completions-stream": ("/v1/completions", {"model": "m", "prompt": text, "max_tokens": 24,
                                                           "temperature": 0} | usage),
                "bad-temperature": ("/generate", {"text": text, "sampling_params": {"temperature": -3}}),
                "too-long": ("/generate", {"text": "x " * 20000, "sampling_params": {"max_new_tokens": 8}}),
                "not-json": ("/generate", None)}
        said = {}
        for name, (path, body) in asks.items():
            answer = self.host.http(exp.serve.port, path, b"{" if body is None else json.dumps(body).encode(), 60)
            said[name] = [answer.status, answer.body.decode("utf-8", "replace")]
        self.rec.keep(f"{stage}/shapes.json", said)

    def gpu_mib(self) -> int | None:
        """Memory in use on GPU 0, MiB; None without one."""
        told = self.host.run(Command(("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")))
        first = told.text.strip().splitlines()[:1]
        return int(first[0]) if told.exit == 0 and first and first[0].strip().isdigit() else None

    # -- stages

    def s_survey(self, notes: dict) -> None:
        exp = self.load("micro")
        now = self.survey(exp)
        self.rec.keep("survey/survey.txt", repr(now) + "\n")
        self.rec.keep("survey/survey-raw.txt", self.host.run(surveys.command(exp, self.host.root)).stdout)
        self.rec.keep("survey/host-facts.txt", self.host.run(sh(HOST_FACTS, *HOST_COMMANDS)).stdout)
        self.rec.keep("survey/packages.txt", self.host.run(sh(
            '"$1" -m pip list 2>/dev/null; "$1" -c "import sglang; print(sglang.__version__, sglang.__file__)"',
            exp.engine.python)).stdout)
        self.rec.say(repr(now))
        notes |= {"gpus": [g.name for g in now.gpus], "root": now.root}

    def s_refused(self, notes: dict) -> None:
        """The motivating flags: refused by lint and by the dry run, with the same words. Applied: nothing starts."""
        exp = self.load("as-first-written")
        flight = preflight(exp, self.host)
        self.rec.keep("refused/preflight.txt", f"{flight!r}\n")
        self.rec.keep("refused/lint.json", flight.lint.to_json())
        lint = {f.what for f in flight.lint if f.verdict == "fail"}
        notes |= {"lint": sorted(lint), "verdict": flight.verdict}
        try:
            with self.serving(exp, "refused", notes):
                notes["applied"] = "it is SERVED"
        except KitError as e:
            notes["applied"] = str(e)
        began = time.monotonic()
        dry = self.dry_run(exp, "refused/dry-run")
        same = [said for said in lint if any(said in heard for heard in dry)]
        notes |= {"dry_run": sorted(dry), "same_words": same, "dry_run_s": round(time.monotonic() - began, 1),
                  "same_words_when_applied": [said for said in lint if said in notes["applied"]]}
        if not same or notes["applied"] == "it is SERVED":
            raise KitError("these flags are not refused with the same words by lint and by the dry run")

    def dry_run(self, exp: Experiment, name: str) -> set[str]:
        """What it refuses, in its words."""
        from kit.dryrun import dry_run
        try:
            answer = dry_run(exp, self.host)
        except KitError as e:
            self.rec.keep(f"{name}.txt", f"{type(e).__name__}: {e}\n")
            return {e.what}
        self.rec.keep(f"{name}.txt", f"{answer!r}\n")
        report = getattr(answer, "report", answer)
        self.rec.keep(f"{name}.json", report.to_json())
        return {f.what for f in report if f.verdict == "fail"}

    def s_micro(self, notes: dict) -> None:
        """The small EAGLE-3 service: fetched, checked, healthy, followed, measured, stopped, memory free."""
        exp = self.load("micro", "eagle3")
        self.apply(kit.plan(exp, self.survey(exp), "fetched"), "micro/fetch", 60)
        self.fit(exp, "micro")
        with self.serving(exp, "micro", notes):
            self.shapes(exp, "micro")
            self.greedy(exp, "micro", notes, 1, 8)
            self.bench(exp, "micro", notes)

    def fit(self, exp: Experiment, stage: str) -> None:
        report = kit.check(exp, self.host)
        self.rec.keep(f"{stage}/check.txt", repr(report) + "\n")
        flight = preflight(exp, self.host)
        self.rec.keep(f"{stage}/preflight.txt", f"{flight!r}\n\n{flight.report!r}\n\n{flight.memory!r}\n")
        self.rec.keep(f"{stage}/preflight.json", flight.report.to_json())
        report.require()

    def s_wrong(self, notes: dict) -> None:
        """EAGLE with an EAGLE-3 head: refused by the check; forced past it, refused by the health check."""
        exp = self.load("micro", "wrong")
        plan = kit.plan(exp, self.survey(exp))
        try:
            self.apply(plan, "wrong/asked", 60)
            notes["check"] = "did NOT refuse it"
        except KitError as e:
            notes["check"] = e.what
        forced = Plan(tuple(s for s in kit.plan(exp, self.survey(exp)) if not isinstance(s, Check)), exp)
        try:
            with self.serving(exp, "wrong", notes, forced):
                notes["health"] = "took it for healthy"
                self.greedy(exp, "wrong", notes, 1, 8)
        except KitError as e:
            self.rec.keep("wrong/health.txt", f"{type(e).__name__}: {e}\n")
            notes["health"] = str(e)
        if "NOT" in notes["check"] or notes["health"] == "took it for healthy":
            raise KitError("an EAGLE-3 head run as EAGLE was not caught", where=str(notes))

    def _measured(self, arm: str, notes: dict) -> None:
        exp = self.load("ballast", arm)
        if exp.spec.needs_drafter:
            self.fit(exp, arm)
        with self.serving(exp, arm, notes):
            self.bench(exp, arm, notes)
            for concurrency in exp.bench.concurrency if exp.spec.needs_drafter else (1,):
                self.greedy(exp, arm, notes, concurrency, exp.bench.prompts)

    def s_baseline(self, notes: dict) -> None:
        self._measured("baseline", notes)

    def s_eagle3(self, notes: dict) -> None:
        self._measured("eagle3", notes)

    def s_tree(self, notes: dict) -> None:
        self._measured("tree", notes)

    def s_compare(self, notes: dict) -> None:
        """The frames, the comparison and the verdict over every run of the big pair; greedy equality is in it."""
        exp = self.load("ballast")
        runs = [r for r in kit.runs() if r.meta["experiment"]["name"] == exp.name]
        points = kit.metrics.points(runs)
        self.rec.keep("compare/points.csv", points.to_csv(index=False))
        newest = kit.runs(exp)
        table = kit.compare(kit.metrics.points(newest), kit.metrics.requests(newest))
        self.rec.keep("compare/compare.csv", table.to_csv(index=False))
        self.rec.keep("compare/sentences.txt", "\n".join(kit.sentences(table)) + "\n")
        self.rec.say(table[["arm", "concurrency", "tok_s", "speedup", "accept_length", "identical", "compared"]]
                     .to_string(index=False))
        notes["runs"] = [r.id for r in runs]

    def s_undo(self, notes: dict) -> None:
        """Everything stopped, everything removed, the embedded host ended; and that is looked at."""
        notes["launches"] = len(launches.history())
        self.stop_all(("stopped", "removed"))
        root = Path(self.host.root)
        notes["left_on_the_host"] = sorted(str(p) for p in root.rglob("*"))[:20] if root.exists() else []
        notes["processes_left"] = self.host.run(sh(SERVERS)).text.splitlines()
        notes["gpu_mib"] = self.gpu_mib()
        self.host.close()
        rehearsal.stop()


STAGES = {"survey": 5, "refused": 30, "micro": 120, "wrong": 90, "baseline": 120, "eagle3": 120, "compare": 0,
          "tree": 150}       # name: seconds below which it is not begun; undo comes after them, always


def accept_length(answers: list[dict]) -> dict:
    """(tokens - 1) / verify steps over whole answers (no verify step makes the first token); and by position."""
    steps = sum(a.get("spec_verify_ct", 0) for a in answers)
    tokens = sum(a["completion_tokens"] - 1 for a in answers)
    hits = [a.get("spec_correct_drafts_histogram") or [] for a in answers]
    counts = [sum(h[i] for h in hits if i < len(h)) for i in range(max(map(len, hits), default=0))]
    return {"accept_length": round(tokens / steps, 3) if steps else None, "verify_steps": steps, "tokens": tokens,
            "by_position": [round(sum(counts[i:]) / sum(counts), 3) for i in range(1, len(counts))] if any(counts)
            else []}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--stages", default=",".join(STAGES), help="which, in this order")
    parser.add_argument("--seconds", type=float, default=560, help="the whole run ends within these")
    parser.add_argument("--repeats", type=int, default=1, help="benchmarks of each big arm")
    args = parser.parse_args(argv)
    wanted = [s for s in args.stages.split(",") if s]
    if unknown := [s for s in wanted if s not in STAGES]:
        parser.error(f"no stage {unknown[0]}; there are {', '.join(STAGES)}")
    rec = Recorder(args.out, args.seconds, lambda: lab.stop_all())
    lab = Lab(rec, args.repeats)
    rec.sample()
    try:
        for name in wanted:
            stage: Callable[[dict], None] = getattr(lab, f"s_{name}")
            rec.stage(name, stage, STAGES[name])
    finally:
        rec.stage("undo", lab.s_undo, -1e9)
        history = project.root() / "data" / "launches.jsonl"
        if history.exists():
            shutil.copy(history, rec.folder / "launches.jsonl")
    return rec.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
