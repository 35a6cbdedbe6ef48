"""Brings a model repository of the Hugging Face hub to this machine. Standard library only, Python >= 3.9.

    python3 hub_fetch.py ORG/NAME REVISION DEST [--weights PATTERN]… [--sha256 HEX]

The revision is resolved to a commit first. Weights come as safetensors unless patterns ask for others; hidden files
stay away. Every file is checked: sha256 for large ones, git's blob sha1 for the rest. What broke off goes on at the
next start (DEST/.hub/*.part); a file has its name only once it is right. Files of a hub cache here are linked.

Honoured: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, http(s)_proxy, no_proxy,
SSL_CERT_FILE. The token goes to the endpoint only, never to where it redirects, and is masked in every line.

Lines: `note TEXT`, `progress DONE TOTAL NOTE` (bytes), at the end `file {json}` of each file and `result {json}`, or
`error KIND TEXT` with the exit code of `KINDS`.
"""

import argparse
import contextlib
import email.utils
import errno
import fnmatch
import functools
import hashlib
import http.client
import json
import os
import queue
import re
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

KINDS = {"fetch": 3, "checksum": 4, "no-space": 5, "no-network": 6, "gated": 7, "missing": 8, "token": 9,
         "format": 10, "hostile": 11}
CHUNK = 1 << 20
LARGEST_PAGE, MOST_PAGES, LONGEST_WAIT_S = 64 << 20, 1000, 600
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BROKEN = (OSError, http.client.HTTPException)   # URLError and timeouts are OSErrors
WEIGHTS = {".safetensors": "safetensors", ".gguf": "GGUF", ".onnx": "ONNX", ".msgpack": "Flax", ".h5": "Keras",
           **dict.fromkeys((".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"), "pickle")}
ASIDE = {"onnx", "original", "openvino", "coreml"}      # folders that hold the same weights once more


class Failed(Exception):
    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


class Stopped(Exception):
    """Another file failed, or the user cancelled."""


# --------------------------------------------------------------- what is set here

