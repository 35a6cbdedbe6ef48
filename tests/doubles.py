"""Test doubles: the seams of `kit.seams`, played by this machine."""

from __future__ import annotations

import getpass
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.command import Command, Result
from kit.errors import HostError
from kit.seams import Http, Progress, Unit, UnitState


class LocalHost:
    """The Host protocol on this machine: commands really run, files really lie below `root`.

    ran       every command, in order (assert on round trips)
    env       added to the environment of every command
    """

    def __init__(self, root: str | Path, name: str = "local", env: dict[str, str] | None = None):
        self.root, self.name, self.user = str(root), name, getpass.getuser()
        self.env = dict(env or {})
        self.ran: list[Command] = []
        Path(root).mkdir(parents=True, exist_ok=True)

    def run(self, command: Command) -> Result:
        self.ran.append(command)
        done = subprocess.run(["sh", "-c", command.shell()], input=command.stdin, capture_output=True,
                              env={**os.environ, **self.env})
        return Result(command, done.returncode, done.stdout, done.stderr, self.name)

    @contextmanager
    def stream(self, command: Command) -> Iterator[Iterator[bytes]]:
        self.ran.append(command)
        process = subprocess.Popen(["sh", "-c", command.shell()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env={**os.environ, **self.env}, start_new_session=True)
        try:
            process.stdin.write(command.stdin)
            process.stdin.close()
            yield iter(lambda: process.stdout.read1(65536), b"")
        finally:
            process.stdout.close()
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            with open(path, "rb") as f:
                f.seek(offset)
                return f.read(-1 if size is None else size)
        except OSError as e:
            raise HostError(f"cannot read: {e.strerror}", where=f"{self.name}:{path}") from None

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".new")
        fresh.write_bytes(data)
        fresh.chmod(mode)
        fresh.replace(target)

    def put(self, local: str, path: str, progress: Progress | None = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._copy(local, path, progress)

    def get(self, path: str, local: str, progress: Progress | None = None) -> None:
        self._copy(path, local, progress)

    def _copy(self, source: str, target: str, progress: Progress | None, piece: int = 1 << 16) -> None:
        total = os.path.getsize(source)
        done = os.path.getsize(target) if os.path.exists(target) else 0
        with open(source, "rb") as src, open(target, "ab") as dst:
            src.seek(done)
            while data := src.read(piece):
                dst.write(data)
                done += len(data)
                if progress:
                    progress(done, total, os.path.basename(target))

    def http(self, port: int, path: str, body: bytes | None = None, timeout_s: float = 10.0) -> Http:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body,
                                         headers={"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return Http(answer.status, answer.read())
        except urllib.error.HTTPError as e:
            return Http(e.code, e.read())
        except OSError:
            return Http(0)

    def forward(self, port: int) -> int:
        return port

    def close(self) -> None: ...


class RunsJobs:
    """`run_job` of a Source without a supervisor: runs the unit here and hands on its lines; keeps both."""

    def __init__(self, host: LocalHost):
        self.host, self.units, self.lines = host, [], []

    def __call__(self, unit: Unit, on_line: Callable[[str], None]) -> UnitState:
        self.units.append(unit)
        done = subprocess.run(unit.argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd=unit.cwd or None, env={**os.environ, **self.host.env, **unit.env})
        for text in done.stdout.splitlines():
            self.lines.append(text)
            on_line(text)
        died = done.returncode < 0
        return UnitState(unit.name, "inactive" if done.returncode == 0 else "failed",
                         result="success" if done.returncode == 0 else "signal" if died else "exit-code",
                         exit_code=None if died else done.returncode)
