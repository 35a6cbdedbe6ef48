"""Hostile headers: whatever the bytes, the readers end soon with facts or with a KitError.

`KIT_FUZZ_EXAMPLES=20000 pytest tests/test_modelfacts_fuzz.py --hypothesis-seed=0` looks longer.
"""

from __future__ import annotations

import json
import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modelfiles import HEAD, HEAD_TENSORS, LLAMA, TARGET_TENSORS, folder, gguf, safetensors

from kit.checks import check_pair
from kit.errors import KitError
from kit.modelfacts import LocalReader, ModelFacts, read_model

EXAMPLES = int(os.environ.get("KIT_FUZZ_EXAMPLES", "50"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, derandomize="KIT_FUZZ_EXAMPLES" not in os.environ,
                suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
GGUF = gguf({"general.architecture": "eagle3", "eagle3.block_count": 1, "eagle3.target_layers": [2, 4, 5],
             "eagle3.embedding_length": 64, "tokenizer.ggml.tokens": ["a", "b"], "x.flag": True, "x.float": 0.5},
            {"fc.weight": (0, [8, 24]), "d2t": (27, [40])})
SAFE = safetensors(HEAD_TENSORS)
numbers = st.one_of(st.integers(), st.integers(-2**70, 2**70), st.floats(), st.sampled_from([2**63, 2**64, -1, 1e400]))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12)


def look(path) -> ModelFacts | None:
    """Reads and judges; only a KitError may come out."""
    try:
        facts = read_model(LocalReader(path))
        for pair in ((TARGET, facts), (facts, DRAFTER)):
            for algorithm in ("eagle3", "eagle", "draft", "dflash", "mtp"):
                repr(check_pair(*pair, engine="sglang==0.5.12", algorithm=algorithm, tp=8))
        return facts
    except KitError as e:
        assert str(e)
        return None


@pytest.fixture(scope="module", autouse=True)
def _pair(tmp_path_factory):
    global TARGET, DRAFTER
    base = tmp_path_factory.mktemp("pair")
    TARGET = read_model(LocalReader(folder(base / "t", LLAMA, model__safetensors=safetensors(TARGET_TENSORS))))
    DRAFTER = read_model(LocalReader(folder(base / "d", HEAD, model__safetensors=SAFE)))


def changed(data: bytes, edits: list[tuple[int, bytes]], cut: int) -> bytes:
    for at, new in edits:
        at %= len(data)
        data = data[:at] + new + data[at + len(new):]
    return data[:len(data) - cut % len(data)]


edits = st.lists(st.tuples(st.integers(0, 4096), st.one_of(st.binary(min_size=1, max_size=9), st.sampled_from(
    [struct.pack("<Q", n) for n in (0, 1, 2**31, 2**32, 2**63, 2**64 - 1)]))), max_size=4)
cuts = st.one_of(st.just(0), st.integers(0, 10_000))


@fuzz
@given(edits, cuts)
def test_a_damaged_gguf(tmp_path, edits, cut):
    (tmp_path / "m.gguf").write_bytes(changed(GGUF, edits, cut))
    look(tmp_path / "m.gguf")


@fuzz
@given(edits, cuts)
def test_a_damaged_safetensors_file(tmp_path, edits, cut):
    look(folder(tmp_path / "m", HEAD, model__safetensors=changed(SAFE, edits, cut)))


@fuzz
@given(st.dictionaries(st.sampled_from([*HEAD_TENSORS, "lm_head.weight", "__metadata__", "x"]), st.one_of(
    json_values, st.fixed_dictionaries({"dtype": st.sampled_from(["I64", "BF16", "?"]) | json_values,
                                        "shape": st.lists(numbers, max_size=3) | json_values,
                                        "data_offsets": st.lists(numbers, max_size=3) | json_values}))))
def test_any_json_as_a_header(tmp_path, header):
    text = json.dumps(header).encode()
    look(folder(tmp_path / "m", HEAD, model__safetensors=struct.pack("<Q", len(text)) + text + bytes(64)))


KEYS = [*HEAD, "text_config", "transformer_layer_config", "dflash_config", "rope_scaling", "rope_parameters",
        "markov_rank", "speculators_model_type", "target_layer_ids", "num_target_layers", "quantization_config",
        "eos_token_id", "num_nextn_predict_layers", "kv_lora_rank", "target_hidden_size", "fc_norm", "base_model",
        "block_size"]


@fuzz
@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=6), st.booleans())
def test_any_json_in_a_config(tmp_path, fields, with_weights):
    files = {"model__safetensors": SAFE} if with_weights else {}
    facts = look(folder(tmp_path / f"m{with_weights}", HEAD | fields, **files))
    assert facts is None or all(v is None or v >= 0 for v in (facts.hidden_size, facts.num_layers, facts.vocab_size))


@fuzz
@given(json_values, json_values, st.binary(max_size=40))
def test_any_json_as_index_and_tokenizer(tmp_path, index, tokenizer, noise):
    path = folder(tmp_path / "m", LLAMA, model__safetensors__index__json=json.dumps(index),
                  tokenizer__json=json.dumps(tokenizer))
    look(path)
    look(folder(path, None, model__safetensors__index__json=json.dumps({"weight_map": index}),
                tokenizer__json=json.dumps({"model": {"vocab": tokenizer}, "added_tokens": index})))
    look(folder(path, None, model__safetensors__index__json=noise, tokenizer__json=noise, config__json=noise))
