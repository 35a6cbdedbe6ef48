"""Closed-loop load against one inference server, run on the server's own host.

    python load.py JOB.json OUTDIR

C workers keep C streamed requests in flight; every request leaves one raw record,
failed ones too. One file, standard library only, Python >= 3.9.

JOB     {"schema": 1, "run_id", "url", "metrics_path", "flush_path", "limit_s", "settle_s", "give_up_after",
         "cells": [{"prompt_set", "concurrency"}, …], "warmup": [request, …],
         "requests": {prompt_set: [{"id", "path", "body"}, …]}}
OUTDIR  records.jsonl   one line per request, flushed as it ends (see `Record`)
        cells.jsonl     one line per cell: metrics pages right before and after the measured phase, client CPU, load
        done.json       written last: only a complete run has it
stdout  progress DONE TOTAL note
exit    0 complete · 2 bad job or used OUTDIR · 3 the server went away · 143 ended by TERM

The client shares cores with the server, so a chunk costs it one read and one time stamp;
JSON is parsed after the request has ended.
"""

import hashlib
import http.client
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

MAX_STREAM_BYTES = 64 << 20
MAX_DETAIL = 300


# ------------------------------------------------------------------ one stream

def _pieces(response, sock, deadline):
    """(arrival, bytes) for each read of the body, stamped before anything looks inside."""
    size = 0
    while not response.isclosed():
        left = deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("request limit")
        sock.settimeout(left)
        data = response.read1(65536)
        if not data:
            return
        yield time.monotonic(), data
        size += len(data)
        if size > MAX_STREAM_BYTES:
            raise ValueError("stream over %d MiB" % (MAX_STREAM_BYTES >> 20))


def events(pieces):
    """(arrival of its last byte, payload bytes) of every server-sent `data:` event."""
    rest = b""
    for t, data in pieces:
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield t, line[5:].strip()
            elif line.startswith(b"event:") and line[6:].strip() == b"error":
                yield t, b'{"error": "event: error"}'


def delta(event, so_far):
    """New text in one event of a chat, completion, llama.cpp or SGLang stream."""
    choices = event.get("choices")
    if choices:
        part = choices[0].get("delta") or choices[0]
        return "".join(part.get(k) or "" for k in ("reasoning_content", "reasoning", "content", "text"))
    if isinstance(event.get("content"), str):           # llama.cpp /completion
        return event["content"]
    text = event.get("text")                            # SGLang /generate repeats all text so far
    if isinstance(text, str):
        return text[len(so_far):] if text.startswith(so_far) else text
    return ""


def usage_of(event):
    """{prompt_tokens, completion_tokens, cached_tokens} as far as the event says them."""
    said = event.get("usage") or event.get("meta_info") or {}
    details = said.get("prompt_tokens_details") or {}
    found = {k: said.get(k) for k in ("prompt_tokens", "completion_tokens")}
    found["cached_tokens"] = details.get("cached_tokens", said.get("cached_tokens"))
    return {k: v for k, v in found.items() if isinstance(v, int)}


def digest(pieces, t0):
    """What a stream said, as the fields of a record. Raises nothing: troubles become `error`.

    chunks: columns over the chunks that carry text: t_s (arrival since t0), chars, bytes (of the
    JSON payload) and tokens (all so far, null where the server does not say it per chunk).
    """
    out = {"text": "", "chunks": {"t_s": [], "chars": [], "bytes": [], "tokens": []}, "usage": {}, "server": {},
           "finish_reason": None, "error": None, "detail": ""}
    text, chunks, ended = [], out["chunks"], False
    for t, payload in events(pieces):
        if payload == b"[DONE]":
            ended = True
            continue
        try:
            event = json.loads(payload)
            said = usage_of(event)
            if event.get("error"):
                out["error"], out["detail"] = "server-error", json.dumps(event["error"])[:MAX_DETAIL]
                break
            new = delta(event, "".join(text) if "text" in event else "")
            choice = (event.get("choices") or [event.get("meta_info") or {}])[0]
            reason = choice.get("finish_reason")
        except (ValueError, AttributeError, TypeError, KeyError, IndexError) as e:
            out["error"], out["detail"] = "bad-json", ("%s: %r" % (e, payload))[:MAX_DETAIL]
            break
        out["usage"].update(said)
        out["server"].update({k: event[k] for k in ("timings", "meta_info", "metrics") if event.get(k)})
        if reason or event.get("stop") is True:
            ended = True
            out["finish_reason"] = reason["type"] if isinstance(reason, dict) else reason or "stop"
        if new:
            text.append(new)
            for key, value in (("t_s", round(t - t0, 6)), ("chars", len(new)), ("bytes", len(payload)),
                               ("tokens", said.get("completion_tokens"))):
                chunks[key].append(value)
    out["text"] = "".join(text)
    if not out["error"] and not ended:
        out["error"], out["detail"] = "broken-stream", "ended without a finish reason"
    if not out["error"] and not text:
        out["error"] = "empty"
    return out