class Settings:
    """The hub's own environment variables."""

    def __init__(self, env):
        home = os.path.expanduser(env.get("HF_HOME")
                                  or os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
        self.endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        self.cache = os.path.expanduser(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
                                        or os.path.join(home, "hub"))
        self.offline = next((name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
                             if env.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE")), "")
        self.token = read_token(env, home)
        parts = urllib.parse.urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise Failed("fetch", "HF_ENDPOINT should read https://name, without a login")


def read_token(env, home):
    token = (env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or "").strip()
    if not token:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            with open(os.path.expanduser(env.get("HF_TOKEN_PATH") or os.path.join(home, "token"))) as f:
                token = f.read(4096).strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):      # http.client's complaint would show it
        raise Failed("token", "HF_TOKEN or the token file holds something else than one token")
    return token


def masked(text, token):
    """`text` without the token, anything like one, and logins inside addresses."""
    if token:
        text = text.replace(token, "***")
    return re.sub(r"//[^/@\s]+@", "//***@", re.sub(r"\bhf_[A-Za-z0-9]{6,}", "hf_***", text))


# ------------------------------------------------------------------------- HTTP

def origin(url):
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


class Redirects(urllib.request.HTTPRedirectHandler):
    """The token does not follow to another origin."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and origin(newurl) != origin(req.full_url):
            new.remove_header("Authorization")
        return new


def web():
    trusted = tuple(os.environ.get(name, "") for name in CERTIFICATES)
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls(*trusted)), Redirects())


@functools.lru_cache(maxsize=1)         # reading the certificates takes longer than a small file
def tls(*trusted):
    context = ssl.create_default_context()      # honours SSL_CERT_FILE and SSL_CERT_DIR
    for name in trusted[2:]:
        if os.path.isfile(name):
            context.load_verify_locations(name)
    return context


def knock(endpoint, within_s):
    """`Failed` at once where no connection opens to the hub, or to the proxy that leads there."""
    scheme, host, port = origin(endpoint)
    through = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)
    if through:
        _, host, port = origin(through if "://" in through else "http://" + through)
    said = []

    def connect():
        try:
            socket.create_connection((host, port), within_s).close()
            said.append("")
        except OSError as e:
            said.append(e.strerror or str(e))

    # a thread, as looking up a name has no time limit of its own, and a name may have many addresses
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(within_s)
    why = said[0] if said else "no answer within %g s" % within_s
    if why:
        raise Failed("no-network", "cannot reach %s%s:%d: %s" % ("the proxy " if through else "", host, port, why))


def retry_after_s(headers):
    """Seconds that the server asks to wait: a number, or a date."""
    said = (headers.get("Retry-After") or "").strip()
    if said.isdigit():
        return min(int(said[:9]), LONGEST_WAIT_S)
    with contextlib.suppress(TypeError, ValueError, IndexError):
        return min(max(email.utils.parsedate_to_datetime(said).timestamp() - time.time(), 0), LONGEST_WAIT_S)
    return 0


class Patience:
    """Waits longer and longer between tries that bring nothing; gives up after the last wait."""

    def __init__(self, waits, note, stop):
        self.waits, self.note, self.stop, self.tries = waits, note, stop, 0

    def again(self, why, kind="fetch", at_least_s=0):
        if self.tries >= len(self.waits):
            raise Failed(kind, "%s; gave up after %d tries" % (why, self.tries + 1))
        pause = max(self.waits[self.tries], at_least_s)
        self.note("%s; again in %g s" % (why, round(pause, 1)))
        if self.stop.wait(pause):
            raise Stopped
        self.tries += 1


# ----------------------------------------------------------------- the repository

class File:
    """One file of the tree. `sha256` of large files; `sha1` is git's, of a blob header and the content."""

    def __init__(self, path, size, sha256="", sha1=""):
        self.path, self.size, self.sha256, self.sha1 = path, size, sha256, sha1

    @property
    def id(self):
        """Names its part: a part of another version is never continued."""
        return hashlib.sha256(("%s\n%s" % (self.path, self.sha256 or self.sha1)).encode()).hexdigest()[:32]


def hostile(name):
    """Why a file name is not one to write; "" for a decent one."""
    if not isinstance(name, str) or not name:
        return "no name"
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", name):
        return "control characters"
    if name.startswith("/") or "\\" in name or {"", ".", ".."} & set(name.split("/")):
        return "it leads elsewhere"
    return "too long" if len(name.encode()) > 1024 or any(len(p.encode()) > 250 for p in name.split("/")) else ""


def read_entry(entry):
    """A `File`, or None for a folder. `Failed` for what no hub says."""
    path, kind = entry.get("path"), entry.get("type")
    why = hostile(path)
    if why:
        raise Failed("hostile", "a file of this repository is called %s: %s" % (ascii(path)[:80], why))
    if kind != "file":
        return None
    lfs = entry.get("lfs") or {}
    size, sha256 = lfs.get("size", entry.get("size")), lfs.get("oid", "")
    sha1 = "" if lfs else entry.get("oid", "")
    if type(size) is not int or not 0 <= size < 1 << 53 \
            or not re.fullmatch(r"[0-9a-f]{64}" if lfs else r"[0-9a-f]{40}", sha256 if lfs else sha1):
        raise Failed("hostile", "the listing of %s is not a hub's: size %s, hash %s"
                     % (path, ascii(size)[:40], ascii(sha256 or sha1)[:80]))
    return File(path, size, sha256, sha1)


def choose(files, patterns, repo):
    """The files to bring: the weights that are wanted, and all that is neither weights nor hidden."""
    seen = [f for f in files if not any(part.startswith(".") for part in f.path.split("/"))]
    kind = {f.path: WEIGHTS.get(os.path.splitext(f.path)[1].lower()) for f in seen}
    beside = {f.path for f in seen if kind[f.path] is None and not ASIDE & set(f.path.split("/")[:-1])}
    if patterns:
        wanted = {f.path for f in seen if any(fnmatch.fnmatchcase(f.path, p) for p in patterns)}
    else:
        wanted = {f.path for f in seen if kind[f.path] == "safetensors" and not ASIDE & set(f.path.split("/")[:-1])}
    if not wanted:
        others = ["%s (%s)" % (f.path, kind[f.path]) for f in seen if kind[f.path]]
        raise Failed("format", "%s has no %s; its weights are %s" % (
            repo, "file like " + " or ".join(patterns) if patterns else "safetensors",
            ", ".join(others[:4]) + (" and %d more" % (len(others) - 4) if len(others) > 4 else "")
            if others else "nowhere: it holds none"))
    return [f for f in seen if f.path in wanted | beside]


def digests(f):
    """(sha256, git's sha1 or None) to be fed with the content of a file of that size."""
    return hashlib.sha256(), None if f.sha256 else hashlib.sha1(b"blob %d\0" % f.size)


class Hub:
    """One repository, on the hub and in the cache here. Only the thread that made it calls `say`.

    waits    seconds before each further try; within_s: limit of the first connection; streams: files at once
    """

    def __init__(self, repo, settings, say, waits=(0.5, 1, 2, 4, 8, 15, 30), within_s=6.0, streams=4):
        self.repo, self.settings, self.waits, self.within_s, self.streams = repo, settings, waits, within_s, streams
        self.say = lambda text: say(masked(text, settings.token))
        self.opener, self.commit, self.met = web(), "", False
        self.speaker, self.notes, self.stop = threading.get_ident(), queue.SimpleQueue(), threading.Event()

    def note(self, text):
        if threading.get_ident() == self.speaker:
            self.say("note " + text)
        else:
            self.notes.put(text)

    # -- asking

    def open(self, path, **headers):
        """`path` below the endpoint, through redirects."""
        url = self.settings.endpoint + path
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "specbook",
                                                       **headers})
        if self.settings.token:
            request.add_header("Authorization", "Bearer " + self.settings.token)
        answer = self.opener.open(request, timeout=30)
        self.met = True
        return answer

    def patiently(self, what, action):
        """`action(patience)` until it succeeds; a passing trouble is waited for, a refusal explained."""
        patience = Patience(self.waits if self.met else self.waits[:2], self.note, self.stop)
        while True:
            try:
                return action(patience)
            except urllib.error.HTTPError as e:
                self.met = True
                e.close()
                if e.code not in (408, 425, 429) and e.code < 500:
                    raise self.refusal(e, what) from None
                patience.again("%s: the hub answers %d" % (what, e.code), at_least_s=retry_after_s(e.headers))
            except BROKEN as e:
                why = getattr(e, "reason", None) or getattr(e, "strerror", None) or e or type(e).__name__
                if isinstance(why, ssl.SSLCertVerificationError):
                    raise Failed("fetch", "the certificate of %s is not trusted here (%s); a proxy that opens TLS "
                                 "needs SSL_CERT_FILE" % (self.settings.endpoint, why.verify_message)) from None
                if str(why).startswith("Tunnel connection failed") and not self.met:
                    raise Failed("no-network", "the proxy does not lead to the hub: %s" % why) from None
                patience.again("%s: %s" % (what, why), "fetch" if self.met else "no-network")

    def refusal(self, e, what):
        """What a 4xx of the hub means. A repository that one may not see looks as if it were not there."""
        code, said = e.headers.get("X-Error-Code", ""), e.headers.get("X-Error-Message", "")
        holds = "the token here has no access to it" if self.settings.token else "there is no token here"
        if code == "GatedRepo":
            return Failed("gated", "%s is gated, and %s" % (self.repo, holds))
        if code == "RevisionNotFound":
            return Failed("missing", "%s is there, but has no %s" % (self.repo, what))
        if code == "EntryNotFound":
            return Failed("missing", "%s has no %s" % (self.repo, what))
        if code == "RepoNotFound" or e.code == 404 or (e.code == 401 and not self.settings.token):
            return Failed("missing", "the hub has no %s; or it is private, and %s" % (self.repo, holds))
        if e.code == 401:
            return Failed("token", "the hub does not take the token that is set here")
        return Failed("fetch", "%s: the hub answers %d%s" % (what, e.code, ": " + said[:200] if said else ""))

    def ask(self, path, what):
        """(JSON, headers) of an API path."""
        def action(_):
            with self.open(path, Accept="application/json") as answer:
                return answer.read(LARGEST_PAGE + 1), answer.headers
        first = not self.met
        body, headers = self.patiently(what, action)
        try:
            return json.loads(body), headers
        except (ValueError, RecursionError):
            raise Failed("no-network" if first else "fetch", "what answers at %s is not the hub: %s"
                         % (self.settings.endpoint, ascii(body[:60]))) from None

    # -- which files

    def listing(self, revision, patterns=()):
        """(commit, the files to bring), from the hub; where there is no way to it, from the cache here."""
        try:
            if self.settings.offline:
                raise Failed("no-network", "%s is set" % self.settings.offline)
            knock(self.settings.endpoint, self.within_s)
            self.commit = self.resolve(revision)
            files = self.tree()
        except Failed as e:
            if e.kind != "no-network":
                raise
            self.commit, files = self.cached_listing(revision, e)
        return self.commit, choose(files, patterns, self.repo)

    def resolve(self, revision):
        said, _ = self.ask("/api/models/%s/revision/%s" % (self.repo, urllib.parse.quote(revision, safe="")),
                           "revision %s" % revision)
        commit = said.get("sha") if isinstance(said, dict) else None
        if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise Failed("fetch", "what answers at %s is not the hub: it names no commit" % self.settings.endpoint)
        name = said.get("id") or said.get("modelId") or self.repo
        if name != self.repo and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name)):
            self.note("%s is called %s now" % (self.repo, name))
            self.repo = name
        return commit

    def tree(self):
        files, path, pages = [], "/api/models/%s/tree/%s?recursive=1" % (self.repo, self.commit), 0
        while path:
            entries, headers = self.ask(path, "the list of files")
            pages += 1
            if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries) or pages > MOST_PAGES:
                raise Failed("hostile", "its list of files has no end, or is none")
            files += filter(None, map(read_entry, entries))
            more = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', headers.get("Link") or "")
            path = more and re.sub(r"^.*?(?=/api/models/|$)", "", more.group(1))     # its host is not asked: ours is
        names = {f.path for f in files}
        if len(names) < len(files) or any(parent in names for n in names for parent in parents(n)):
            raise Failed("hostile", "a name stands in its list of files twice")
        return files

    # -- the cache here

    def cached(self, *parts):
        return os.path.join(self.settings.cache, "models--" + self.repo.replace("/", "--"), *parts)

    def cached_listing(self, revision, failed):
        """(commit, files) of a snapshot in the cache; `failed` again where it has none, or a part of it."""
        commit = revision
        with contextlib.suppress(OSError, UnicodeDecodeError):
            with open(self.cached("refs", *revision.split("/"))) as f:
                commit = f.read(64).strip()
        base, files = self.cached("snapshots", commit), []
        for folder, _, names in os.walk(base if re.fullmatch(r"[0-9a-f]{40}", commit) else ""):
            for path in (os.path.join(folder, name) for name in names):
                blob = os.path.basename(os.path.realpath(path))     # the cache names them by their hash
                if os.path.isfile(path):
                    files.append(File(os.path.relpath(path, base), os.path.getsize(path),
                                      sha256=blob if re.fullmatch(r"[0-9a-f]{64}", blob) else "",
                                      sha1=blob if re.fullmatch(r"[0-9a-f]{40}", blob) else ""))
        there = {f.path for f in files}
        lacking = sorted({s for n in there if n.endswith(".index.json") for s in shards(base, n)} - there)
        if not any(os.path.splitext(n)[1] in WEIGHTS for n in there) or lacking:
            raise Failed("no-network", "%s; the cache here has %s of %s@%s" % (
                failed, "no %s" % lacking[0] if lacking else "nothing", self.repo, revision))
        self.note("%s: taking %s@%s as the cache here has it" % (failed, self.repo, commit[:12]))
        return commit, files

    # -- the files

    def bring(self, files, dest):
        """{path: {"size", "sha256"}}: every file at its place below `dest`, checked."""
        os.makedirs(os.path.join(dest, ".hub"), exist_ok=True)
        self.room(dest, sum(f.size - self.have(f, dest) for f in files), "what is still to come")
        self.stop.clear()
        done, total, told = dict.fromkeys((f.path for f in files), 0), sum(f.size for f in files), {}
        record, said = Record(dest), ""
        pool = ThreadPoolExecutor(self.streams)
        try:
            running = {pool.submit(self.one, f, dest, record, done): f for f in sorted(files, key=lambda f: f.size)}
            while running:
                ended, _ = wait(running, 0.5, FIRST_EXCEPTION)
                for future in ended:
                    f = running.pop(future)
                    told[f.path] = {"size": f.size, "sha256": future.result()}
                while not self.notes.empty():
                    self.note(self.notes.get())
                moved = "progress %d %d %d of %d files" % (sum(done.values()), total, len(told), len(files))
                if moved != said:
                    self.say(moved)
                said = moved
        finally:
            self.stop.set()
            pool.shutdown(wait=not running, cancel_futures=True)
            record.save()
        return {f.path: told[f.path] for f in files}

    def have(self, f, dest):
        """How many bytes of a file need no room any more (if they are right)."""
        for path in (os.path.join(dest, f.path), self.cached("snapshots", self.commit, f.path)):
            if os.path.isfile(path) and os.path.getsize(path) == f.size:
                return f.size
        part = os.path.join(dest, ".hub", f.id + ".part")
        return min(os.path.getsize(part), f.size) if os.path.exists(part) else 0

    @staticmethod
    def room(folder, needed, what):
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise Failed("no-space", "%s needs %d bytes, %d are free in %s" % (what, needed, free, folder))

    def one(self, f, dest, record, done):
        """Bring one file; its sha256. `done[path]` is kept up to date."""
        path, part = os.path.join(dest, f.path), os.path.join(dest, ".hub", f.id + ".part")
        found = record.sha256(f, path) or self.right(f, path, done)
        if not found:
            drop(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            kept = os.path.realpath(self.cached("snapshots", self.commit, f.path))
            found = self.right(f, kept, done)
            if found:
                link(kept, part)
            else:
                found = self.download(f, part, done)
            os.replace(part, path)
        done[f.path] = f.size
        record.add(f, path, found)
        return found

    def right(self, f, path, done):
        """The sha256 of a file that is here already, if it is the one that is meant."""
        if not os.path.isfile(path) or os.path.getsize(path) != f.size:
            return ""
        hashes = digests(f)
        self.feed(f, path, hashes, done)
        return hashes[0].hexdigest() if not wrong(f, hashes) else ""

    def feed(self, f, path, hashes, done):
        with open(path, "rb") as source:
            done[f.path] = 0
            for piece in iter(lambda: source.read(CHUNK), b""):
                self.take(f, piece, hashes, done)

    def take(self, f, piece, hashes, done):
        if self.stop.is_set():
            raise Stopped
        for h in filter(None, hashes):
            h.update(piece)
        done[f.path] += len(piece)

    def download(self, f, part, done):
        if self.settings.offline:
            raise Failed("no-network", "%s is set, and the cache here has no right %s"
                         % (self.settings.offline, f.path))
        url = "/%s/resolve/%s/%s" % (self.repo, self.commit, urllib.parse.quote(f.path))
        with open(part, "ab", buffering=0) as sink:
            hashes = self.resume(f, part, sink, done)

            def receive(patience):
                nonlocal hashes
                here = done[f.path]
                if here == f.size:
                    return
                try:
                    answer = self.open(url, **({"Range": "bytes=%d-" % here} if here else {}))
                except urllib.error.HTTPError as e:
                    if e.code != 416:
                        raise
                    e.close()
                    hashes = self.restart(f, sink, done)
                    raise OSError("the server has no byte %d" % here) from None
                with answer:
                    start, total = extent(answer)
                    if total not in (None, f.size):
                        raise Failed("checksum", "%s: the hub lists %d bytes, and %d are sent"
                                     % (f.path, f.size, total))
                    if start != here:
                        hashes = self.restart(f, sink, done)
                    for piece in iter(lambda: answer.read1(CHUNK), b""):
                        if done[f.path] + len(piece) > f.size:
                            raise Failed("checksum", "%s: more is sent than the hub lists" % f.path)
                        self.take(f, piece, hashes, done)
                        write(sink, piece, part)
                        patience.tries = 0
                if done[f.path] < f.size:
                    raise OSError("it ended early, %d of %d bytes are here" % (done[f.path], f.size))

            self.patiently(f.path, receive)
        why = wrong(f, hashes)
        if why:
            drop(part)
            raise Failed("checksum", "%s: %s; removed" % (f.path, why))
        return hashes[0].hexdigest()

    def resume(self, f, part, sink, done):
        """The hashes of what is there of a part."""
        if os.path.getsize(part) > f.size:
            sink.truncate(0)
        hashes = digests(f)
        self.feed(f, part, hashes, done)
        return hashes

    @staticmethod
    def restart(f, sink, done):
        sink.truncate(0)
        done[f.path] = 0
        return digests(f)


class Record:
    """What lies in DEST: of which commit, and the files that were checked, so that they are not read again."""

    def __init__(self, dest):
        self.path, self.lock, self.saved = os.path.join(dest, ".hub", "record.json"), threading.Lock(), 0.0
        self.data = {"revision": "", "commit": "", "files": {}}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            with open(self.path) as f:
                said = json.load(f)
            self.data.update({k: said[k] for k, v in self.data.items() if isinstance(said.get(k), type(v))})

    def mark(self, f, path):
        about = os.stat(path)
        return [about.st_size, about.st_mtime_ns, about.st_ino, f.sha256 or f.sha1]

    def sha256(self, f, path):
        known = self.data["files"].get(f.path)
        return known[1] if known and os.path.isfile(path) and known[0] == self.mark(f, path) else ""

    def add(self, f, path, sha256):
        with self.lock:
            self.data["files"][f.path] = [self.mark(f, path), sha256]
            if time.monotonic() - self.saved > 2:
                self.write()

    def save(self):
        with self.lock:
            self.write()

    def write(self):
        self.saved = time.monotonic()
        with open(self.path + ".new", "w") as f:
            json.dump(self.data, f)
        os.replace(self.path + ".new", self.path)

    def moved(self, revision, commit, wanted, dest):
        """Note the commit; what another one left and this one has not is removed. The commit before, or ""."""
        before = self.data["commit"] if self.data["revision"] == revision else ""
        for name in set(self.data["files"]) - wanted:
            del self.data["files"][name]
            drop(os.path.join(dest, name))
        self.data.update(revision=revision, commit=commit)
        self.save()
        return before if before != commit else ""


def parents(name):
    """a/b/c → a, a/b."""
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


def shards(base, index):
    """The files that a weight index names; none where it is no index."""
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        with open(os.path.join(base, index)) as f:
            return {os.path.join(os.path.dirname(index), s) for s in json.load(f)["weight_map"].values()}
    return set()


def extent(answer):
    """(first byte, total size or None) of an answer."""
    ranged = re.match(r"bytes (\d+)-\d+/(\d+)$", answer.headers.get("Content-Range") or "")
    if answer.status == 206 and ranged:
        return int(ranged.group(1)), int(ranged.group(2))
    length = answer.headers.get("Content-Length") or ""
    return 0, int(length) if length.isdigit() else None


def wrong(f, hashes):
    """What does not agree with the hub's hash of a file; "" when all does."""
    for name, expected, found in (("sha256", f.sha256, hashes[0]), ("git's sha1", f.sha1, hashes[1])):
        if expected and found.hexdigest() != expected:
            return "%s is %s, the hub lists %s" % (name, found.hexdigest(), expected)
    return ""


def write(sink, piece, path):
    """All of it; an error of the disk must not pass for one of the network."""
    try:
        rest = memoryview(piece)
        while rest:
            rest = rest[sink.write(rest):]
    except OSError as e:
        raise Failed("no-space" if e.errno in FULL else "fetch", "%s: %s" % (e.strerror or e, path)) from None


def link(source, path):
    """One file, two names; across file systems, or where the cache is another user's, a symbolic link."""
    drop(path)
    try:
        os.link(source, path)
    except OSError:
        os.symlink(source, path)


def drop(path):
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def prepare(hub, revision, dest, patterns, pinned):
    """The files to bring to `dest`; nothing is downloaded yet."""
    commit, files = hub.listing(revision, patterns)
    if revision != commit:
        hub.note("%s is commit %s" % (revision, commit))
    known = [f.sha256 for f in files if f.sha256]
    if pinned and known and pinned not in known:
        raise Failed("checksum", "no file of %s@%s has the pinned sha256 %s" % (hub.repo, commit[:12], pinned))
    os.makedirs(os.path.join(dest, ".hub"), exist_ok=True)
    before = Record(dest).moved(revision, commit, {f.path for f in files}, dest)
    if before:
        hub.note("%s has moved: it was commit %s when it was fetched before" % (revision, before))
    return files


def fetch(hub, revision, dest, patterns, pinned):
    """The files of `revision` below `dest`: {path: {"size", "sha256"}}."""
    told = hub.bring(prepare(hub, revision, dest, patterns, pinned), dest)
    for name in os.listdir(os.path.join(dest, ".hub")):
        if name.endswith(".part"):          # of a version that is not wanted any more
            drop(os.path.join(dest, ".hub", name))
    return told


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("repo", help="org/name")
    p.add_argument("revision", help="branch, tag or commit")
    p.add_argument("dest", help="folder to fill")
    p.add_argument("--weights", action="append", default=[], metavar="PATTERN", help="instead of *.safetensors")
    p.add_argument("--sha256", help="of one of the files")
    a = p.parse_args(argv)
    token = ""

    def say(text):
        print(" ".join(text.split()), flush=True)

    try:
        settings = Settings(os.environ)
        token = settings.token
        hub = Hub(a.repo, settings, say)
        told = fetch(hub, a.revision, os.path.abspath(a.dest), a.weights, a.sha256)
    except Failed as e:
        kind, text = e.kind, str(e)
    except OSError as e:
        kind, text = "no-space" if e.errno in FULL else "fetch", "%s: %s" % (e.strerror or e, e.filename or a.dest)
    else:
        for name, about in told.items():
            print("file " + json.dumps(dict(about, path=name)))
        print("result " + json.dumps({"repo": hub.repo, "commit": hub.commit}), flush=True)
        return 0
    say(masked("error %s %s" % (kind, text), token))
    return KINDS[kind]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)          # without waiting for a thread that listens to a silent server
