"""`compat`: field cases with their right answers, the command, the readers, hostile headers, and its speed limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from modelfiles import SIZES, folder, gguf

from kit.checks import check_pair
from kit.errors import CheckError
from kit.findings import ORDER
from kit.modelfacts import LocalReader, read_model

FIXTURES = Path(__file__).parent / "fixtures" / "compat"
CONFIGS = json.loads((FIXTURES / "configs.json").read_text())
CASES = [json.loads(line) for line in (FIXTURES / "cases.jsonl").read_text().splitlines()]


def header(tensors: dict[str, list[int]]) -> str:
    """A header of its own file, as it is kept without weights."""
    made, at = {}, 0
    for name, shape in tensors.items():
        dtype, size = ("I64" if name == "d2t" else "BF16"), 1
        for n in shape:
            size *= n
        size *= SIZES[dtype]
        made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return json.dumps(made)


def build(path: Path, model: dict) -> Path:
    """A model as a case describes it → files."""
    if "gguf" in model:
        size = model["gguf"].get("vocab_size")
        meta = {"general.architecture": "llama", "llama.block_count": 8, "llama.embedding_length": 64,
                "llama.context_length": 4096} | ({"llama.vocab_size": size} if size else {})
        meta |= {"tokenizer.ggml.tokens": model["tokens"]} if "tokens" in model else {}
        path.mkdir()
        (path / "m.gguf").write_bytes(gguf(meta))
        return path
    known = CONFIGS.get(model.get("of"), {})
    config = {**known.get("config", {}), **model.get("more", {})}
    if "nested" in model:
        config["transformer_layer_config"] = config["transformer_layer_config"] | model["nested"]
    files = {}
    if tensors := model.get("tensors", known.get("tensors")):
        files["model__safetensors__header__json"] = header(tensors)
    if "index" in model:
        shard = "model-00001-of-00001.safetensors"
        files["model__safetensors__index__json"] = json.dumps({"weight_map": dict.fromkeys(model["index"], shard)})
        files[f"{shard}__header__json".replace(".", "__")] = header({"lm_head.weight": [2, 2]})
    if "tokens" in model:
        vocab = {t: i for i, t in enumerate(model["tokens"])}
        files["tokenizer__json"] = json.dumps({"model": {"vocab": vocab}})
    if "card" in model:
        files["README__md"] = model["card"]
    return folder(path, config, **files)


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_of_the_field_are_told_apart(tmp_path, name):
    known = CONFIGS[name]
    path = build(tmp_path / "m", {"of": name})
    try:
        facts = read_model(LocalReader(path))
    except CheckError:
        assert not known["complete"]        # so little of it was seen that nothing can be said
        return
    assert facts.problems == ()
    assert facts.packaging == known["packaging"] or (facts.packaging == "unknown" and not known["complete"])


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_field_case(tmp_path, case):
    (tmp_path / "t").mkdir()
    target = (tmp_path / "t" / case["target"].get("name", "target"))
    target.parent.mkdir(parents=True, exist_ok=True)
    facts = [read_model(LocalReader(build(path, case[role]))) if case[role] else None
             for role, path in (("target", target), ("drafter", tmp_path / "drafter"))]
    report = check_pair(*facts, engine=case["engine"], algorithm=case["algorithm"], context=case.get("context"),
                        tp=case.get("tp", 1))
    worst = {}
    for f in report:
        worst[f.id] = min(worst.get(f.id, f.verdict), f.verdict, key=ORDER.__getitem__)
    assert {k: worst.get(k) for k in case["expect"]} == case["expect"], report
    assert report.ok == case["ok"], report
    for id, words in case.get("says", {}).items():
        assert any(words in f.what for f in report if f.id == id), report