def ask(address, request, limit_s, t0, hold):
    """One streamed request → the measured part of a record; times in s since t0 (monotonic)."""
    body = json.dumps(request["body"]).encode()
    connection = http.client.HTTPConnection(*address, timeout=limit_s)
    pieces, error, detail = [], None, ""
    sent = time.monotonic()
    try:
        connection.connect()
        sock = connection.sock
        hold(sock)
        connection.request("POST", request["path"], body,
                           {"Content-Type": "application/json", "Connection": "close"})
        response = connection.getresponse()
        if response.status != 200:
            error = "http-%d" % response.status
            detail = response.read(2000).decode("utf-8", "replace")[:MAX_DETAIL]
        else:
            for piece in _pieces(response, sock, sent + limit_s):
                pieces.append(piece)
    except (socket.timeout, TimeoutError) as e:
        error, detail = "timeout", str(e)
    except ConnectionRefusedError as e:
        error, detail = "refused", str(e)
    except (OSError, http.client.HTTPException, ValueError) as e:
        error, detail = "broken-stream", "%s: %s" % (type(e).__name__, e)
    finally:
        hold(None)
        connection.close()
    ended = time.monotonic()
    said = digest(pieces, t0)
    if error and (error != "broken-stream" or said["error"] == "broken-stream"):    # cut after its end: nothing lost
        said.update(error=error, detail=detail[:MAX_DETAIL])
    return dict(said, t_send=round(sent - t0, 6), t_end=round(ended - t0, 6))


# ------------------------------------------------------------------ the run

