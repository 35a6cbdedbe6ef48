"""Facts out of checkpoints: the shipped ones, and files that lie."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from doubles import LocalHost
from modelfiles import HEAD, HEAD_TENSORS, LLAMA, TARGET_TENSORS, folder, gguf, safetensors

from kit.errors import CheckError, NoSuchFile
from kit.modelfacts import HostReader, LocalReader, default_aux_layers, read_model

MODELS = Path(__file__).parents[1] / "data" / "models"


def facts(path, **more):
    return read_model(LocalReader(path), **more)


# ------------------------------------------------------------ the shipped pairs

def test_both_formats_of_the_micro_head_say_the_same():
    hf, gg = facts(MODELS / "micro-llama/eagle3"), facts(MODELS / "micro-llama/eagle3.q8_0.gguf")
    for name in ("packaging", "hidden_size", "fed_width", "num_layers", "vocab_size", "draft_vocab_size",
                 "context_length", "aux_layer_ids", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
                 "rope", "bos", "eos", "d2t", "fc_in", "fc_out", "qkv_in", "lm_head_rows", "has_embed", "has_lm_head",
                 "norm_flags"):
        assert getattr(hf, name) == getattr(gg, name), name
    assert hf.aux_as_written == (1, 3, 4) and gg.aux_as_written == (2, 4, 5)


def test_both_formats_of_the_micro_target_have_one_tokenizer():
    hf, gg = facts(MODELS / "micro-llama/target"), facts(MODELS / "micro-llama/target.q8_0.gguf")
    assert hf.tokenizer.fingerprint == gg.tokenizer.fingerprint and hf.tokenizer.size == 3072
    assert hf.packaging == gg.packaging == "plain"
    assert (hf.num_layers, hf.hidden_size, hf.context_length) == (8, 256, 4096)
    assert hf.chat_template and gg.chat_template


def test_a_header_kept_without_its_weights_is_read():
    head = facts(MODELS / "smollm2-135m-eagle3")
    assert head.fc_in == 1728 and head.d2t.length == 8192 and head.has_t2d and head.has_embed is False
    assert head.aux_layer_ids is None       # it names none …
    gg = facts(MODELS / "smollm2-135m-eagle3/smollm2-135m-eagle3.q8_0.gguf")
    assert gg.aux_layer_ids == default_aux_layers(30) == (1, 14, 26)     # … and is meant for the default ones


def test_the_model_card_has_the_hash_of_every_file():
    card = (MODELS / "README.md").read_text()
    said = dict(re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", card, re.M))
    there = {str(p.relative_to(MODELS)): hashlib.sha256(p.read_bytes()).hexdigest()
             for p in MODELS.rglob("*") if p.is_file() and p.name != "README.md"}
    assert said == there


# ------------------------------------------------------------ variety of configs

def test_a_nested_language_config_is_found(tmp_path):
    inner = {k: v for k, v in LLAMA.items() if k != "architectures"}
    path = folder(tmp_path, {"architectures": ["XForConditionalGeneration"], "text_config": inner, "hidden_size": 7})
    assert facts(path).hidden_size == 64 and facts(path).architecture == "XForConditionalGeneration"


def test_speculators_ids_count_inputs(tmp_path):
    inner = {**LLAMA, "num_hidden_layers": 1}
    path = folder(tmp_path, {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
                             "draft_vocab_size": 40, "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
                             "transformer_layer_config": inner})
    head = facts(path)
    assert head.packaging == "eagle3" and head.speculators
    assert head.aux_layer_ids == (1, 3, 4) and head.aux_as_written == (2, 4, 5)


@pytest.mark.parametrize("rope, context", [
    ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}}, 4096),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 128}}, 4096),
    ({"rope_scaling": None}, 4096),
])
def test_context_follows_rope_scaling_as_the_engine_does(tmp_path, rope, context):
    assert facts(folder(tmp_path, LLAMA | rope)).context_length == context


@pytest.mark.parametrize("tensors, config, packaging", [
    ({"fc.weight": ("BF16", [64, 128])}, {"num_hidden_layers": 1}, "eagle"),
    ({"fc.weight": ("BF16", [64, 192])}, {"num_hidden_layers": 1}, "eagle3"),
    ({"d2t": ("I64", [40])}, {"num_hidden_layers": 1}, "eagle3"),
    ({"layers.0.self_attn.q_proj.weight": ("BF16", [64, 128])}, {"num_hidden_layers": 1}, "eagle3"),
    (TARGET_TENSORS, {"num_hidden_layers": 1}, "plain"),
    ({}, {"num_hidden_layers": 1, "draft_vocab_size": None}, "eagle3"),
    ({}, {"num_hidden_layers": 1}, "eagle"),
    ({}, {"num_hidden_layers": 1, "architectures": None}, "unknown"),
    ({}, {"dflash_config": {"target_layer_ids": [1, 3]}}, "dflash"),
    ({}, {"markov_rank": 8}, "dspark"),
    ({}, {}, "plain"),
])
def test_packaging_is_told_from_shapes_when_the_class_name_does_not(tmp_path, tensors, config, packaging):
    files = {"model__safetensors": safetensors(tensors)} if tensors else {}
    assert facts(folder(tmp_path, LLAMA | config, **files)).packaging == packaging


def test_shapes_of_packed_weights_are_not_taken_for_widths(tmp_path):
    tensors = {"fc.weight": ("U8", [64, 96]), "d2t": ("I64", [40])}
    head = facts(folder(tmp_path, HEAD, model__safetensors=safetensors(tensors)))
    assert head.fc_in is None and head.packaging == "eagle3"


def test_without_headers_presence_of_tensors_is_not_known(tmp_path):
    head = facts(folder(tmp_path, HEAD))
    assert head.has_d2t is None and head.has_lm_head is None and head.fc_in is None and head.d2t is None


def test_d2t_is_read_as_target_ids(tmp_path):
    offsets = [2 * i - i for i in range(40)]            # draft id i stands for 2i
    file = safetensors(HEAD_TENSORS, {"d2t": struct.pack("<40q", *offsets)})
    d2t = facts(folder(tmp_path, HEAD, model__safetensors=file)).d2t
    assert (d2t.length, d2t.lowest, d2t.highest, d2t.distinct) == (40, 0, 78, True)


def test_mtp_weights_are_found_in_the_index(tmp_path):
    config = LLAMA | {"num_nextn_predict_layers": 1}
    for name, expected in (("model.layers.8.eh_proj.weight", True), ("model.layers.7.mlp.up_proj.weight", False)):
        index = json.dumps({"weight_map": {name: "model-00001-of-00001.safetensors"}})
        path = folder(tmp_path / name, config, model__safetensors__index__json=index)
        (path / "model-00001-of-00001.safetensors").write_bytes(safetensors({}))
        assert facts(path).has_mtp_weights is expected


def test_the_revision_in_a_hub_cache_is_followed_through_its_links(tmp_path):
    cache, commit = tmp_path / "models--a--b", "c" * 40
    (cache / "blobs").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    (cache / "blobs" / "1").write_text(json.dumps(LLAMA))
    (cache / "snapshots" / commit).mkdir(parents=True)
    os.symlink("../../blobs/1", cache / "snapshots" / commit / "config.json")
    assert facts(cache).hidden_size == 64
    assert read_model(HostReader(LocalHost(tmp_path / "r"), str(cache))).hidden_size == 64


# ------------------------------------------------------------ shards and damage

def sharded(path: Path, shards: int, keep=lambda n: True) -> Path:
    names = [f"model-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    placed = {}
    for n, name in enumerate(names):
        tensors = {f"model.layers.{n}.mlp.up_proj.weight": ("BF16", [4, 4])}
        tensors |= {"lm_head.weight": ("BF16", [100, 64])} if n == shards - 1 else {}
        placed |= dict.fromkeys(tensors, name)
        if keep(n):
            path.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(safetensors(tensors))
    return folder(path, LLAMA, model__safetensors__index__json=json.dumps({"weight_map": placed}))


class Counting(LocalReader):
    def __init__(self, path):
        super().__init__(path)
        self.reads = []

    def read(self, name, offset, size):
        self.reads.append(name)
        return super().read(name, offset, size)


def test_of_many_shards_only_the_telling_ones_are_opened(tmp_path):
    reader = Counting(sharded(tmp_path, 60))
    found = read_model(reader)
    assert found.has_lm_head and found.lm_head_rows == 100 and not found.problems
    assert [n for n in reader.reads if n.endswith(".safetensors")] == ["model-00060-of-00060.safetensors"]
    assert len(read_model(LocalReader(tmp_path), every_header=True).tensors) == 61


def test_a_missing_shard_is_a_problem(tmp_path):
    problems = facts(sharded(tmp_path, 4, keep=lambda n: n != 1)).problems
    assert [p.file for p in problems] == ["model-00002-of-00004.safetensors"]


def test_a_missing_shard_is_noticed_without_an_index(tmp_path):
    path = sharded(tmp_path, 4, keep=lambda n: n != 2)
    (path / "model.safetensors.index.json").unlink()
    assert "shard 3 of 4" in str(facts(path).problems[0])


def test_an_index_that_points_elsewhere_is_never_followed(tmp_path):
    (tmp_path / "secret.safetensors").write_bytes(safetensors(TARGET_TENSORS))
    placed = {"a": "../secret.safetensors", "b": "model.safetensors.index.json", "lm_head.weight": "x/y"}
    index = json.dumps({"weight_map": placed})
    found = facts(folder(tmp_path / "m", LLAMA, model__safetensors__index__json=index))
    assert not found.tensors and "no shard of this folder" in str(found.problems[0])


def test_dangling_and_cyclic_links_count_as_missing(tmp_path):
    path = sharded(tmp_path, 2, keep=lambda n: n == 0)
    os.symlink("model-00002-of-00002.safetensors", path / "model-00002-of-00002.safetensors")
    assert "not there" in str(facts(path).problems[0])


def headed(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


LIES = {
    "length of 2^63": struct.pack("<Q", 1 << 63) + b"{}",
    "length past the end": struct.pack("<Q", 1000) + b"{}",
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "not json": struct.pack("<Q", 4) + b"{{{{",
    "a list": struct.pack("<Q", 2) + b"[]",
    "no shape": headed(b'{"a":{"dtype":"F32"}}'),
    "nan offsets": headed(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[NaN,4]}}'),
    "huge number": headed(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'),
    "deep": headed(b"[" * 100_000),
    "shape does not fill": headed(b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}') + bytes(8),
    "cut in its weights": safetensors({"a": ("F32", [100])})[:-1],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_a_problem_not_a_traceback(tmp_path, lie):
    found = facts(folder(tmp_path, LLAMA, model__safetensors=LIES[lie]))
    assert [p.file for p in found.problems] == ["model.safetensors"] and found.hidden_size == 64


@pytest.mark.parametrize("config", ["", "{", '{"hidden_size": 64', "[]", "null", "{}", '{"a":' * 50_000, "\0\0"])
def test_a_broken_config_is_an_error_in_three_lines(tmp_path, config):
    with pytest.raises(CheckError) as e:
        facts(folder(tmp_path, config))
    assert e.value.where and e.value.next


@pytest.mark.parametrize("value", ["NaN", "-1", "1e400", "9" * 4000, '"64"', "true", "[]", "{}"])
def test_a_width_that_is_no_count_is_a_problem(tmp_path, value):
    found = facts(folder(tmp_path, f'{{"hidden_size": {value}, "vocab_size": 5, "num_hidden_layers": 2}}'))
    assert found.hidden_size is None and "hidden_size" in str(found.problems[0])


def test_no_model_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "notes.txt"):
        with pytest.raises(CheckError):
            facts(path)


# ------------------------------------------------------------ GGUF

META = {"general.architecture": "llama", "llama.block_count": 8, "llama.embedding_length": 64,
        "llama.context_length": 512, "llama.attention.head_count": 4, "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.eos_token_id": 2}


def test_gguf_names_become_those_of_the_hub(tmp_path):
    file = tmp_path / "t.gguf"
    file.write_bytes(gguf(META, {"token_embd.weight": (0, [3, 64]), "blk.0.attn_q.weight": (0, [64, 64])}))
    found = facts(file)
    assert found.has_embed and not found.has_lm_head and found.tie_embeddings and found.vocab_size == 3
    assert found.tensors["layers.0.self_attn.q_proj.weight"].shape == (64, 64)
    assert found.head_dim == 16 and found.eos == (2,) and found.tokenizer.tokens == ("a", "b", "c")


def test_a_gguf_is_found_in_its_folder_and_two_must_be_named(tmp_path):
    (tmp_path / "a.gguf").write_bytes(gguf(META))
    assert facts(tmp_path).num_layers == 8
    (tmp_path / "b.gguf").write_bytes(gguf(META))
    with pytest.raises(CheckError, match="2 GGUF"):
        facts(tmp_path)


HEADER = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"k"
GGUF_LIES = {
    "empty": b"",
    "another magic": b"GGML" + bytes(100),
    "version 99": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "2^63 keys": HEADER + struct.pack("<QQ", 0, 1 << 63),
    "2^63 tensors": HEADER + struct.pack("<QQ", 1 << 63, 0),
    "string of 2^63": HEADER + struct.pack("<QQQ", 0, 1, 1 << 63),
    "array of 2^63 strings": HEADER + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 8, 1 << 63),
    "array of 2^61 doubles": HEADER + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 12, 1 << 61),
    "arrays in arrays": HEADER + struct.pack("<QQ", 0, 1) + KEY + b"\t\0\0\0" + struct.pack("<IQ", 9, 1) * 5000,
    "unknown type": HEADER + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<I", 77),
    "no architecture": gguf({"general.name": "x"}),
    "cut in its keys": gguf(META)[:120],
    "cut in its weights": gguf(META, {"token_embd.weight": (0, [3, 64]), "output.weight": (0, [3, 64])})[:-769],
}


@pytest.mark.parametrize("lie", GGUF_LIES)
def test_a_gguf_that_lies_is_an_error_in_three_lines(tmp_path, lie):
    file = tmp_path / "t.gguf"
    file.write_bytes(GGUF_LIES[lie])
    with pytest.raises(CheckError) as e:
        facts(file)
    assert "t.gguf" in e.value.what and e.value.next


# ------------------------------------------------------------ on a host

@pytest.mark.parametrize("model", ["micro-llama/target", "micro-llama/eagle3", "micro-llama/eagle3.q8_0.gguf",
                                   "smollm2-135m-eagle3/smollm2-135m-eagle3.q8_0.gguf"])
def test_the_same_facts_are_read_on_a_host(tmp_path, model):
    host = LocalHost(tmp_path)
    there = read_model(HostReader(host, str(MODELS / model)))
    assert replace(there, name="") == replace(facts(MODELS / model), name="")
    assert len(host.ran) == 1


def test_a_path_with_odd_letters_is_read_on_a_host(tmp_path):
    path = folder(tmp_path / "a b'c\"%d$(x)", HEAD, model__safetensors=safetensors(HEAD_TENSORS))
    assert read_model(HostReader(LocalHost(tmp_path / "r"), str(path))).d2t.length == 40


def test_a_missing_model_on_a_host_is_an_error(tmp_path):
    with pytest.raises(NoSuchFile, match="No such file"):
        read_model(HostReader(LocalHost(tmp_path), str(tmp_path / "absent")))
