"""Models from the hub: the real client program against a local server that speaks the hub's routes."""

import contextlib
import datetime
import hashlib
import io
import ipaddress
import json
import os
import random
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from doubles import LocalHost, RunsJobs
from hub_server import Hub, entry

from kit import following, shipping
from kit.errors import Cancelled, ChecksumError, FetchError, LinkLost, NoSpace
from kit.planning import tools
from kit.seams import UnitState
from kit.sources import hf, source
from kit.spec import Checkpoint, Experiment
from kit.supervisors import supervisor

WEIGHTS = random.Random(7).randbytes(1_500_000)
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
FILES = {"config.json": b'{"hidden_size": 8}', "tokenizer/vocab é 100%.txt": b"a\nb\n", "model.safetensors": WEIGHTS,
         "modeling_x.py": b"", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx", "onnx/notes.txt": b"o",
         "original/consolidated.safetensors": b"once more", ".gitattributes": b"*.bin filter=lfs\n"}
WANTED = {"config.json", "tokenizer/vocab é 100%.txt", "model.safetensors", "modeling_x.py"}
SETTINGS = ("HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "http_proxy",
            "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def hub():
    with Hub() as server:
        yield server


@pytest.fixture
def laptop(tmp_path, monkeypatch):
    """This machine without any setting of its user's."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "laptop"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def host(tmp_path, hub, laptop):
    root = tmp_path / "the host's %20 folder"
    host = LocalHost(root, env={"HF_ENDPOINT": hub.url, "HOME": str(root)})
    host.write(f"{root}/bin/hub_fetch.py", shipping.content("hub_fetch.py"))
    return host


class RunsHere(RunsJobs):
    """The same program with the host's environment, but in this process: no start of a Python for each fetch."""

    def __call__(self, unit, on_line):
        self.units.append(unit)
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            for name, value in self.host.env.items():
                patch.setenv(name, value)
            code = hf.program().main(list(unit.argv[2:]))
        for text in printed.getvalue().splitlines():
            self.lines.append(text)
            on_line(text)
        return UnitState(unit.name, "failed" if code else "inactive", result="exit-code" if code else "success")


class Fetched:
    """One fetch: where its files are, what it returned, and what it said."""

    def __init__(self, host, reference="hf:org/tiny@main", sha256=None, run_job=None, progress=None):
        checkpoint = Checkpoint(source=reference, sha256=sha256)
        self.jobs, self.said = run_job or RunsHere(host), []
        self.folder = Path(host.root) / "models" / checkpoint.slug
        self.files = source("hf").fetch(checkpoint, str(self.folder), host, self.jobs,
                                        progress or (lambda *moved: self.said.append(moved)), sys.executable)
        self.notes = [note for _, _, note in self.said]


def folder_of(host, reference="hf:org/tiny@main"):
    return Path(host.root) / "models" / Checkpoint(source=reference).slug


def visible(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")
            if p.is_file() and ".hub" not in p.parts} if folder.exists() else set()


def without_network(host):
    """The hub's address on the host becomes a port where nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        host.env["HF_ENDPOINT"] = f"http://127.0.0.1:{s.getsockname()[1]}"


def snapshot(cache, name, commit, files, ref="main"):
    """A snapshot as the hub's library lays it out: links to blobs that are named by their hash."""
    base = Path(cache) / f"models--{name.replace('/', '--')}"
    for path, content in files.items():
        about = entry(path, content)
        blob = base / "blobs" / (about["lfs"]["oid"] if "lfs" in about else about["oid"])
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = base / "snapshots" / commit / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (base / "refs").mkdir(exist_ok=True)
    (base / "refs" / ref).write_text(commit)
    return base


# ---------------------------------------------------------------- what is brought

def test_a_repository_arrives_without_pickles_and_copies_in_other_formats_and_hidden_files(hub, host):
    repo = hub.add("org/tiny", FILES)
    got = Fetched(host, run_job=RunsJobs(host))
    assert got.files == {name: {"size": len(FILES[name]), "sha256": hashlib.sha256(FILES[name]).hexdigest(),
                                "commit": repo.refs["main"]} for name in WANTED}
    assert {name: (got.folder / name).read_bytes() for name in visible(got.folder)} == {n: FILES[n] for n in WANTED}
    size = sum(len(FILES[n]) for n in WANTED)
    assert got.said[-1][:2] == (size, size)
    assert {"pytorch_model.bin", "onnx/model.onnx", ".gitattributes"}.isdisjoint(hub.served)


@pytest.mark.parametrize("reference", ["hf:org/tiny@main", "hf:org/tiny", "hf:org/tiny@main#*.gguf"])
def test_a_branch_is_resolved_and_the_last_word_says_what_to_pin(hub, host, reference):
    commit = hub.add("org/tiny", {**FILES, "x.gguf": b"G"}).refs["main"]
    got = Fetched(host, reference)
    pinned = f"hf:org/tiny@{commit}" + ("#*.gguf" if "#" in reference else "")
    assert got.notes[-1] == f"main is commit {commit} and may move; pin it: {pinned}"
    assert all(commit in path for path in hub.paths() if "/resolve/" in path or "/tree/" in path)
    again = Fetched(host, pinned)
    assert "pin it" not in " ".join(again.notes) and again.files == got.files


def test_a_revision_may_be_a_ref_with_slashes(hub, host):
    commit = hub.add("org/tiny", {"config.json": b"{}"}).commit({"model.safetensors": b"pr"}, ref="refs/pr/1")
    got = Fetched(host, "hf:org/tiny@refs/pr/1")
    assert got.files["model.safetensors"]["commit"] == commit and "/revision/refs%2Fpr%2F1" in " ".join(hub.paths())


def test_both_spellings_are_one_checkpoint_and_one_asked_file_is_what_the_engine_gets():
    long, short = Checkpoint(source="hf://org/tiny@main"), Checkpoint(source="hf:org/tiny@main")
    assert long == short and short.path("/r") == f"/r/models/{short.slug}" and short.slug.startswith("tiny-main-")
    asked = Checkpoint(source="hf:org/tiny.gguf@main#q/x.Q8_0.gguf")
    assert asked.path("/r") == f"/r/models/{asked.slug}/q/x.Q8_0.gguf"
    many = Checkpoint(source="hf:org/tiny.gguf@main#*.gguf")
    assert many.path("/r") == f"/r/models/{many.slug}"


@pytest.mark.parametrize("reference", ["hf:../x", "hf:a/b/c", "hf:org/", "hf:org/x@", "hf:org/x@../main", "hf:-v/x",
                                       "hf:org/x@-v", "hf:org/x@main#--sha256", "hf:org/x y@main"])
def test_what_names_no_repository_is_refused_before_anything_runs(hub, host, reference):
    jobs = RunsHere(host)
    with pytest.raises(FetchError, match="names no repository"):
        Fetched(host, reference, run_job=jobs)
    assert not jobs.units and not hub.asked


def test_a_repository_of_pickles_is_refused_and_says_how_to_ask_for_them(hub, host):
    hub.add("org/tiny", {"config.json": b"{}", "pytorch_model.bin": b"pickle", "old.pth": b"p"})
    with pytest.raises(FetchError, match=r"no safetensors.*pytorch_model.bin \(pickle\)") as refused:
        Fetched(host)
    assert "#*.bin" in refused.value.next and not visible(folder_of(host))
    assert set(Fetched(host, "hf:org/tiny@main#*.bin").files) == {"config.json", "pytorch_model.bin"}


def test_a_pattern_that_fits_nothing_says_which_weights_there_are(hub, host):
    hub.add("org/tiny", {"config.json": b"{}", "x.Q4_0.gguf": b"G"})
    with pytest.raises(FetchError, match=r"no file like \*Q8\*; its weights are x.Q4_0.gguf \(GGUF\)"):
        Fetched(host, "hf:org/tiny@main#*Q8*")


def test_a_tree_of_five_pages_is_read_to_its_end(hub, host):
    hub.page = 3
    hub.add("org/tiny", {f"model-{i:05}.safetensors": b"%d" % i for i in range(13)})
    assert len(Fetched(host).files) == 13
    assert sum("/tree/" in path for path in hub.paths()) == 5


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a//x", "a\0b", "a\nb", "a\\b", "", ".", "\ud800",
                                  "x" * 300], ids=ascii)
