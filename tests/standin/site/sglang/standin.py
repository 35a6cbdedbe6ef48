"""The server that stands in for SGLang's: starts, answers, counts and fails as recorded, faster.

The environment tells it how:

    STANDIN_SPEED    recorded seconds per second of a start (default 50; 0: no waiting at all)
    STANDIN_STEP_MS  milliseconds of a decode step (default 1)
    STANDIN_FAULT    comma-separated: die-late=S (exit 1 after S s of serving) · child-fail[=PHASE] (the scheduler
                     fails while PHASE, load or serve, default load; main sends itself SIGKILL) · hang (no answer after
                     it was ready) · 503 (warms up for ever) · never-bind (loads for ever) · log-mb=N (so much log
                     before it is ready) · accept=X (accept length X instead of the recorded)

With a drafter that says Eagle3 and --speculative-algorithm EAGLE nothing is accepted, accept length 1.00, without a
word; the real one accepts next to nothing (1.07).
"""

import datetime
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sglang.srt.configs.model_config import read
from sglang.srt.server_args import RELEASE
from sglang.version import __version__

STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
OPEN_AT = "INFO:     Uvicorn running on"
ACCESS = re.compile(r'"(GET|POST) /')
INTERVAL = 40                       # decode steps between two log lines, and moves of the cumulative mean
CHILD_FAILED = ("Scheduler hit an exception: Traceback (most recent call last):\n"
                '  File "/opt/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 3210, in '
                "run_scheduler_process\n    scheduler = Scheduler(\nRuntimeError: stand-in: asked to fail\n")


def recorded(name):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded", name), encoding="utf-8") as f:
        return f.read()


def say(text, stamped=True):
    head = time.strftime("[%Y-%m-%d %H:%M:%S] ") if stamped else ""
    os.write(2, (head + text + "\n").encode())      # one write: lines of threads do not mix


def faults():
    pairs = (word.partition("=") for word in os.environ.get("STANDIN_FAULT", "").split(",") if word)
    return {name.strip(): value for name, _, value in pairs}


