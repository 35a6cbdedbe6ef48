"""The `compat` command: exit statuses, a model on a host or behind HTTP, and the installed engine's own classes."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from doubles import LocalHost
from modelfiles import HEAD, HEAD_TENSORS, LLAMA, TARGET_TENSORS, folder, safetensors

from kit import shipping
from kit.compat.classes import first_release, from_table
from kit.compat.installed import read_installed
from kit.compat_cli import main
from kit.errors import CheckError
from kit.httpreader import HttpReader
from kit.lint.versions import parse
from kit.modelfacts import HostReader, LocalReader, read_model


@pytest.fixture
def pair(tmp_path):
    ids = struct.pack("<40q", *range(40))
    return (folder(tmp_path / "target", LLAMA, model__safetensors=safetensors(TARGET_TENSORS)),
            folder(tmp_path / "drafter", HEAD, model__safetensors=safetensors(HEAD_TENSORS, {"d2t": ids})))


def run(capsys, target, drafter=None, *more, host=None) -> tuple[int, dict[str, str]]:
    words = ["--json", "--target", str(target), *(["--drafter", str(drafter)] if drafter else []), *more]
    status = main(words, host)
    found = json.loads(capsys.readouterr().out)
    assert all(set(f) == {"id", "verdict", "what", "why", "fix", "evidence"} for f in found)
    return status, {f["id"]: f["verdict"] for f in found}


def test_exit_0_when_it_fits_even_with_unknowns(capsys, pair):
    status, found = run(capsys, *pair, "--engine", "sglang==0.5.12.post1", "--algorithm", "EAGLE3", "--tp", "2")
    assert status == 0 and set(found.values()) == {"pass"}
    status, found = run(capsys, *pair)
    assert status == 0 and found["drafter-class"] == "unknown" and found["packaging"] == "pass"


def test_exit_1_when_something_fails(capsys, pair):
    status, found = run(capsys, *pair, "--engine", "sglang==0.5.12.post1", "--algorithm", "EAGLE")
    assert status == 1 and found["packaging"] == "fail"
    status, found = run(capsys, *pair, "--engine", "sglang==0.5.12", "--context", "5000")
    assert status == 1 and found["context"] == "fail"


@pytest.mark.parametrize("more, id", [
    (("--engine", "exllama==1"), "engine"), (("--engine", "sglang==new"), "engine"),
    (("--engine", "sglang==99.1"), "engine-version"), (("--algorithm", "EAGLE7"), "algorithm"),
    (("--tp", "0"), "algorithm"), (("--context", "-1"), "algorithm"),
])
def test_exit_2_when_the_question_cannot_be_judged(capsys, pair, more, id):
    status, found = run(capsys, *pair, *more)
    assert status == 2 and found[id] == "unknown"


def test_exit_2_for_a_model_that_cannot_be_read(capsys, pair, tmp_path):
    for bad in (tmp_path / "absent", folder(tmp_path / "cut", '{"hidden_size":'), tmp_path):
        assert run(capsys, bad, pair[1]) == (2, {"target-readable": "unknown"})
        assert run(capsys, pair[0], bad) == (2, {"drafter-readable": "unknown"})


def test_the_table_says_why_and_what_to_do(capsys, pair):
    assert main(["--target", str(pair[0]), "--drafter", str(pair[1]), "--engine", "sglang==0.5.12", "--algorithm",
                 "EAGLE"]) == 1
    out = capsys.readouterr().out
    assert "near 1" in out and "fix: set the algorithm to EAGLE3" in out


def test_what_it_drafts_with_follows_from_the_drafter(capsys, pair):
    assert run(capsys, pair[0], pair[0], "--engine", "sglang==0.5.12")[1]["tokenizer"] == "unknown"     # a whole model
    assert "packaging" not in run(capsys, pair[0])[1]


@pytest.mark.parametrize("flags,verdict", [
    ((), "warn"), (("--attention-backend", "triton"), "pass"), (("--attention-backend=flashinfer",), "pass"),
    (("--attention-backend", "flashmla"), "warn"),
    (("--attention-backend", "flashmla", "--speculative-draft-attention-backend", "triton"), "pass"),
    (("--attention-backend", "triton", "--attention-backend", "cutlass_mla"), "warn")])
def test_the_backend_that_is_named_settles_whether_the_drafter_can_use_it(capsys, pair, flags, verdict):
    latent = {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    (pair[0] / "config.json").write_text(json.dumps(LLAMA | latent))
    _, found = run(capsys, *pair, "--engine", "sglang==0.5.12", "--algorithm", "EAGLE3", "--", *flags)
    assert found["attention-backend"] == verdict


# ------------------------------------------------------------ the installed engine

MODELS = {
    "llama.py": "class LlamaForCausalLM(Base):\n    def set_eagle3_layers_to_capture(self, ids=None): ...\n"
                "class Phi(LlamaForCausalLM): pass\nEntryClass = [LlamaForCausalLM, Phi]\n",
    "llama_eagle3.py": "from x import LlamaForCausalLM\nclass LlamaForCausalLMEagle3(LlamaForCausalLM): pass\n"
                       "EntryClass = LlamaForCausalLMEagle3\n",
    "mixtral.py": "class MixtralForCausalLM: pass\nclass Helper:\n    def set_eagle3_layers_to_capture(self): ...\n"
                  "EntryClass = MixtralForCausalLM\n",
    "vl.py": "from x.own import OtherLayers, Looking\n"
             "class Layers:\n    def forward(self): return self.layers_to_capture\n"
             "class VL:\n    def __init__(self, cls=Layers): self.model = cls()\n"
             "    def set_eagle3_layers_to_capture(self, ids): self.model.layers_to_capture = ids\n"
             "class Same(VL): pass\n"
             "class Deaf(VL):\n    def __init__(self, language_model_cls=OtherLayers): ...\n"
             "class Deafer(Deaf): pass\n"
             "class Made(VL):\n    def __init__(self): self.model = OtherLayers(1)\n"
             "class Hears(VL):\n    def __init__(self, language_model_cls=Looking): ...\n"
             "class Passes(VL):\n    def __init__(self): self.model = Delegate(1)\n"
             "class Delegate:\n    def set_eagle3_layers_to_capture(self, ids): ...\n"
             "EntryClass = [VL, Same, Deaf, Deafer, Made, Hears, Passes]\n",
    "own.py": "class OtherLayers:\n    def __init__(self): self.layers_to_capture = []\n    def forward(self): ...\n"
              "class Looking(OtherLayers):\n    def forward(self): return 1 in self.layers_to_capture\n",
    "namesake.py": "class OtherLayers:\n    def forward(self): return self.layers_to_capture\n",
    "bom.py": "\ufeffclass Marked: pass\nEntryClass = Marked\n",
    "broken.py": "def (:\n",
    "cyclic.py": "class A(B): pass\nclass B(A): pass\nEntryClass = A\n",
}


@pytest.fixture
def engine_host(tmp_path):
    """A host whose python has an sglang 0.5.99 that raises when it is imported."""
    site = tmp_path / "site"
    models = site / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (site / "sglang" / "__init__.py").write_text("raise RuntimeError('imported')")
    for name, text in MODELS.items():
        (models / name).write_text(text, encoding="utf-8")
    info = site / "sglang-0.5.99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    return LocalHost(tmp_path / "root", env={"PYTHONPATH": str(site)})


def test_classes_are_read_from_the_installed_source_in_one_round_trip(engine_host):
    there = read_installed(engine_host, "sglang", sys.executable)
    assert len(engine_host.ran) == 1 and there.engine == "sglang==0.5.99"
    assert [f.verdict for f in there.findings] == ["pass"]
    has = there.support.has
    assert has("LlamaForCausalLMEagle3") and has("Phi", "eagle3") and has("A")
    assert has("MixtralForCausalLM") and has("MixtralForCausalLM", "eagle3") is False and has("Helper") is False


@pytest.mark.parametrize("name,captures", [("VL", True), ("Same", True), ("Hears", True), ("Passes", True),
                                           ("Deaf", False), ("Deafer", False), ("Made", False)])
def test_an_inherited_capture_counts_only_where_the_layers_look_at_it(engine_host, name, captures):
    """Qwen3.5 inherited it from Qwen3-VL from 0.5.11 on, and its own layers looked at it from 0.5.22 on."""
    assert read_installed(engine_host, "sglang", sys.executable).support.has(name, "eagle3") is captures


def test_a_byte_order_mark_hides_no_class(engine_host):
    assert read_installed(engine_host, "sglang", sys.executable).support.has("Marked")


def test_an_installed_engine_beats_the_table(capsys, pair, engine_host):
    more = ("--engine-python", sys.executable)
    status, found = run(capsys, *pair, "--engine", "sglang", *more, host=engine_host)
    assert status == 0 and set(found.values()) == {"pass"}, found
    status, found = run(capsys, *pair, "--engine", "sglang==0.5.12", *more, host=engine_host)
    assert found["engine-source"] == "warn"
    (pair[0] / "config.json").write_text(json.dumps(LLAMA | {"architectures": ["MixtralForCausalLM"]}))
    status, found = run(capsys, *pair, "--engine", "sglang", *more, host=engine_host)
    assert status == 1 and found["target-class"] == "fail"


def test_without_an_engine_on_the_host_the_table_is_used_and_that_is_said(capsys, pair, tmp_path):
    host = LocalHost(tmp_path / "root", env={"PYTHONPATH": ""})
    status, found = run(capsys, *pair, "--engine", "sglang==0.5.12", "--engine-python", sys.executable, host=host)
    assert status == 0 and found["engine-source"] == "unknown" and found["target-class"] == "pass"


def test_shipped_programs_run_on_an_old_python():
    for name in ("engine_classes.py", "model_peek.py"):
        text = shipping.content(name).decode()
        assert not re.search(r"^\s*match |\w+: \w+ \| |^from __future__|^(import|from) kit", text, re.M)
        compile(text, name, "exec")


# ------------------------------------------------------------ the table

def test_the_table_has_the_boundaries_of_the_releases():
    assert first_release("sglang", "KimiK25ForConditionalGeneration", "eagle3") == "0.5.10.post1"
    assert first_release("sglang", "Eagle3DeepseekV2ForCausalLM") == "0.5.12.post1"
    assert first_release("sglang", "DFlashDraftModel") == "0.5.11"
    assert first_release("sglang", "DeepseekV3ForCausalLM", "eagle3") == "0.5.5"
    assert first_release("sglang", "GptOssForCausalLM", "eagle3") == "0.5.1"
    assert first_release("sglang", "MixtralForCausalLM", "eagle3") == ""


def test_between_two_releases_the_table_knows_where_both_agree():
    table = from_table("sglang", parse("0.5.4"))       # 0.5.3 and 0.5.5 were read; DeepSeek captures from 0.5.5 on
    assert table.has("LlamaForCausalLM", "eagle3") is True
    assert table.has("DeepseekV3ForCausalLM") is True and table.has("DeepseekV3ForCausalLM", "eagle3") is None
    assert table.has("NoSuchClass") is False
    assert from_table("sglang", parse("0.3.0")) is None and from_table("sglang", parse("1.0")) is None


# ------------------------------------------------------------ over HTTP

class Web:
    """A web server on a folder: with hub routes or without, with ranges or without."""

    def __init__(self, root: Path, ranges: bool = True, moved_to: str = "", answer: int = 0):
        self.seen: list[tuple[str, dict]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                web.seen.append((self.path, dict(self.headers)))
                path = re.sub(r"^/org/name/resolve/main", "", self.path)
                if answer:
                    return self.reply(answer, b"")
                if self.path.startswith("/api/models/org/name/tree/main"):
                    names = sorted(root.iterdir())
                    half = names[:1] if "page=2" not in self.path else names[1:]
                    more = {} if "page=2" in self.path else {
                        "Link": f'<http://{self.headers["Host"]}/api/models/org/name/tree/main?page=2>; rel="next"'}
                    listing = [{"type": "file", "path": p.name, "size": p.stat().st_size} for p in half]
                    return self.reply(200, json.dumps(listing).encode(), more)
                if moved_to and path.endswith(".safetensors"):
                    return self.reply(302, b"", {"Location": moved_to + path})
                file = root / path.lstrip("/")
                if not file.is_file():
                    return self.reply(404, b"")
                data = file.read_bytes()
                wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if not (wanted and ranges):
                    return self.reply(200, data)
                a, b = int(wanted[1]), int(wanted[2])
                return self.reply(206, data[a:b + 1], {"Content-Range": f"bytes {a}-{b}/{len(data)}"})

            def reply(self, status, body, headers=()):
                self.send_response(status)
                for name, value in dict(headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args): ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def web(request):
    opened = []

    def start(*args, **kwargs):
        opened.append(Web(*args, **kwargs))
        return opened[-1]
    yield start
    for server in opened:
        server.close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_plain_web_folder_is_read_by_ranges(pair, web, ranges):
    over = read_model(HttpReader(web(pair[1], ranges=ranges).url + "/"))
    assert replace(over, name="") == replace(read_model(LocalReader(pair[1])), name="")


def test_weights_are_not_fetched(pair, web):
    big = safetensors(HEAD_TENSORS | {"z.weight": ("BF16", [4096, 4096])})
    (pair[1] / "model.safetensors").write_bytes(big)
    server = web(pair[1])
    read_model(HttpReader(server.url + "/"))
    asked = [h["Range"] for p, h in server.seen if p.endswith(".safetensors")]
    assert sum(int(b) - int(a) + 1 for a, b in (r.removeprefix("bytes=").split("-") for r in asked)) < len(big) / 50


def test_shards_named_by_an_index_are_found_on_a_plain_server(tmp_path, web):
    shard = "model-00001-of-00001.safetensors"
    path = folder(tmp_path / "m", LLAMA, model__safetensors__index__json=json.dumps(
        {"weight_map": dict.fromkeys(TARGET_TENSORS, shard)}))
    (path / shard).write_bytes(safetensors(TARGET_TENSORS))
    found = read_model(HttpReader(web(path).url + "/"))
    assert found.lm_head_rows == 100 and not found.problems


def test_a_hub_repository_is_listed_page_by_page(pair, web, monkeypatch, capsys):
    server = web(pair[1])
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert read_model(HttpReader.hub("org/name")).d2t.length == 40
    assert sum("page=2" in p for p, _ in server.seen) == 1
    assert run(capsys, pair[0], "hf://org/name@main")[1]["packaging"] == "pass"


def test_the_token_goes_to_the_hub_and_not_where_it_redirects(pair, web, monkeypatch):
    store = web(pair[1])
    hub = web(pair[1], moved_to=store.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    reader = HttpReader.hub("org/name")
    assert read_model(reader).fc_in == 192
    assert {h.get("Authorization") for _, h in hub.seen} == {"Bearer hf_secret"}
    assert store.seen and all("Authorization" not in h for _, h in store.seen)
    assert "hf_secret" not in repr(vars(reader))


@pytest.mark.parametrize("status, words", [(401, "private"), (403, "gated"), (404, "not there"), (500, "answered 500")])
def test_what_the_hub_refuses_is_told_apart(tmp_path, web, monkeypatch, status, words):
    monkeypatch.setenv("HF_ENDPOINT", web(tmp_path, answer=status).url)
    with pytest.raises(CheckError, match=words):
        read_model(HttpReader.hub("org/name"))


def test_a_server_that_is_not_there_is_an_error(tmp_path, web):
    server = web(tmp_path)
    server.close()
    for url in (server.url + "/m.gguf", "ftp://x/", "http://"):
        with pytest.raises(CheckError):
            read_model(HttpReader(url))


# ------------------------------------------------------------ large ones

def test_a_long_remote_header_takes_two_round_trips(tmp_path):
    names = [f"model.layers.{n // 4000}.mlp.experts.{n}.up_proj.weight" for n in range(50_000)]
    text = json.dumps({n: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]}
                       for i, n in enumerate(names)}).encode()
    path = folder(tmp_path / "m", LLAMA, model__safetensors=struct.pack("<Q", len(text)) + text + bytes(100_000))
    host, reads = LocalHost(tmp_path / "root"), []
    whole = host.read
    host.read = lambda *a: reads.append(a) or whole(*a)
    found = read_model(HostReader(host, str(path)))
    assert len(found.tensors) == 50_000 and len(host.ran) + len(reads) <= 2


def test_the_class_reader_runs_by_itself(tmp_path):
    (tmp_path / "srt" / "models").mkdir(parents=True)
    (tmp_path / "srt" / "models" / "llama.py").write_text(MODELS["llama.py"])
    said = subprocess.run([sys.executable, "-", "sglang", str(tmp_path)], input=shipping.content("engine_classes.py"),
                          capture_output=True, check=True).stdout
    assert json.loads(said)["classes"]["Phi"] == ["set_eagle3_layers_to_capture"]