def test_hostile_file_names_end_the_fetch_before_a_file_is_asked_for(hub, host, name):
    hub.add("org/tiny", FILES).extra.append({"type": "file", "oid": "0" * 40, "size": 1, "path": name})
    with pytest.raises(FetchError, match="is called") as refused:
        Fetched(host)
    assert "do not use" in refused.value.next
    assert not [path for path in hub.paths() if "/resolve/" in path] and not visible(folder_of(host))


@pytest.mark.parametrize("extra", [
    {"type": "file", "oid": "0" * 40, "size": -1, "path": "x"},
    {"type": "file", "oid": "0" * 40, "size": True, "path": "x"},
    {"type": "file", "oid": "0" * 40, "size": 2**63, "path": "x"},
    {"type": "file", "oid": "../../x", "size": 1, "path": "x"},
    {"type": "file", "oid": "0" * 40, "size": 1, "path": "x", "lfs": {"oid": "..", "size": 1}},
    {"type": "file", "oid": "0" * 40, "size": 1, "path": "config.json"},
    {"type": "file", "oid": "0" * 40, "size": 1, "path": "config.json/x"}], ids=str)
def test_a_listing_that_no_hub_would_make_is_refused(hub, host, extra):
    hub.add("org/tiny", FILES).extra.append(extra)
    with pytest.raises(FetchError, match="listing|twice"):
        Fetched(host)
    assert not visible(folder_of(host))