class Engine:
    """What the server knows: its arguments, counters and how many drafts a step accepts."""

    def __init__(self, args):
        self.args, self.faults, self.lock = args, faults(), threading.Lock()
        self.speculates = bool(args.speculative_algorithm)
        self.answers = json.loads(recorded("eagle3.json" if self.speculates else "base.json"))
        self.ready = False
        self.name = args.served_model_name or args.model_path
        self.slots = threading.BoundedSemaphore(args.max_running_requests or 64)
        self.step_s = float(os.environ.get("STANDIN_STEP_MS", "1")) / 1000
        self.accepts = itertools.cycle(self._accepts())
        self.requests = self.prompted = self.generated = 0
        self.steps = self.right = self.seen_steps = self.seen_right = 0
        self.words = re.findall(r"\s*\S+", self.answers["generate"]["text"]) or ["a"]

    def _accepts(self):
        """Accepted drafts of successive verify steps: the recorded histogram, spread."""
        deepest = (self.args.speculative_num_draft_tokens or 1) - 1
        if not self.speculates or self._wrong_algorithm():
            return [0]
        if "accept" in self.faults:
            extra = float(self.faults["accept"]) - 1
            return [int((i + 1) * extra) - int(i * extra) for i in range(100)]
        histogram = self.answers["generate"]["meta_info"]["spec_correct_drafts_histogram"]
        each = [n for n, count in enumerate(histogram) for _ in range(count)]
        return [min(deepest, each[i * 7 % len(each)]) for i in range(len(each))]

    def _wrong_algorithm(self):
        try:
            heads = read(self.args.speculative_draft_model_path or "").get("architectures") or [""]
        except (OSError, ValueError):
            return False
        return self.args.speculative_algorithm == "EAGLE" and "Eagle3" in heads[0]

    def generate(self, tokens, prompt_tokens=12):
        """Yields (tokens, meta_info) so far: the prefill's token, then one verify or decode step after another."""
        with self.slots:
            began, done, steps, right, histogram = time.time(), 1, 0, 0, {}
            while True:
                meta = {"id": f"{id(histogram):016x}", "finish_reason": None, "prompt_tokens": prompt_tokens,
                        "weight_version": "default", "completion_tokens": done, "cached_tokens": 0}
                if done >= tokens:
                    break
                yield done, meta
                time.sleep(self.step_s)
                got = next(self.accepts) if self.speculates else 0
                steps, right, done = steps + 1, right + got, min(tokens, done + 1 + got)
                histogram[got] = histogram.get(got, 0) + 1
                self._step(got)
            meta.update(finish_reason={"type": "length", "length": tokens}, e2e_latency=time.time() - began)
            if self.speculates and steps:
                width = (self.args.speculative_num_draft_tokens or 1) - 1
                counts = [histogram.get(i, 0) for i in range(max(histogram) + 1)]
                meta.update(spec_verify_ct=steps, spec_accept_length=done / steps,
                            spec_accept_rate=right / (steps * width) if width else 0.0)
                if RELEASE >= (0, 5, 12):
                    meta.update(spec_num_correct_drafts=right, spec_num_proposed_drafts=steps * width,
                                spec_correct_drafts_histogram=counts)
            with self.lock:
                self.requests, self.generated = self.requests + 1, self.generated + done
                self.prompted += prompt_tokens
            yield done, meta

    def _step(self, got):
        with self.lock:
            self.steps, self.right = self.steps + 1, self.right + got
            if self.steps % INTERVAL:
                return
            self.seen_steps, self.seen_right = self.steps, self.right
            extra, width = self.right / self.steps, max(1, (self.args.speculative_num_draft_tokens or 2) - 1)
        length = f"accept len: {1 + extra:.2f}, accept rate: {extra / width:.2f}, " if self.speculates else ""
        say(f"Decode batch, #running-req: 1, #token: 362, token usage: 0.00, {length}cuda graph: False, "
            f"gen throughput (token/s): {1 / max(self.step_s, 1e-4):.2f}, #queue-req: 0")

    def text(self, tokens):
        return "".join(self.words[i % len(self.words)] for i in range(tokens))

    def info(self):
        a, out = self.args, dict(self.answers["server_info"])
        out.update(model_path=a.model_path, tokenizer_path=a.model_path, served_model_name=self.name, port=a.port,
                   host=a.host, version=__version__, context_length=a.context_length, tp_size=a.tp_size,
                   max_running_requests=a.max_running_requests, speculative_algorithm=a.speculative_algorithm,
                   speculative_draft_model_path=a.speculative_draft_model_path,
                   speculative_num_steps=a.speculative_num_steps, speculative_eagle_topk=a.speculative_eagle_topk,
                   speculative_num_draft_tokens=a.speculative_num_draft_tokens)
        state = dict(out["internal_states"][0])
        if self.speculates and self.seen_steps:
            state["avg_spec_accept_length"] = 1 + self.seen_right / self.seen_steps
        return {**out, "internal_states": [state]}

    def metrics(self):
        """The recorded page with this server's counts; from 0.5.13 on with the counter of verify steps."""
        now = {"generation_tokens_total": self.generated, "prompt_tokens_total": self.prompted,
               "num_requests_total": self.requests, "num_running_reqs": 0, "gen_throughput": 0,
               "spec_accept_length": 1 + self.seen_right / self.seen_steps if self.seen_steps else 0}
        lines = []
        for line in self.answers["metrics_after"].splitlines():
            found = re.match(r"sglang:(\w+)(\{[^}]*\}) ", line)
            if not found:
                lines.append(line)
                continue
            labels = re.sub(r'model_name="[^"]*"', f'model_name="{self.name}"', found[2])
            lines.append(f"sglang:{found[1]}{labels} {float(now.get(found[1], line.rsplit(' ', 1)[1]))}")
        if RELEASE >= (0, 5, 13) and self.speculates:
            of = f'{{model_name="{self.name}",tp_rank="0"}} '
            lines += [f"sglang:spec_verify_calls_total{of}{float(self.steps)}",
                      f"sglang:spec_num_draft_tokens{of}{float(self.args.speculative_num_draft_tokens)}"]
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None

    def log_message(self, *_): ...

    def reply(self, status, body="", kind="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        reason = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}.get(status, "")
        self.access(f"{status} {reason}")

    def access(self, outcome):
        host, port = self.client_address[:2]
        say(f'INFO:     {host}:{port} - "{self.command} {self.path} HTTP/1.1" {outcome}')

    def stream(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in itertools.chain((json.dumps(e) for e in events), ["[DONE]"]):
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
        self.access("200 OK")

    def do_GET(self):
        path, e = self.path.split("?")[0], self.engine
        if path in ("/health", "/health_generate"):
            self.hang()
            return self.reply(200 if e.ready else 503, "", "text/plain")
        pages = {"/server_info": e.info, "/get_server_info": e.info, "/model_info": self.model, "/get_load": lambda:
                 e.answers["load"], "/get_model_info": self.model, "/v1/models": self.models}
        if path in pages:
            return self.reply(200, pages[path]())
        if path == "/metrics" and e.args.enable_metrics:
            return self.reply(200, e.metrics(), "text/plain; version=0.0.4")
        if path == "/flush_cache":
            return self.flush()
        self.reply(404, {"detail": "Not Found"})

    def do_POST(self):
        path = self.path.split("?")[0]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/flush_cache":
            return self.flush()
        try:
            body = json.loads(data or b"{}")
        except ValueError:
            return self.reply(400, {"error": {"message": "There was an error parsing the body"}})
        answer = {"/generate": self.generate, "/v1/completions": self.completions,
                  "/v1/chat/completions": self.completions}.get(path)
        if not answer:
            return self.reply(404, {"detail": "Not Found"})
        self.hang()
        wanted = body.get("sampling_params") or body
        if (wanted.get("temperature") or 0) < 0:
            return self.reply(self.engine.answers["bad"][0], {"error": {
                "message": f"temperature must be non-negative, got {wanted['temperature']}."}})
        prompt = body.get("text") or body.get("prompt") or json.dumps(body.get("messages") or "")
        length = max(map(len, prompt)) if isinstance(prompt, list) else len(prompt)
        limit = self.engine.args.context_length or 4096
        if length // 4 > limit:
            return self.reply(self.engine.answers["too_long"][0], {"error": {
                "message": f"The input ({length // 4} tokens) is longer than the model's context length "
                           f"({limit} tokens)."}})
        answer(body, prompt, path)

    def hang(self):
        while self.engine.ready and "hang" in self.engine.faults:
            time.sleep(0.2)

    def flush(self):
        e = self.engine
        with e.lock:
            e.steps = e.right = e.seen_steps = e.seen_right = 0
        self.reply(200, "Cache flushed.\n", "text/plain")

    def model(self):
        return {**self.engine.answers["model_info"], "model_path": self.engine.args.model_path}

    def models(self):
        a = self.engine.args
        return {"object": "list", "data": [{"id": self.engine.name, "object": "model", "created": 0, "owned_by":
                "sglang", "root": self.engine.name, "parent": None, "max_model_len": a.context_length}]}

    def generate(self, body, prompt, _):
        e, tokens = self.engine, (body.get("sampling_params") or {}).get("max_new_tokens", 128)
        if body.get("stream"):
            return self.stream({"text": e.text(done), "meta_info": meta} for done, meta in e.generate(tokens))

        def one():
            done, meta = list(e.generate(tokens))[-1]
            return {"text": e.text(done), "meta_info": meta}
        self.reply(200, [one() for _ in prompt] if isinstance(prompt, list) else one())

    def completions(self, body, _, path):
        """Both OpenAI endpoints: they differ in what a choice holds."""
        e, chat = self.engine, path.endswith("/chat/completions")
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        kind = "chat.completion" if chat else "text_completion"
        head = {"id": f"{time.time_ns():032x}", "created": int(time.time()), "model": body.get("model") or e.name}

        def usage(meta):
            return {"prompt_tokens": meta["prompt_tokens"], "total_tokens": meta["prompt_tokens"] +
                    meta["completion_tokens"], "completion_tokens": meta["completion_tokens"], "reasoning_tokens": 0}

        if not body.get("stream"):
            done, meta = list(e.generate(tokens))[-1]
            content = {"message": {"role": "assistant", "content": e.text(done), "tool_calls": None}} if chat else \
                {"text": e.text(done)}
            return self.reply(200, {**head, "object": kind, "usage": usage(meta), "choices": [
                {"index": 0, **content, "logprobs": None, "finish_reason": "length", "matched_stop": None}]})

        def events():
            sent, meta = 0, {}
            named = {**head, "object": "chat.completion.chunk" if chat else kind}
            if chat:
                yield {**named, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""},
                                             "finish_reason": None}], "usage": None}
            for done, so_far in e.generate(tokens):
                new, sent, meta = e.text(done)[len(e.text(sent)):], done, so_far
                yield {**named, "choices": [{"index": 0, **({"delta": {"content": new}} if chat else {"text": new}),
                                             "finish_reason": None}], "usage": None}
            last = {"delta": {}} if chat else {"text": ""}
            yield {**named, "choices": [{"index": 0, **last, "finish_reason": "length", "matched_stop": None}],
                   "usage": None}
            if (body.get("stream_options") or {}).get("include_usage"):
                yield {**named, "choices": [], "usage": usage(meta)}
        self.stream(events())