class Phase:
    """Warm-up or measurement of one cell: its requests in order, `concurrency` of them in flight."""

    def __init__(self, run, cell, name, requests):
        self.run, self.workers = run, cell["concurrency"]
        self.label = {"set": cell["prompt_set"], "concurrency": cell["concurrency"], "phase": name}
        self.queue, self.t0 = iter(requests), time.monotonic()
        self.total = {"t0_monotonic": self.t0, "requests": 0, "failed": 0, "output_tokens": 0,
                      "wall_s": 0.0, "client_cpu_s": 0.0}

    def go(self):
        """Totals of the phase; the exact numbers are in the records."""
        cpu = time.process_time()
        workers = [threading.Thread(target=self.work, daemon=True) for _ in range(self.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.total["client_cpu_s"] = round(time.process_time() - cpu, 6)
        if self.run.stop == "refused":      # counted, never dropped
            for request in iter(self.take, None):
                self.keep(request, dict(digest([], self.t0), error="not-sent", t_send=None, t_end=None))
        self.run.say()
        return self.total

    def take(self):
        with self.run.lock:
            return next(self.queue, None)

    def work(self):
        run = self.run
        try:
            while not run.stop:
                request = self.take()
                if request is None:
                    return
                said = ask(run.address, request, run.job["limit_s"], self.t0, run.hold)
                self.keep(request, said)
                if run.refused >= run.job["give_up_after"]:
                    run.end("refused")
                elif said["error"] == "refused":
                    time.sleep(0.1)         # a restart takes longer than a refusal
        except Exception as e:              # a full disk, say: everything ends, and the last line says why
            run.end("%s: %s" % (type(e).__name__, e))

    def keep(self, request, said):
        run, total = self.run, self.total
        with run.lock:
            if run.stop == "cancelled" and said["error"]:
                said["error"] = "cancelled"
            run.records.write(json.dumps(dict(self.label, id=request["id"], **said)) + "\n")
            run.records.flush()
            run.done += 1
            run.refused = run.refused + 1 if said["error"] == "refused" else 0
            total["requests"] += 1
            total["failed"] += bool(said["error"])
            total["output_tokens"] += said["usage"].get("completion_tokens", 0)
            total["wall_s"] = round(time.monotonic() - self.t0, 6)
            run.progress(self.note())

    def note(self):
        rate = self.total["output_tokens"] / (self.total["wall_s"] or 1)
        what = "warm-up" if self.label["phase"] == "warmup" else "%.1f tok/s" % rate
        failed = ", %d failed" % self.total["failed"] if self.total["failed"] else ""
        return "%s c=%d: %s%s" % (self.label["set"], self.label["concurrency"], what, failed)


class Run:
    """One job: its cells in order, its files, and who is in flight."""

    def __init__(self, job, out):
        url = urlsplit(job["url"])
        self.job, self.address = job, (url.hostname, url.port or 80)
        self.out, self.lock = out, threading.Lock()
        self.records = open(os.path.join(out, "records.jsonl"), "x")
        self.cells = open(os.path.join(out, "cells.jsonl"), "x")
        self.stop = ""                  # why we end early: "" | "refused" | "cancelled" | an error of our own
        self.refused = 0                # in a row
        self.sockets = {}
        self.counts = {"measured": 0, "failed": 0}
        self.done, self.noted, self.note = 0, 0.0, ""
        self.total = sum(len(job["requests"][c["prompt_set"]]) + len(job["warmup"]) for c in job["cells"])

    def progress(self, note):
        """Said at most twice a second; the last note of a phase is never lost."""
        self.note = note
        if time.monotonic() - self.noted > 0.5:
            self.say()

    def say(self):
        if self.note:
            print("progress %d %d %s" % (self.done, self.total, self.note), flush=True)
        self.noted, self.note = time.monotonic(), ""

    def page(self):
        """The metrics page as text, None when it cannot be had."""
        if self.stop:
            return None
        time.sleep(self.job["settle_s"])    # servers publish counters a moment after the last chunk
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        try:
            connection.request("GET", self.job["metrics_path"])
            response = connection.getresponse()
            return response.read().decode("utf-8", "replace") if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def fresh(self):
        """The status of emptying the prefix cache: what one cell sent must not be half the work of the next.

        SGLang refuses (400) as long as a request is in flight, or has just ended.
        """
        for _ in range(20):
            connection = http.client.HTTPConnection(*self.address, timeout=10)
            try:
                connection.request("POST", self.job["flush_path"])
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                status = 0
            finally:
                connection.close()
            if status == 200 or self.stop:
                break
            time.sleep(0.25)
        return status

    def end(self, why):
        """Stop early: nothing new is sent, and what is in flight is cut."""
        self.stop = self.stop or why
        for sock in list(self.sockets.values()):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass                    # already gone

    def hold(self, sock):
        """Called by a worker with the socket it waits on, and with None when it no longer does."""
        me = threading.get_ident()
        if sock is None:
            self.sockets.pop(me, None)
            return
        self.sockets[me] = sock
        if self.stop:                   # it ended while we were connecting
            sock.shutdown(socket.SHUT_RDWR)

    def cell(self, cell):
        row = {"set": cell["prompt_set"], "concurrency": cell["concurrency"], "started_at": time.time()}
        row["warmup"] = Phase(self, cell, "warmup", self.job["warmup"]).go()
        if self.job["flush_path"] and not self.stop:
            row["flushed"] = self.fresh()
        row["load_before"], row["metrics_before"] = load_average(), self.page()
        row["measure"] = Phase(self, cell, "measure", self.job["requests"][cell["prompt_set"]]).go()
        row["load_after"], row["metrics_after"] = load_average(), self.page()
        self.cells.write(json.dumps(row) + "\n")
        self.cells.flush()
        self.counts["measured"] += row["measure"]["requests"]
        self.counts["failed"] += row["measure"]["failed"]

    def go(self):
        started, load = time.monotonic(), load_average()
        for cell in self.job["cells"]:
            if self.stop and self.stop != "refused":
                break
            self.cell(cell)
        if self.stop:
            print("stopped: %s; %d requests measured, %d of them failed"
                  % (self.stop, self.counts["measured"], self.counts["failed"]), flush=True)
            return {"refused": 3, "cancelled": 143}.get(self.stop, 1)
        done = dict(self.counts, run_id=self.job["run_id"], client_cpu_s=round(time.process_time(), 3),
                    wall_s=round(time.monotonic() - started, 3), python=platform.python_version(),
                    cores=os.cpu_count(), load_before=load, load_after=load_average())
        temporary = os.path.join(self.out, "done.json.tmp")
        with open(temporary, "w") as f:
            json.dump(done, f)
        os.replace(temporary, os.path.join(self.out, "done.json"))
        return 0


def load_average():
    try:
        return [round(x, 2) for x in os.getloadavg()]
    except OSError:
        return None


def main(argv):
    try:
        path, out = argv
        with open(path, "rb") as f:
            raw = f.read()
        wanted = os.environ.get("SPECBOOK_JOB_SHA256", "")
        if wanted and hashlib.sha256(raw).hexdigest() != wanted:
            raise ValueError("%s is not the job this unit was made for" % path)
        os.makedirs(out, exist_ok=True)
        run = Run(json.loads(raw), out)
    except (OSError, ValueError, KeyError, TypeError) as e:
        print("cannot start: %s: %s" % (type(e).__name__, e), file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: run.end("cancelled"))
    signal.signal(signal.SIGINT, lambda *_: run.end("cancelled"))
    return run.go()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
