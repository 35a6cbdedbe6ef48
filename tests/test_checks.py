"""A drafter against its target: right pairs pass, wrong ones are refused with the reason."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from modelfiles import HEAD, HEAD_TENSORS, LLAMA, TARGET_TENSORS, folder, gguf, safetensors

from kit.checks import check_pair
from kit.errors import CheckError, SpecError
from kit.modelfacts import LocalReader, ModelFacts, read_model

MODELS = Path(__file__).parents[1] / "data" / "models"


def facts(path) -> ModelFacts:
    return read_model(LocalReader(path))


def verdicts(report) -> dict[str, str]:
    return {f.id: f.verdict for f in report}


def failed(report) -> set[str]:
    return {f.id for f in report if f.verdict == "fail"}


@pytest.fixture
def smollm(tmp_path) -> ModelFacts:
    """SmolLM2-135M by its metadata: the sizes of the real file, without vocabulary and weights."""
    meta = {"general.architecture": "llama", "llama.block_count": 30, "llama.context_length": 8192,
            "llama.embedding_length": 576, "llama.feed_forward_length": 1536, "llama.attention.head_count": 9,
            "llama.attention.head_count_kv": 3, "llama.vocab_size": 49152, "tokenizer.ggml.eos_token_id": 2}
    (tmp_path / "smollm.gguf").write_bytes(gguf(meta))
    return facts(tmp_path / "smollm.gguf")


def test_the_shipped_pairs_fit(smollm):
    micro = MODELS / "micro-llama"
    for target, drafter, engine in (
        (facts(micro / "target.q8_0.gguf"), facts(micro / "eagle3.q8_0.gguf"), "llamacpp"),
        (facts(micro / "target"), facts(micro / "eagle3"), "sglang==0.5.12.post1"),
        (smollm, facts(MODELS / "smollm2-135m-eagle3/smollm2-135m-eagle3.q8_0.gguf"), "llamacpp"),
    ):
        report = check_pair(target, drafter, engine=engine, algorithm="eagle3", context=4096)
        assert set(verdicts(report).values()) == {"pass"}, report


def test_the_micro_head_on_smollm_is_refused(smollm):
    report = check_pair(smollm, facts(MODELS / "micro-llama/eagle3.q8_0.gguf"), engine="llamacpp", algorithm="eagle3")
    assert failed(report) == {"hidden-size", "fc-width", "vocab", "embedding"}
    with pytest.raises(CheckError) as e:
        report.require()
    assert "256" in str(e.value) and "576" in str(e.value)


def test_speculation_off_needs_no_drafter(smollm):
    assert check_pair(smollm, None, engine="llamacpp", algorithm="none", context=4096).ok
    assert check_pair(smollm, None, engine="llamacpp", algorithm="ngram", context=4096).ok
    assert failed(check_pair(smollm, None, engine="llamacpp", algorithm="eagle3")) == {"packaging"}
    assert failed(check_pair(smollm, None, engine="llamacpp", algorithm="none", context=8193)) == {"context"}


def test_an_unknown_engine_or_algorithm_is_named(smollm):
    for engine, algorithm in (("triton", "none"), ("sglang==x", "none"), ("sglang", "EAGLE9")):
        with pytest.raises(SpecError):
            check_pair(smollm, None, engine=engine, algorithm=algorithm)


# ------------------------------------------------------------ one change at a time

@pytest.fixture
def pair(tmp_path):
    """(target, drafter) from dictionaries of changes; the unchanged pair fits."""
    def make(head=(), head_tensors=(), target=(), data=None):
        tensors = {k: v for k, v in {**HEAD_TENSORS, **dict(head_tensors)}.items() if v}
        ids = struct.pack("<40q", *range(40)) if tensors.get("d2t") == ("I64", [40]) else None
        data = {"d2t": ids} if data is None and ids else data
        t = folder(tmp_path / "target", LLAMA | dict(target), model__safetensors=safetensors(TARGET_TENSORS))
        d = folder(tmp_path / "drafter", HEAD | dict(head), model__safetensors=safetensors(tensors, data))
        return facts(t), facts(d)
    return make


def test_the_unchanged_pair_fits(pair):
    report = check_pair(*pair(), engine="sglang==0.5.12", algorithm="EAGLE3")
    assert report.ok and set(verdicts(report).values()) == {"pass"}, report


@pytest.mark.parametrize("change, rules", [
    (dict(head={"hidden_size": 32}), {"embedding", "target-hidden-key", "attention-shape", "fc-width"}),
    (dict(target={"hidden_size": 32}), {"hidden-size", "fc-width", "embedding", "target-hidden-key"}),
    (dict(head_tensors={"fc.weight": ("BF16", [64, 128])}), {"fc-width"}),
    (dict(head={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}}), {"fc-width"}),
    (dict(head={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}}), {"aux-layers"}),
    (dict(head={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 3]}}), {"aux-layers"}),
    (dict(target={"num_hidden_layers": 4}, head={"eagle_config": None}), {"aux-layers"}),
    (dict(head={"vocab_size": 101}), {"vocab", "draft-vocab"}),     # t2d goes with the old one
    (dict(head_tensors={"d2t": None}), {"draft-vocab"}),
    (dict(head_tensors={"d2t": ("I64", [41])}), {"draft-vocab"}),
    (dict(head_tensors={"lm_head.weight": ("BF16", [41, 64])}), {"draft-vocab"}),
    (dict(data={"d2t": struct.pack("<40q", *range(61, 101))}), {"draft-vocab"}),     # the last one stands for id 139
    (dict(data={"d2t": struct.pack("<40q", *[-i for i in range(40)])}), {"draft-vocab"}),    # all stand for id 0
    (dict(head_tensors={"t2d": ("BOOL", [99])}), {"draft-vocab"}),
    (dict(head_tensors={"lm_head.weight": None}), {"lm-head"}),
    (dict(head_tensors={"midlayer.self_attn.q_proj.weight": ("BF16", [48, 128])}), {"attention-shape"}),
    (dict(head={"num_hidden_layers": 2}), {"drafter-layers"}),
    (dict(head={"num_key_value_heads": 3}), {"attention-shape"}),
    (dict(head={"max_position_embeddings": 2048}), {"context"}),
    (dict(head={"architectures": ["LlamaForCausalLM"]}), {"drafter-class"}),
    (dict(head={"architectures": ["NeverHeardOfEagle3"]}), {"drafter-class"}),
    (dict(head={"norm_before_fc": True}), {"norm-flags"}),
    (dict(head={"rope_theta": -1.0}), {"rope"}),
    (dict(target={"architectures": ["MixtralForCausalLM"]}), {"target-class"}),
])
def test_each_wrong_thing_fails_its_own_rule(pair, change, rules):
    report = check_pair(*pair(**change), engine="sglang==0.5.12", algorithm="EAGLE3")
    assert failed(report) == rules, report
    assert all(f.what for f in report)


def test_a_wider_target_is_fine_when_the_head_was_made_for_it(pair):
    target, drafter = pair(head={"hidden_size": 32, "target_hidden_size": 64},
                           head_tensors={"fc.weight": ("BF16", [32, 192]), "embed_tokens.weight": ("BF16", [100, 32]),
                                         "midlayer.self_attn.q_proj.weight": ("BF16", [64, 64])})
    report = check_pair(target, drafter, engine="sglang==0.5.12", algorithm="EAGLE3")
    assert report.ok, report
    assert "projected" in next(f.what for f in report if f.id == "hidden-size")


def test_eagle_with_an_eagle3_head_is_refused_because_it_would_run(pair):
    finding = check_pair(*pair(), engine="sglang==0.5.23", algorithm="EAGLE").findings[0]
    assert (finding.id, finding.verdict) == ("packaging", "fail")
    assert "near 1" in finding.why and "EAGLE3" in finding.fix


def test_what_is_not_said_is_unknown_never_passed(tmp_path):
    target, drafter = facts(folder(tmp_path / "t", {"hidden_size": 64})), facts(folder(tmp_path / "d", HEAD))
    report = check_pair(target, drafter, engine="sglang", algorithm="EAGLE3")
    unknown = {f.id for f in report if f.verdict == "unknown"}
    assert {"fc-width", "aux-layers", "vocab", "draft-vocab", "context", "target-class", "drafter-class"} <= unknown
    assert report.ok


def test_a_damaged_file_fails(pair, tmp_path):
    pair()
    (tmp_path / "drafter" / "model.safetensors").write_bytes(b"\xff" * 64)
    report = check_pair(facts(tmp_path / "target"), facts(tmp_path / "drafter"), engine="llamacpp", algorithm="eagle3")
    assert "files" in failed(report)