# ------------------------------------------------------------- breaks and damage

def test_a_connection_that_breaks_in_the_middle_costs_no_byte_twice(hub, host):
    hub.add("org/tiny", FILES)
    hub.cut["model.safetensors"] = 400_000
    got = Fetched(host)
    assert (got.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.served["model.safetensors"] == len(WEIGHTS)
    assert "400000 of 1500000 bytes are here" in " ".join(got.notes)


def test_a_killed_fetch_goes_on_at_the_last_byte(hub, host):
    hub.add("org/tiny", FILES)
    hub.stall["model.safetensors"] = 700_000
    folder = folder_of(host)
    process = subprocess.Popen([sys.executable, f"{host.root}/bin/hub_fetch.py", "org/tiny", "main", str(folder)],
                               env={**os.environ, **host.env}, stdout=subprocess.PIPE, text=True)
    assert hub.stalled.wait(20)
    assert any("progress 700022 " in line for line in process.stdout)       # and the small files are there
    process.kill()
    process.communicate()
    got = Fetched(host)
    assert (got.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.served == {"model.safetensors": len(WEIGHTS), "config.json": 18, "tokenizer/vocab é 100%.txt": 4}
    assert not list((got.folder / ".hub").glob("*.part"))


def test_a_server_without_ranges_sends_it_all_again(hub, host):
    hub.ranges = False
    hub.add("org/tiny", FILES)
    hub.cut["model.safetensors"] = 400_000
    assert (Fetched(host).folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.served["model.safetensors"] == 400_000 + len(WEIGHTS)


@pytest.mark.parametrize("name, content", [
    ("model.safetensors", b"\1" + WEIGHTS[1:]), ("model.safetensors", WEIGHTS[1:]),
    ("model.safetensors", WEIGHTS + b"x"),
    ("config.json", b'{"hidden_size": 9}')], ids=["sha256", "short", "long", "git sha1"])
def test_what_is_not_as_the_hub_lists_it_is_removed_and_fetched_afresh_later(hub, host, name, content):
    hub.add("org/tiny", FILES)
    hub.altered[name] = content
    with pytest.raises(ChecksumError, match=name):
        Fetched(host)
    assert name not in visible(folder_of(host))
    hub.altered.clear()
    assert (Fetched(host).folder / name).read_bytes() == FILES[name]


def test_what_is_there_is_not_asked_for_again_and_what_was_changed_is(hub, host):
    hub.add("org/tiny", FILES)
    first = Fetched(host)
    served = dict(hub.served)
    assert Fetched(host).files == first.files and hub.served == served
    (first.folder / "config.json").write_bytes(b'{"hidden_size": 1}')
    assert (Fetched(host).folder / "config.json").read_bytes() == FILES["config.json"]
    assert hub.served == {**served, "config.json": 2 * len(FILES["config.json"])}


def test_a_branch_that_moved_is_noticed_and_only_what_changed_is_fetched(hub, host):
    repo = hub.add("org/tiny", {**FILES, "old.txt": b"old"})
    before = repo.refs["main"]
    Fetched(host)
    after = repo.commit({**FILES, "config.json": b'{"hidden_size": 16}'})
    got = Fetched(host)
    assert f"main has moved: it was commit {before} when it was fetched before" in got.notes
    assert {f["commit"] for f in got.files.values()} == {after}
    assert (got.folder / "config.json").read_bytes() == b'{"hidden_size": 16}' and not (got.folder / "old.txt").exists()
    assert hub.served["model.safetensors"] == len(WEIGHTS)


def test_a_pinned_sha256_that_no_file_has_is_refused_before_the_download(hub, host):
    hub.add("org/tiny", FILES)
    with pytest.raises(ChecksumError, match="has the pinned sha256"):
        Fetched(host, sha256="0" * 64)
    assert not hub.served
    assert Fetched(host, sha256=hashlib.sha256(WEIGHTS).hexdigest()).files.keys() == WANTED


def test_a_sum_that_the_disk_cannot_hold_is_refused_before_the_first_byte(hub, host):
    hub.add("org/tiny", FILES).extra.append({"type": "file", "path": "huge.safetensors", "oid": "0" * 40, "size": 134,
                                             "lfs": {"oid": "0" * 64, "size": 1 << 52, "pointerSize": 134}})
    with pytest.raises(NoSpace, match=str((1 << 52) + sum(len(FILES[n]) for n in WANTED))):
        Fetched(host)
    assert not hub.served


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_waited_for_as_long_as_it_asks(hub, host, status):
    hub.add("org/tiny", FILES)
    hub.refuse = [("/tree/", status, {"Retry-After": "1"})]
    got = Fetched(host)
    assert f"the list of files: the hub answers {status}; again in 1 s" in got.notes and got.files.keys() == WANTED


def test_retry_after_is_a_number_or_a_date_and_never_for_ever():
    after = hf.program().retry_after_s
    assert [after({"Retry-After": said}) for said in ("7", "9" * 40, "soon", "", "Mon, 01 Jan 2001 00:00:00 GMT")] \
        == [7, 600, 0, 0, 0]


# ------------------------------------------------------------ refusals and tokens

@pytest.mark.parametrize("about, token, words, advice", [
    ({"gated": True}, "", "org/tiny is gated, and there is no token here", "ask for access on its page"),
    ({"gated": True}, TOKEN, "org/tiny is gated, and the token here has no access", "ask for access on its page"),
    ({"private": True}, "", "no org/tiny; or it is private, and there is no token here", "correct the name"),
    ({"private": True}, TOKEN, "no org/tiny; or it is private, and the token here has no access", "correct the name"),
    ({}, "hf_expired0000", "does not take the token", "new token"),
], ids=["gated", "gated, no access", "private", "private, no access", "bad token"])
def test_gated_missing_and_private_repositories_are_told_apart(hub, host, about, token, words, advice):
    hub.add("org/tiny", FILES, **about)
    hub.tokens.add(TOKEN)
    host.env["HF_TOKEN"] = token
    with pytest.raises(FetchError) as refused:
        Fetched(host)
    assert words in refused.value.what and advice in refused.value.next and "on the host" in refused.value.next
    assert not visible(folder_of(host)) & {"model.safetensors"} and "hf_" not in str(refused.value).replace("HF_", "")


def test_a_repository_or_revision_that_is_not_there_is_named(hub, host):
    hub.add("org/tiny", FILES)
    with pytest.raises(FetchError, match="the hub has no org/none; or it is private"):
        Fetched(host, "hf:org/none@main")
    with pytest.raises(FetchError, match="org/tiny is there, but has no revision v9"):
        Fetched(host, "hf:org/tiny@v9")


def test_a_renamed_repository_is_followed_and_its_new_name_told(hub, host):
    hub.add("org/tiny", FILES)
    hub.renamed["org/old"] = "org/tiny"
    assert "org/old is called org/tiny now" in Fetched(host, "hf:org/old@main").notes


@pytest.mark.parametrize("place", ["HF_TOKEN", "~/.cache/huggingface/token", "HF_HOME", "HF_TOKEN_PATH"])
def test_the_hosts_token_reaches_the_hub_and_nothing_else(hub, host, tmp_path, place):
    hub.add("org/tiny", FILES, gated=True, readers={TOKEN})
    if place == "HF_TOKEN":
        host.env["HF_TOKEN"] = TOKEN
    else:
        path = {"HF_HOME": tmp_path / "h/token", "HF_TOKEN_PATH": tmp_path / "t"}.get(
            place, Path(host.root) / ".cache/huggingface/token")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TOKEN + "\n")
        host.env |= {"HF_HOME": str(path.parent)} if place == "HF_HOME" else {}
        host.env |= {"HF_TOKEN_PATH": str(path)} if place == "HF_TOKEN_PATH" else {}
    got = Fetched(host)
    assert got.files.keys() == WANTED
    sent = {place: {headers.get("Authorization") for where, _, headers in hub.asked if where == place}
            for place in ("hub", "cdn")}
    assert sent == {"hub": {f"Bearer {TOKEN}"}, "cdn": {None}}
    assert TOKEN not in repr(got.jobs.units) + repr(got.jobs.lines) + repr(got.said) + repr(host.ran)


@pytest.mark.parametrize("token", [TOKEN, "unlike-any-other-token"])
def test_a_token_that_the_server_repeats_is_masked(hub, host, token):
    hub.add("org/tiny", FILES)
    hub.refuse = [("/tree/", 403, {"X-Error-Message": f"Bearer {token} is not allowed"})]
    hub.tokens.add(token)
    host.env["HF_TOKEN"] = token
    jobs = RunsHere(host)
    with pytest.raises(FetchError, match="Bearer .*is not allowed") as refused:
        Fetched(host, run_job=jobs)
    assert token not in str(refused.value) + repr(jobs.lines)


def test_logins_in_addresses_and_whatever_looks_like_a_token_are_masked_too():
    assert hf.program().masked("hf_anotherone from https://me:pw@proxy:3128/ and http://x/a@b", "") \
        == "hf_*** from https://***@proxy:3128/ and http://x/a@b"


def test_a_token_that_cannot_be_one_is_refused_without_showing_it(hub, host):
    host.env["HF_TOKEN"] = "secret\u00e9 two words"
    jobs = RunsHere(host)
    with pytest.raises(FetchError, match="something else than one token"):
        Fetched(host, run_job=jobs)
    assert "secret" not in repr(jobs.lines) and not hub.asked


# ------------------------------------------------------------- cache and way there

@pytest.mark.parametrize("setting, below", [("HF_HOME", "hub"), ("HF_HUB_CACHE", ""), ("", ".cache/huggingface/hub")])
def test_a_symlinked_snapshot_of_the_hubs_cache_is_linked_not_fetched(hub, host, tmp_path, setting, below):
    commit = hub.add("org/tiny", FILES).refs["main"]
    place = tmp_path / "cache" if setting else Path(host.root)
    if setting:
        host.env[setting] = str(place)
    base = snapshot(place / below, "org/tiny", commit, FILES)
    got = Fetched(host)
    assert got.files.keys() == WANTED and not hub.served
    for name in WANTED:
        assert (got.folder / name).samefile(base / "snapshots" / commit / name)
    for path in sorted(base.rglob("*"), reverse=True):      # the cache is cleaned: the model stays
        path.rmdir() if path.is_dir() else path.unlink()
    assert (got.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_damaged_copy_in_the_cache_is_left_alone_and_the_file_fetched(hub, host):
    commit = hub.add("org/tiny", FILES).refs["main"]
    base = snapshot(Path(host.root) / ".cache/huggingface/hub", "org/tiny", commit, FILES)
    damaged = base / "snapshots" / commit / "model.safetensors"
    damaged.write_bytes(b"\1" + WEIGHTS[1:])
    assert (Fetched(host).folder / "model.safetensors").read_bytes() == WEIGHTS
    assert set(hub.served) == {"model.safetensors"} and damaged.read_bytes()[:1] == b"\1"


@pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "no network"])
def test_without_a_way_to_the_hub_a_whole_snapshot_in_the_cache_will_do(hub, host, how):
    commit = hub.add("org/tiny", FILES).refs["main"]
    snapshot(Path(host.root) / ".cache/huggingface/hub", "org/tiny", commit, FILES)
    host.env["HF_HUB_OFFLINE"] = "1" if how == "HF_HUB_OFFLINE" else ""
    if how == "no network":
        without_network(host)
    got = Fetched(host)
    assert got.files.keys() == WANTED and got.files["config.json"]["commit"] == commit and not hub.asked
    assert "as the cache here has it" in " ".join(got.notes)


def test_a_snapshot_that_lacks_a_shard_will_not_do(hub, host, laptop):
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    files = {"model.safetensors.index.json": index, "model-1.safetensors": b"1"}
    snapshot(Path(host.root) / ".cache/huggingface/hub", "org/tiny", "1" * 40, files)
    host.env["HF_HUB_OFFLINE"] = "1"
    jobs = RunsHere(host)
    with pytest.raises(FetchError):     # through this machine, where the hub has no such repository
        os.environ["HF_ENDPOINT"] = hub.url
        Fetched(host, run_job=jobs)
    assert "HF_HUB_OFFLINE is set; the cache here has no model-2.safetensors" in jobs.lines[-1]


def test_proxy_variables_are_honoured(hub, host):
    hub.add("org/tiny", FILES)
    host.env.update(HF_ENDPOINT="http://hub.invalid", http_proxy=hub.url, no_proxy="127.0.0.1")
    assert Fetched(host).files.keys() == WANTED
    assert all(path.startswith("http://hub.invalid/") for path in hub.paths()) and hub.paths("cdn")


def test_a_certificate_is_demanded_and_one_may_be_added(host, tmp_path):
    with Hub(certificate=self_signed(tmp_path / "hub.pem")) as hub:
        hub.add("org/tiny", FILES)
        host.env["HF_ENDPOINT"] = hub.url
        with pytest.raises(FetchError, match="certificate of .* is not trusted .*SSL_CERT_FILE"):
            Fetched(host)
        host.env["SSL_CERT_FILE"] = str(tmp_path / "hub.pem")
        assert (Fetched(host).folder / "model.safetensors").read_bytes() == WEIGHTS


def self_signed(path):
    """A key and its certificate for 127.0.0.1, in one file."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(),
                                   now - datetime.timedelta(days=1), now + datetime.timedelta(days=1)) \
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False) \
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(key, hashes.SHA256())
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return str(path)


def test_a_silent_network_is_given_up_after_the_time_given(monkeypatch):
    over, program = threading.Event(), hf.program()
    monkeypatch.setattr(program.socket, "create_connection", lambda *_: over.wait(20) and socket.socket())
    with pytest.raises(program.Failed, match="no answer within 0.1 s") as gave_up:
        program.knock("https://hub.invalid", 0.1)
    over.set()
    assert gave_up.value.kind == "no-network"


# --------------------------------------------------------------- through this machine

@pytest.fixture
def far(hub, host, monkeypatch):
    """A host without network, and a laptop with."""
    without_network(host)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return host


def test_a_host_without_network_gets_it_through_this_machine_with_this_machines_token(hub, far, laptop, monkeypatch):
    commit = hub.add("org/tiny", FILES, gated=True, readers={TOKEN}).refs["main"]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    got = Fetched(far)
    assert got.files == {name: {"size": len(FILES[name]), "sha256": hashlib.sha256(FILES[name]).hexdigest(),
                                "commit": commit} for name in WANTED}
    assert {name: (got.folder / name).read_bytes() for name in visible(got.folder)} == {n: FILES[n] for n in WANTED}
    assert any(note.startswith("no network on the host (cannot reach 127.0.0.1") for note in got.notes)
    size = sum(len(FILES[n]) for n in WANTED)
    assert got.said[-1][:2] == (size, size) and all(done <= size for done, _, _ in got.said)
    assert visible(laptop) == set(), "what is on the host is not kept here"
    assert TOKEN not in repr(got.said) + repr(far.ran)


def test_on_the_way_through_this_machine_both_legs_go_on_where_they_broke(hub, far, laptop):
    hub.add("org/tiny", FILES)
    hub.stall["model.safetensors"] = 600_000

    def cancel(done, total, note):
        if "600,000 of 1,500,000 bytes are on this machine" in note:
            raise Cancelled("cancelled")

    with pytest.raises(Cancelled):
        Fetched(far, progress=cancel)
    folder = folder_of(far)
    (folder / "model.safetensors").write_bytes(WEIGHTS[:500_000])
    (folder / "config.json").write_bytes(b"of another version")
    sent = []
    put = far.put
    far.put = lambda local, path, progress=None: (sent.append((os.path.basename(path), os.path.getsize(local) - (
        os.path.getsize(path) if os.path.exists(path) else 0))), put(local, path, progress))
    got = Fetched(far)
    assert {name: (got.folder / name).read_bytes() for name in visible(got.folder)} == {n: FILES[n] for n in WANTED}
    assert hub.served["model.safetensors"] == len(WEIGHTS)
    assert ("model.safetensors", 1_000_000) in sent and ("config.json", len(FILES["config.json"])) in sent
    sent.clear()
    Fetched(far)
    assert hub.served["model.safetensors"] == len(WEIGHTS) and not sent


def test_a_proxy_that_does_not_lead_to_the_hub_is_no_network(hub, far):
    hub.add("org/tiny", FILES)
    far.env.update(HF_ENDPOINT="https://hub.invalid", https_proxy=hub.url)     # it knows no CONNECT
    got = Fetched(far)
    assert got.files.keys() == WANTED and "the proxy does not lead to the hub" in got.notes[0]


def test_the_cache_of_this_machine_serves_a_host_without_network_and_stays_whole(hub, far, laptop, monkeypatch):
    commit = hub.add("org/tiny", FILES).refs["main"]
    base = snapshot(laptop / ".cache/huggingface/hub", "org/tiny", commit, FILES)
    assert Fetched(far).files.keys() == WANTED and not hub.served
    assert (base / "snapshots" / commit / "model.safetensors").read_bytes() == WEIGHTS


def test_a_link_lost_on_the_way_is_told_as_such_and_the_download_is_kept(hub, far, laptop):
    hub.add("org/tiny", FILES)
    put = far.put

    def lost(local, path, progress=None):
        if path.endswith(".safetensors"):
            raise LinkLost("send: the connection broke", where="far")
        put(local, path, progress)

    far.put = lost
    with pytest.raises(LinkLost):
        Fetched(far)
    far.put = put
    Fetched(far)
    assert hub.served["model.safetensors"] == len(WEIGHTS)


def test_what_is_damaged_on_the_way_to_the_host_is_removed_there(hub, far):
    hub.add("org/tiny", FILES)
    put = far.put
    far.put = lambda local, path, progress=None: (put(local, path, progress), Path(path).open("r+b").write(b"\0\0"))
    with pytest.raises(ChecksumError, match="what arrived is not what was sent"):
        Fetched(far)
    assert visible(folder_of(far)) <= {"modeling_x.py"}


def test_a_host_disk_that_cannot_hold_it_is_noticed_before_this_machine_downloads(hub, far):
    hub.add("org/tiny", FILES).extra.append({"type": "file", "path": "huge.safetensors", "oid": "0" * 40, "size": 134,
                                             "lfs": {"oid": "0" * 64, "size": 1 << 52, "pointerSize": 134}})
    with pytest.raises(NoSpace) as refused:
        Fetched(far)
    assert refused.value.where.startswith("local:") and not hub.served


def test_where_neither_machine_has_network_the_error_is_about_this_one(hub, far, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", far.env["HF_ENDPOINT"])
    with pytest.raises(FetchError, match="cannot reach") as refused:
        Fetched(far)
    assert refused.value.where == "this machine" and "on this machine" in refused.value.next


def test_a_refusal_on_the_way_through_this_machine_asks_for_a_token_here(hub, far):
    hub.add("org/tiny", FILES, gated=True)
    with pytest.raises(FetchError, match="gated") as refused:
        Fetched(far)
    assert "put a token on this machine" in refused.value.next


# --------------------------------------------------------------------- over SSH

def test_over_ssh_under_the_supervisor_with_the_hosts_own_token(hub, laptop, rehearsal_host):
    host, sup = rehearsal_host, supervisor("process")
    hub.add("org/tiny", FILES, gated=True, readers={TOKEN})
    hub.cut["model.safetensors"] = 400_000
    home = host.root.rsplit("/", 1)[0]
    host.write(f"{home}/.cache/huggingface/token", TOKEN.encode(), 0o600)
    for name in ("babysit.py", "hub_fetch.py"):
        host.write(shipping.path(name, host.root), shipping.content(name))
    lines, units = [], []

    def run_job(unit, on_line):
        units.append(replace(unit, env={"HF_ENDPOINT": hub.url}))
        return following.run_to_end(host, sup, sys.executable, units[-1],
                                    lambda text: (lines.append(text), on_line(text)), lambda: None)

    got = Fetched(host, run_job=run_job)
    assert host.read(f"{got.folder}/model.safetensors") == WEIGHTS and got.files.keys() == WANTED
    assert hub.served["model.safetensors"] == len(WEIGHTS)
    kept = b"".join(p.read_bytes() for p in Path(host.root, "units", units[0].name).rglob("*") if p.is_file())
    assert b"main is commit" in kept and TOKEN.encode() not in kept and TOKEN not in repr(lines)


def test_the_program_travels_only_where_a_checkpoint_comes_from_the_hub():
    from kit.surveys import Survey
    now = Survey("h", "/r", "h", "u", "Linux", "b", 0, (3, 12, 0), (1, ""), 0.0, 1, 1, (), False, 1, None, {}, {}, {})
    plain = Experiment.model_validate({"name": "x", "host": "h", "engine": {"name": "llamacpp"},
                                       "target": {"source": "host:/m/x.gguf"}})
    for exp, wanted in ((plain, False), (plain.with_(**{"target.source": "hf:org/tiny@main#x.gguf"}), True)):
        assert ("/r/bin/hub_fetch.py" in [step.path for step in tools(exp, now)]) is wanted