def replay(lines, until):
    """Says the recorded lines up to one that holds `until`, with their pauses at STANDIN_SPEED; how many it said."""
    speed, before = float(os.environ.get("STANDIN_SPEED", "50")), None
    for i, line in enumerate(lines):
        stamp = STAMP.match(line)
        if stamp:
            now = datetime.datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S")
            if before and speed:
                time.sleep(max(0.0, (now - before).total_seconds()) / speed)
            before = now
        if until in line:
            return i
        if not ACCESS.search(line):         # its own answers are logged as they are given
            say(STAMP.sub("", line).lstrip("] ") if stamp else line, bool(stamp))
    return len(lines)


def scheduler(main, wake):
    """The child: fails when it is told to, and ends with the main process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.read(wake, 1) == b"f":
        say(CHILD_FAILED.rstrip("\n"))
        os.kill(main, signal.SIGQUIT)
        time.sleep(5)
    os._exit(1)


def serve(args):
    engine = Engine(args)
    Handler.engine = engine
    wake, tell = os.pipe()
    main = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(tell)
        scheduler(main, wake)
    os.close(wake)

    def child_failed(*_):
        say("Received sigquit from a child process. It usually means the child failed.")
        os.kill(child, signal.SIGKILL)
        os.kill(main, signal.SIGKILL)

    def stopped(*_):
        say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGQUIT, child_failed)
    signal.signal(signal.SIGTERM, stopped)
    lines = recorded("start-eagle3.log" if engine.speculates else "start-base.log").splitlines()
    first = next(i for i, line in enumerate(lines) if "server_args=ServerArgs(" in line)
    replay(lines[3:first], "\0")
    shown = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(args).items()) if not k.startswith("_"))
    say(f"server_args=ServerArgs({shown})")
    rest = lines[first + 1:]
    if "never-bind" in engine.faults:
        replay(rest, "Load weight end")
        while True:
            time.sleep(1)
    if engine.faults.get("child-fail", "serve") in ("", "load"):
        replay(rest, "Load weight end")
        os.write(tell, b"f")
        time.sleep(30)
    at = replay(rest, OPEN_AT)
    for n in range(int(float(engine.faults.get("log-mb", "0")) * 1024)):
        say(f"{n:06d} ".ljust(1000, "."))
    http = listen(args)
    say(f"INFO:     Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)")
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    if "503" in engine.faults:
        while True:
            time.sleep(1)
    replay(rest[at + 1:], "\0")
    engine.ready = True
    if "child-fail" in engine.faults:
        os.write(tell, b"f")
    if "die-late" in engine.faults:
        time.sleep(float(engine.faults["die-late"]))
        say("Exception in thread Thread-1: RuntimeError: stand-in: asked to die")
        os.kill(child, signal.SIGKILL)
        os._exit(1)
    while True:
        time.sleep(1)


def listen(args):
    ThreadingHTTPServer.daemon_threads, ThreadingHTTPServer.request_queue_size = True, 128
    try:
        return ThreadingHTTPServer((args.host, args.port), Handler)
    except OSError as e:
        said = (e.strerror or "address already in use").lower()
        say(f"ERROR:    [Errno {e.errno}] error while attempting to bind on address ('{args.host}', {args.port}): "
            f"{said}", False)
        sys.stderr.flush()
        os._exit(1)
