"""The hub's routes on a loopback port, and its CDN on another: refusals, redirects, ranges, and faults on demand.

    with Hub() as hub:
        repo = hub.add("org/tiny", {"config.json": b"{}", "model.safetensors": WEIGHTS})
        …                               # HF_ENDPOINT=hub.url
        hub.served["model.safetensors"] # bytes that left the CDN for it
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf", ".onnx", ".pth")      # what a repository keeps in LFS


@dataclass
class Repository:
    """`commits` {commit: {path: content}}; `refs` {branch or tag: commit}. `extra` entries are added to every tree."""

    name: str
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    extra: list[dict] = field(default_factory=list)
    gated: bool = False
    private: bool = False
    readers: set[str] = field(default_factory=set)      # tokens that may read it where it is gated or private

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        commit = hashlib.sha1(b"".join(b"%s\0%s\0" % (p.encode(), c) for p, c in files.items())).hexdigest()
        self.commits[commit], self.refs[ref] = files, commit
        return commit

    def find(self, revision: str) -> str | None:
        return self.refs.get(revision) or next((c for c in self.commits if c.startswith(revision)), None)


def entry(path: str, content: bytes) -> dict:
    """A file of a tree, as the hub lists it."""
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    about = {"type": "file", "oid": oid, "size": len(content), "path": path}
    if path.endswith(LARGE):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" \
            % (hashlib.sha256(content).hexdigest().encode(), len(content))
        about |= {"oid": hashlib.sha1(b"blob %d\0" % len(pointer) + pointer).hexdigest(),
                  "lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content),
                          "pointerSize": len(pointer)}}
    return about


class Hub:
    """Counts and keeps what was asked.

    asked     (server "hub" or "cdn", path, headers) of every request, in order
    served    {file: bytes that were sent of it}
    cut       {file: n}: the connection ends after n bytes, once
    stall     {file: n}: the CDN sends n bytes, then nothing until the end; `stalled` is set
    refuse    [(pattern, status, headers)]: the first request that matches gets that answer, once
    altered   {file: content} that is sent instead of the right one

    certificate   a PEM file with key and certificate: both speak TLS
    """

    def __init__(self, page: int = 1000, ranges: bool = True, certificate: str = ""):
        self.page, self.ranges, self.lock = page, ranges, threading.Lock()
        self.repositories: dict[str, Repository] = {}
        self.renamed: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.asked: list[tuple[str, str, dict]] = []
        self.served: Counter = Counter()
        self.cut: dict[str, int] = {}
        self.stall: dict[str, int] = {}
        self.refuse: list[tuple[str, int, dict]] = []
        self.altered: dict[str, bytes] = {}
        self.stalled, self.closing = threading.Event(), threading.Event()
        self.servers = [_server(self, "hub"), _server(self, "cdn")]
        if certificate:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
            for server in self.servers:
                server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https" if certificate else "http"
        self.url, self.cdn = (f"{scheme}://127.0.0.1:{s.server_address[1]}" for s in self.servers)

    def __enter__(self) -> Hub:
        for server in self.servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: dict[str, bytes], **about) -> Repository:
        repo = self.repositories[name] = Repository(name, **about)
        repo.commit(files)
        self.tokens |= repo.readers
        return repo

    def paths(self, server: str = "hub") -> list[str]:
        return [path for where, path, _ in self.asked if where == server]


def _server(hub: Hub, role: str) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "role": role}))
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    role: str

    def log_message(self, *_): ...

    def do_GET(self):
        target = re.sub(r"^http://[^/]*", "", self.path)        # asked as a proxy, it is the server itself
        with self.hub.lock:
            self.hub.asked.append((self.role, self.path, dict(self.headers)))
            refusal = next((r for r in self.hub.refuse if re.search(r[0], self.path)), None)
            if refusal:
                self.hub.refuse.remove(refusal)
        with suppress(ConnectionError):
            if refusal:
                return self.answer(refusal[1], b"{}", **refusal[2])
            parts = urlsplit(target)
            self.cdn(parts) if self.role == "cdn" else self.route(unquote(parts.path), parse_qs(parts.query))

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def refused(self, status: int, code: str, message: str) -> None:
        codes = {"X_Error_Code": code} if code else {}
        self.answer(status, json.dumps({"error": message}).encode(), X_Error_Message=message, **codes)

    # -- the hub

    def route(self, path: str, query: dict) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        found = re.fullmatch(r"/api/models/(?P<name>.+?)/(?P<what>revision|tree)/(?P<rest>.+)", path) \
            or re.fullmatch(r"/api/(?P<what>resolve-cache)/models/(?P<name>[^/]+/[^/]+)/(?P<rest>.+)", path) \
            or re.fullmatch(r"/(?P<name>.+?)/(?P<what>resolve)/(?P<rest>.+)", path)
        if token and token not in self.hub.tokens:
            return self.refused(401, "", "Invalid credentials in Authorization header")
        if found and found["name"] in self.hub.renamed:
            return self.answer(307, b"", Location=self.path.replace(found["name"], self.hub.renamed[found["name"]]))
        repo = self.hub.repositories.get(found["name"]) if found else None
        if repo is None or repo.private and token not in repo.readers:
            return self.refused(404, "RepoNotFound", "Repository not found") if token \
                else self.refused(401, "RepoNotFound", "Invalid username or password.")
        if found["what"].startswith("resolve"):
            return self.resolve(repo, found["rest"], token, found["what"] == "resolve")
        commit = repo.find(found["rest"])
        if commit is None:
            return self.refused(404, "RevisionNotFound", f"Invalid rev id: {found['rest']}")
        if found["what"] == "revision":
            return self.answer(200, json.dumps({"id": repo.name, "sha": commit, "gated": repo.gated}).encode())
        self.tree(repo, commit, int(query.get("cursor", ["0"])[0]))

    def tree(self, repo: Repository, commit: str, start: int) -> None:
        files = repo.commits[commit]
        folders = sorted({"/".join(p.split("/")[:i]) for p in files for i in range(1, p.count("/") + 1)})
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": f} for f in folders]
        entries += [entry(p, c) for p, c in files.items()] + repo.extra
        after = start + self.hub.page
        link = {"Link": f'<{self.hub.url}/api/models/{repo.name}/tree/{commit}?recursive=1&cursor={after}>; rel="next"'}
        self.answer(200, json.dumps(entries[start:after]).encode(), **link if after < len(entries) else {})

    def resolve(self, repo: Repository, rest: str, token: str, first: bool) -> None:
        """Large files lead to the CDN, small ones to another path here (relative, as the hub does it)."""
        if repo.gated and token not in repo.readers:
            return self.refused(403 if token else 401, "GatedRepo", f"Access to model {repo.name} is restricted.")
        commit = next((c for c in repo.commits if rest.startswith(f"{c}/")), "")
        name = rest[len(commit) + 1:]
        content = repo.commits.get(commit, {}).get(name)
        if content is None:
            return self.refused(404, "EntryNotFound", "Entry not found")
        about = {"X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        if "lfs" in (listed := entry(name, content)):
            sha256 = listed["lfs"]["oid"]
            return self.answer(302, b"", Location=f"{self.hub.cdn}/repos/{sha256}?Signature=s3cret&name={name}",
                               X_Linked_ETag=f'"{sha256}"', X_Linked_Size=str(len(content)), **about)
        if first:
            where = f"/api/resolve-cache/models/{repo.name}/{commit}/{quote(name)}"
            return self.answer(307, b"", Location=where, **about)
        self.content(name, content, ETag=f'"{listed["oid"]}"', **about)

    # -- its CDN, and content of both

    def cdn(self, parts) -> None:
        sha256, name = parts.path.rpartition("/")[2], parse_qs(parts.query)["name"][0]
        contents = (c[name] for r in self.hub.repositories.values() for c in r.commits.values() if name in c)
        self.content(name, next(c for c in contents if hashlib.sha256(c).hexdigest() == sha256), ETag=f'"{sha256}"')

    def content(self, name: str, content: bytes, **headers: str) -> None:
        hub = self.hub
        content = hub.altered.get(name, content)
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "") if hub.ranges else None
        start = int(wanted[1]) if wanted else 0
        if wanted and start >= len(content):
            return self.answer(416, b"", Content_Range=f"bytes */{len(content)}")
        body = content[start:]
        with hub.lock:
            stop, stall = hub.cut.pop(name, None), hub.stall.pop(name, None)
        body, length = body[:stop if stall is None else stall], len(body)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(length))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        with hub.lock:
            hub.served[name] += len(body)
        self.wfile.write(body)
        self.wfile.flush()
        if stall is not None:
            hub.stalled.set()
            hub.closing.wait(30)
        self.close_connection = len(body) < length
