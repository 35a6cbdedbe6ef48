"""Keeps what an unattended run finds, and lets no stage take the others with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.errors import KitError
from kit.job import Job

RESERVE_S = 45.0        # kept for stopping, undoing and packing
SAMPLE = ("nvidia-smi", "--query-gpu=timestamp,memory.used,utilization.gpu,power.draw,clocks.sm,temperature.gpu",
          "--format=csv", "-lms", "500")


class Recorder:
    """A folder of records, a clock, and a table of stages. `out` gets records.tar.gz, stages.json and log.txt.

    The archive is written anew after every stage: what was found is there even if the next one never ends.
    """

    def __init__(self, out: Path, seconds: float, emergency: Callable[[], None] = lambda: None):
        out.mkdir(parents=True, exist_ok=True)
        self.emergency = emergency      # stops what runs, when a stage hangs and time is over
        self.out, self.seconds, self.began = out, seconds, time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="h200-records-"))
        self.stages: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.log = (out / "log.txt").open("a")
        self.sampler: subprocess.Popen | None = None
        last_call = threading.Timer(seconds, self._out_of_time)
        last_call.daemon = True
        last_call.start()

    # -- time

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def left_s(self) -> float:
        """Seconds that a stage may still take."""
        return self.seconds - RESERVE_S - self.elapsed_s

    def finish(self, job: Job, limit_s: float, reserve: bool = True) -> Any:
        """The job's result; it is cancelled where that takes longer than `limit_s`, or than there is time."""
        limit_s = min(limit_s, self.left_s()) if reserve else limit_s
        if not job.wait(max(limit_s, 1)).ended:
            job.cancel().wait(20)
            raise TimeoutError(f"{job.name}: not done after {limit_s:.0f} s; cancelled: {job.lines(1)}")
        return job.result()

    def _out_of_time(self) -> None:
        """A stage hangs in a call that nothing interrupts."""
        self.say(f"OUT OF TIME after {self.seconds:g} s; the stages so far are kept")
        for frame in sys._current_frames().values():
            self.say("".join(traceback.format_stack(frame)[-4:]))
        if self.sampler:
            self.sampler.kill()
        self.pack()
        stopping = threading.Thread(target=self.emergency, daemon=True)
        stopping.start()
        stopping.join(15)
        os._exit(3)

    # -- records

    def say(self, text: str) -> None:
        line = f"[{self.elapsed_s:6.1f}] {text}"
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def keep(self, name: str, content: Any) -> None:
        """A record: text and bytes as they are, everything else as JSON."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1, default=str))

    def keep_tree(self, source: Path, name: str) -> None:
        shutil.copytree(source, self.folder / name, dirs_exist_ok=True)

    def sample(self) -> None:
        """GPU memory, load, power and clock, twice a second, until the end."""
        if shutil.which(SAMPLE[0]):
            (self.folder / "gpu.csv").touch()
            self.sampler = subprocess.Popen(SAMPLE, stdout=(self.folder / "gpu.csv").open("w"),
                                            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def pack(self) -> None:
        with self.lock:
            fresh = self.out / "records.tar.gz.new"
            with tarfile.open(fresh, "w:gz") as archive:
                archive.add(self.folder, "records")
            fresh.replace(self.out / "records.tar.gz")
            (self.out / "stages.json").write_text(json.dumps(self.stages, indent=1, default=str))

    # -- stages

    def stage(self, name: str, work: Callable[[dict], None], need_s: float = 0.0) -> None:
        """Run one; its failure is kept with its traceback, and the next one comes."""
        row: dict[str, Any] = {"stage": name, "began_s": round(self.elapsed_s, 1), "notes": {},
                               "outcome": "not ended", "wall_s": 0.0}
        self.stages.append(row)
        if self.left_s() < need_s:
            row |= {"outcome": "skipped", "wall_s": 0.0, "error": f"{self.left_s():.0f} s left, {need_s:g} needed"}
            self.say(f"== {name}: skipped, {row['error']}")
            return
        self.say(f"== {name}")
        began = time.monotonic()
        try:
            work(row["notes"])
            row["outcome"] = "ok"
        except Exception as e:      # every kind: this machine is there once, and the other stages must still run
            row |= {"outcome": "failed", "error": str(e) if isinstance(e, KitError) else f"{type(e).__name__}: {e}"}
            self.keep(f"{name}/traceback.txt", traceback.format_exc())
            self.say(f"{name} FAILED: {row['error']}")
        row["wall_s"] = round(time.monotonic() - began, 1)
        self.say(f"== {name}: {row['outcome']} in {row['wall_s']} s {json.dumps(row['notes'], default=str)[:1500]}")
        self.pack()

    def close(self) -> int:
        """The table; 0 when every stage is ok."""
        if self.sampler:
            self.sampler.terminate()
            self.sampler.wait()
        self.pack()
        shutil.rmtree(self.folder)          # it is in the archive
        self.say("")
        for row in self.stages:
            self.say(f"{row['stage']:10} {row['outcome']:8} {row['wall_s']:6.1f} s  "
                     f"{row.get('error', '').splitlines()[0][:140] if row.get('error') else ''}")
        return 0 if all(row["outcome"] == "ok" for row in self.stages) else 1
