"""Inference servers with known truth: a schedule of chunks, faults on demand, counters, and a log of what was sent.

    with Server(Script(steps=8, tokens_per_step=3)) as server:
        …                               # load http://127.0.0.1:{server.port}
        server.sent["prompt"]           # [monotonic time of each chunk with text, …]

`time.monotonic` is one clock for all processes of a machine, so arrival minus
sending is the client's own delay.
"""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kit.seams import Acceptance


@dataclass
class Script:
    """What every answer looks like. A step brings `tokens_per_step` tokens; `coalesce` steps share a chunk.

    The first chunk comes after ttft_s with `first_tokens` tokens. With `drafts` the steps are verify
    steps: tokens_per_step − 1 drafts are accepted in each.
    """

    ttft_s: float = 0.02
    step_s: float = 0.005
    steps: int = 8
    tokens_per_step: int = 1
    first_tokens: int = 1
    coalesce: int = 1
    drafts: int = 0
    usage: bool = True
    usage_per_chunk: bool = False
    cached_tokens: int = 0
    flush_refusals: int = 0     # so often /flush_cache says 400 first
    faults: dict[str, str] = field(default_factory=dict)      # prompt → fault

    @property
    def tokens(self) -> int:
        return self.first_tokens + self.steps * self.tokens_per_step


class Server:
    """Speaks streamed chat completions and /metrics on a free loopback port.

    faults: http-500 · broken (cut in the middle) · half (cut inside an event) · reset-after-end · stall ·
    empty · bad-json · error-event · die (stops listening for good)
    """

    def __init__(self, script: Script):
        self.script, self.lock, self.closing = script, threading.Lock(), threading.Event()
        self.sent: dict[str, list[float]] = {}
        self.prompts: list[str] = []            # in order of arrival
        self.in_flight = self.most_in_flight = 0
        self.counters = Acceptance(0, 0, 0, (0,) * script.drafts)
        self.stalled = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Server:
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.die()

    def die(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()

    def page(self) -> str:
        with self.lock:
            c = self.counters
        if not self.script.drafts:
            return "demo:requests_total 1\n"
        per_position = [f'demo:accepted_per_pos_total{{position="{i}"}} {n}' for i, n in enumerate(c.per_position)]
        return "\n".join([f"demo:drafts_total {c.steps}", f"demo:draft_tokens_total {c.drafted}",
                          f"demo:accepted_tokens_total {c.accepted}", *per_position, ""])

    def count_step(self) -> None:
        drafts, accepted = self.script.drafts, self.script.tokens_per_step - 1
        with self.lock:
            c = self.counters
            self.counters = Acceptance(c.steps + 1, c.drafted + drafts, c.accepted + accepted,
                                       tuple(n + (i < accepted) for i, n in enumerate(c.per_position)))


class DemoEngine:
    """The engine of these servers, as far as the benchmark needs one."""

    name = "demo"

    def generation(self, prompt: str, max_tokens: int, stream: bool) -> tuple[str, dict]:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens,
                                        "temperature": 0, "stream": stream}

    def metrics_path(self) -> str:
        return "/metrics"

    def flush_path(self) -> str:
        return ""

    def acceptance(self, page: str) -> Acceptance | None:
        found = dict(re.findall(r"^demo:(\w+) (\S+)$", page, re.M))
        if "drafts_total" not in found:
            return None
        per_position = tuple(map(float, re.findall(r"^demo:accepted_per_pos_total\{.*?\} (\S+)$", page, re.M)))
        return Acceptance(*(float(found[k]) for k in ("drafts_total", "draft_tokens_total", "accepted_tokens_total")),
                          per_position)


    def chunk_is_step(self, exp) -> bool:
        return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Server

    def log_message(self, *_): ...

    def do_GET(self):
        self._whole(200, self.owner.page().encode())

    def do_POST(self):
        if self.path == "/flush_cache":
            with self.owner.lock:
                self.owner.prompts.append("(flush)")
                refused = self.owner.prompts.count("(flush)") <= self.owner.script.flush_refusals
            return self._whole(400 if refused else 200, b"")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, owner = body["messages"][-1]["content"], self.owner
        with owner.lock:
            owner.prompts.append(prompt)
            owner.in_flight += 1
            owner.most_in_flight = max(owner.most_in_flight, owner.in_flight)
            self.counted_in = True
        self.close_connection = True
        try:
            with suppress(ConnectionError):
                self._answer(prompt, owner.script, owner.script.faults.get(prompt, ""))
        finally:
            self._over()

    def _over(self) -> None:
        """No longer in flight: said before the last bytes leave, as the next request may come at once."""
        with self.owner.lock:
            self.owner.in_flight -= self.counted_in
            self.counted_in = False

    def _answer(self, prompt: str, script: Script, fault: str) -> None:
        if fault == "http-500":
            return self._whole(500, b'{"error": {"message": "out of memory"}}')
        if fault == "die":
            return self.owner.die()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if fault == "error-event":
            self._event({"error": {"message": "the model left"}})
        elif fault != "empty":
            sent = self.owner.sent[prompt] = []
            for number, tokens in enumerate(self._chunks(script)):
                if number == 2 and fault in ("broken", "half", "stall", "bad-json"):
                    return self._break(fault)
                said = {"choices": [{"index": 0, "delta": {"content": "w " * tokens}, "finish_reason": None}]}
                if script.usage_per_chunk:
                    said["usage"] = {"completion_tokens": sum(self.counted)}
                sent.append(time.monotonic())
                self._event(said)
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if script.usage:
            self._event({"choices": [], "usage": {
                "prompt_tokens": 7, "completion_tokens": 0 if fault == "empty" else script.tokens,
                "prompt_tokens_details": {"cached_tokens": script.cached_tokens}}})
        self._over()
        self._piece(b"data: [DONE]\n\n")
        if fault != "reset-after-end":
            self.wfile.write(b"0\r\n\r\n")

    def _chunks(self, script: Script):
        """Tokens of each chunk, at their times; counters move as the steps happen."""
        start, self.counted, waiting = time.monotonic(), [], 0
        for step in range(script.steps + 1):
            time.sleep(max(0.0, start + script.ttft_s + step * script.step_s - time.monotonic()))
            waiting += script.tokens_per_step if step else script.first_tokens
            if step and script.drafts:
                self.owner.count_step()
            if step % script.coalesce == 0 or step == script.steps:
                self.counted.append(waiting)
                yield waiting
                waiting = 0

    def _break(self, fault: str) -> None:
        if fault == "stall":
            self.owner.stalled.set()
            self.owner.closing.wait(30)
        elif fault == "half":
            self._piece(b'data: {"choices": [{"del')
        elif fault == "bad-json":
            self._piece(b"data: {not json}\n\n")

    def _event(self, said: dict) -> None:
        self._piece(b"data: " + json.dumps(said).encode() + b"\n\n")

    def _piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _whole(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
