"""How long, and how much memory, the two commands take from nothing. Prints; asserts nothing.

    python tests/benchmarks/laptop.py [demo] [test]      # default: both

Clones this checkout's last commit into a temporary folder, so that nothing is there yet: no .venv, no cache of
ours (pip's own download cache stays). RSS is summed over all processes that work in that folder, five times a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def rss_mib(folder: str) -> float:
    """Summed resident memory of the processes whose command line or working folder is in `folder`."""
    pages = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if folder.encode() in command or os.readlink(f"/proc/{pid}/cwd").startswith(folder):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue        # it ended, or is not ours to see
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def timed(folder: Path, *command: str) -> dict:
    """Wall seconds, peak RSS and last line of one command in `folder`."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            peak[0] = max(peak[0], rss_mib(str(folder)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wall = time.monotonic() - began
    over.set()
    watcher.join()
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
    return {"wall_s": round(wall, 1), "peak_rss_mib": round(peak[0]), "last_line": done.stdout.splitlines()[-1]}


def main(what: list[str]) -> None:
    load = os.getloadavg()[0]
    result: dict = {"load_before": round(load, 2)}
    for target in what:
        with tempfile.TemporaryDirectory(prefix="specbook-") as place:
            subprocess.run(["git", "clone", "-q", str(ROOT), place], check=True)
            result[f"{target}_from_nothing"] = timed(Path(place), "make", target)
            print(target, result[f"{target}_from_nothing"], flush=True)
            result[f"{target}_again"] = timed(Path(place), "make", target)
            print(target, "again", result[f"{target}_again"], flush=True)
    print(json.dumps(result, separators=(",", ":")))


if __name__ == "__main__":
    main(sys.argv[1:] or ["demo", "test"])
