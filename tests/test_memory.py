"""The memory plan against recorded starts of a real engine on one and two GPUs, and against arithmetic done by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modelfiles import folder

from kit.memory import memory_plan
from kit.modelfacts import LocalReader, ModelFacts, Problem, Tensor, read_model
from kit.modelfacts.hfconfig import from_config
from kit.modelfacts.safetensors import Weights

FIXTURES = Path(__file__).parent / "fixtures" / "memory"
MICRO = Path(__file__).parent.parent / "data" / "models" / "micro-llama"
RECORDED = json.loads((FIXTURES / "runs.json").read_text())
RUNS = RECORDED["runs"]
KIMI = json.loads((FIXTURES / "kimi.json").read_text())
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1}
WITHIN = 0.05
SEGMENT = 20 / 1024         # GiB that torch's allocator takes at a time; only the micro model is as small
MIB_96_GB = 97887           # nvidia-smi memory.total of an RTX PRO 6000 Blackwell


def header(tensors: dict[str, tuple[str, list[int]]]) -> str:
    made, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for n in shape:
            size *= n
        made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return json.dumps(made)


def model(path: Path, config: dict, tensors: dict[str, tuple[str, list[int]]] | None = None) -> ModelFacts:
    files = {"model__safetensors__header__json": header(tensors)} if tensors else {}
    return read_model(LocalReader(folder(path, config, **files)), every_header=True)


def ballast(path: Path, role: str) -> ModelFacts:
    """The 8B model and the head of the recorded runs: its names, shapes and dtypes."""
    made = json.loads((FIXTURES / "ballast.json").read_text())[role]
    tensors = {prefix.format(i) + name: ("BF16", shape) for prefix, many in made["repeat"].items()
               for i in range(many) for name, shape in made["layer"].items()}
    tensors |= {name: ("BF16", shape) for name, shape in made["top"].items()} | made.get("other", {})
    return model(path / role, made["config"], tensors)


def pair(path: Path, name: str) -> tuple[ModelFacts, ModelFacts | None]:
    run = RUNS[name]
    if run["model"] == "micro":
        target, head = (read_model(LocalReader(MICRO / d), every_header=True) for d in ("target", "eagle3"))
    else:
        target, head = ballast(path, "target"), ballast(path, "drafter")
    return target, head if run["speculative_algorithm"] else None


def plan_of(path: Path, name: str):
    run = RUNS[name]
    spec = {} if not run["speculative_algorithm"] else {
        "algorithm": run["speculative_algorithm"], "steps": run["speculative_num_steps"],
        "topk": run["speculative_eagle_topk"], "verified": run["speculative_num_draft_tokens"]}
    return memory_plan(*pair(path, name), gpu_mib=RECORDED["gpu_mib"], tp=run["tp_size"], engine=RECORDED["engine"],
                       context=run["context_length"], mem_fraction_static=run["mem_fraction_static"],
                       max_running_requests=run["max_running_requests"], graphs=not run["disable_cuda_graph"], **spec)


def in_log(name: str, pattern: str) -> list[float]:
    return [float(m) for m in re.findall(pattern, (FIXTURES / f"{name}.log").read_text())]


WEIGHTS = r"Load weight end.*type=LlamaForCausalLM,.*mem usage=([\d.]+) GB"
HEAD_WEIGHTS = r"Load weight end.*type=LlamaForCausalLMEagle3,.*mem usage=([\d.]+) GB"
SPECULATIVE = [n for n in RUNS if RUNS[n]["speculative_algorithm"]]


@pytest.mark.parametrize("name", RUNS)
def test_tokens_and_weights_are_those_of_the_recorded_start(tmp_path, name):
    plan = plan_of(tmp_path, name)
    for tokens in in_log(name, r"#tokens: (\d+)"):
        assert plan.kv_tokens == pytest.approx(tokens, rel=WITHIN)
    k, v = in_log(name, r"K size: ([\d.]+) GB")[0], in_log(name, r"V size: ([\d.]+) GB")[0]
    assert plan.kv_gib == pytest.approx(k + v, rel=WITHIN)
    assert plan.free_gib == pytest.approx(max(in_log(name, r"Load weight begin. avail mem=([\d.]+) GB")), rel=WITHIN)
    for gib in in_log(name, WEIGHTS):
        assert plan.target_gib == pytest.approx(gib, rel=WITHIN, abs=SEGMENT)
    assert plan.target_basis == "headers" and plan.ok


@pytest.mark.parametrize("name", SPECULATIVE)
def test_a_drafter_takes_what_the_recorded_start_says(tmp_path, name):
    plan = plan_of(tmp_path, name)
    for gib in in_log(name, HEAD_WEIGHTS):
        assert plan.drafter_load_gib == pytest.approx(gib, rel=WITHIN, abs=SEGMENT)
    sizes = in_log(name, r"K size: ([\d.]+) GB")
    assert len(set(sizes)) == 2, "the target's cache, then the drafter's"
    assert verdicts(plan)["memory-drafter"] == "pass"
    assert plan.draft_kv_gib == pytest.approx(2 * sizes[-1], rel=WITHIN)


@pytest.mark.parametrize("name", [n for n in RUNS if n not in ("tp2_p2p_base",)])
def test_what_is_left_is_what_the_engine_had_left(tmp_path, name):
    """The engine has captured its graphs by then; tp2_p2p_base was ended before it said so."""
    assert plan_of(tmp_path, name).left_gib == pytest.approx(in_log(name, r"available_gpu_mem=([\d.]+)")[0], rel=WITHIN)


def test_every_fixture_log_belongs_to_a_run():
    assert {p.stem for p in FIXTURES.glob("*.log")} == set(RUNS)


# Kimi K2.6: 594 GB as published; no weights here, so all of it is an estimate

@pytest.fixture
def kimi(tmp_path):
    return model(tmp_path / "k", KIMI["target"])


def verdicts(plan) -> dict[str, str]:
    return {f.id: f.verdict for f in reversed(plan.report.findings)}


def test_w4a16_weights_are_estimated_from_the_config_and_called_so(kimi):
    plan = memory_plan(kimi, gpu_mib=MIB_96_GB, tp=8, mem_fraction_static=0.88, context=32768)
    said = next(f for f in plan.report if f.id == "memory-weights").what
    assert float(re.match(r"([\d.]+) GB", said)[1]) == pytest.approx(594, abs=0.5)
    assert plan.target_basis == "estimate" and "(by estimate)" in said and "estimate" in repr(plan)
    assert verdicts(plan)["memory-headers"] == "unknown" and verdicts(plan)["memory-weights"] == "pass"


def test_the_latent_cache_is_whole_on_every_gpu(kimi):
    one, eight = (memory_plan(kimi, gpu_mib=1 << 20, tp=tp, mem_fraction_static=0.9) for tp in (1, 8))
    assert one.kv_bytes == eight.kv_bytes == (512 + 64) * 2 * 61


def test_eight_gpus_of_96_gb_cannot_hold_the_same_model_in_16_bits(tmp_path):
    plain = model(tmp_path / "m", {k: v for k, v in KIMI["target"].items() if k != "quantization_config"})
    plan = memory_plan(plain, gpu_mib=MIB_96_GB, tp=8, mem_fraction_static=0.88)
    found = next(f for f in plan.report if f.id == "memory-weights")
    assert found.verdict == "fail" and "cannot hold it" in found.why and "tp 32" in found.fix and not plan.ok


def test_a_fraction_too_low_for_the_weights_fails_and_names_one_that_is_not(kimi):
    plan = memory_plan(kimi, gpu_mib=MIB_96_GB, tp=8, mem_fraction_static=0.7, context=32768)
    found = next(f for f in plan.report if f.id == "memory-kv")
    assert plan.kv_tokens == 0 and found.verdict == "fail"
    enough = float(re.search(r"above ([\d.]+)", found.fix)[1])
    better = memory_plan(kimi, gpu_mib=MIB_96_GB, tp=8, mem_fraction_static=enough + 0.001, context=32768)
    assert better.ok and better.requests >= 1


def test_a_request_longer_than_the_cache_fails(kimi):
    plan = memory_plan(kimi, gpu_mib=MIB_96_GB, tp=8, mem_fraction_static=0.8, context=262144)
    assert 0 < plan.kv_tokens < 262144 and verdicts(plan)["memory-kv"] == "fail"


def test_the_drafter_is_outside_the_fraction_up_to_0_5_13_and_inside_from_0_5_14(kimi, tmp_path):
    head = model(tmp_path / "h", KIMI["drafter"])
    same = dict(gpu_mib=MIB_96_GB, tp=8, mem_fraction_static=0.88, context=32768)
    alone = memory_plan(kimi, **same)
    old, new = (memory_plan(kimi, head, engine=f"sglang==0.5.{n}", algorithm="EAGLE3", **same) for n in (13, 14))
    assert old.kv_tokens == alone.kv_tokens > new.kv_tokens
    assert old.draft_kv_bytes == 64 // 8 * (128 + 128) * 2
    assert verdicts(new)["memory-draft-kv"] == "warn", "its 4096 B per token are budgeted as 1152"
    assert "come on top" in repr(old.report) and "included" in repr(new.report)


def test_inside_the_fraction_a_drafter_costs_its_weights_and_a_layer_of_the_target(tmp_path):
    target, head = pair(tmp_path, "big_eagle3_3_1_4")
    plan = memory_plan(target, head, gpu_mib=143771, engine="sglang==0.5.14", mem_fraction_static=0.5,
                       algorithm="EAGLE3")
    loaded = plan.free_gib / 2 - (12.80 + 0.94)         # GiB, of the recorded start
    assert plan.kv_tokens == pytest.approx(loaded * 2**30 / (65536 * 33 / 32), rel=0.001)


def test_draft_tokens_in_flight_take_room_beside_the_context(tmp_path):
    def length(**spec):
        return memory_plan(llama(tmp_path / "m"), gpu_mib=8192, context=1000, **spec).tokens_per_request
    assert length() == 1000
    assert length(algorithm="EAGLE3", steps=3) == 1004, "three drafts and a token of its own are verified"
    assert length(algorithm="EAGLE3", steps=3, topk=4, verified=8) == 1012, "a tree drafts 3 × 4"


def test_sparse_attention_keeps_an_index_key_per_token_too(kimi, tmp_path):
    sparse = model(tmp_path / "s", KIMI["target"] | {"index_head_dim": 128})
    plan = memory_plan(sparse, gpu_mib=MIB_96_GB, tp=8)
    assert plan.kv_bytes == memory_plan(kimi, gpu_mib=MIB_96_GB, tp=8).kv_bytes + 61 * (128 + 4)


@pytest.mark.parametrize("engine", ["sglang", "sglang==0.5.99", "sglang==0.4.1", "sglang==x", "vllm==0.11.0", "", None])
def test_an_engine_whose_rule_was_not_read_is_unknown_but_weights_and_bytes_are_told(tmp_path, engine):
    plan = memory_plan(*pair(tmp_path, "big_eagle3_3_1_4"), gpu_mib=143771, engine=engine, mem_fraction_static=0.5,
                       algorithm="EAGLE3")
    assert plan.kv_tokens is None and plan.requests is None and plan.left_gib is None
    assert verdicts(plan)["memory-fraction"] == verdicts(plan)["memory-kv"] == "unknown" and plan.ok
    assert plan.target_gib and plan.kv_bytes == 65536


def test_without_a_drafter_no_release_need_be_named(tmp_path):
    target, _ = pair(tmp_path, "big_base")
    named, not_named = (memory_plan(target, gpu_mib=143771, engine=e, mem_fraction_static=0.5)
                        for e in ("sglang==0.5.12.post1", "sglang"))
    assert named.kv_tokens == not_named.kv_tokens is not None


def test_a_fraction_the_engine_chooses_is_unknown(tmp_path):
    plan = memory_plan(pair(tmp_path, "big_base")[0], gpu_mib=143771)
    assert plan.kv_tokens is None and verdicts(plan)["memory-fraction"] == "unknown"


# what is split and what is not

def llama(path, config=None, tensors=None, **more):
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 128,
            "vocab_size": 1024, "max_position_embeddings": 4096, "tie_word_embeddings": False, "dtype": "bfloat16"}
    return model(path, base | (config or {}) | more, tensors)


def gib(plan, target=True) -> float:
    return round((plan.target_gib if target else plan.drafter_gib) * 2**30)


L0 = "model.layers.0."


@pytest.mark.parametrize("name, shape, whole", [
    (L0 + "self_attn.q_proj.weight", [64, 64], 1 / 4), (L0 + "self_attn.k_proj.weight", [16, 64], 1 / 2),
    (L0 + "input_layernorm.weight", [64], 1), (L0 + "mlp.down_proj.weight", [64, 128], 1 / 4),
    (L0 + "mlp.gate.weight", [16, 64], 1), (L0 + "mlp.experts.3.up_proj.weight", [32, 64], 1 / 4),
    (L0 + "self_attn.kv_a_proj_with_mqa.weight", [24, 64], 1), (L0 + "self_attn.kv_b_proj.weight", [64, 16], 1 / 4),
    ("lm_head.weight", [1024, 64], 1 / 4), (L0 + "self_attn.rotary_emb.inv_freq", [4], 0),
    ("visual.blocks.0.w", [8, 8], 1), (L0 + "mlp.shared_experts.up_proj.weight", [32, 64], 1 / 4),
])
def test_what_each_of_four_gpus_holds(tmp_path, name, shape, whole):
    target = llama(tmp_path / "m", tensors={name: ("BF16", shape), L0 + "mlp_norm.weight": ("BF16", [64])})
    size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    assert gib(memory_plan(target, gpu_mib=8192, tp=4)) == size * whole + 128


def test_kv_heads_fewer_than_gpus_are_repeated(tmp_path):
    target = llama(tmp_path / "m")
    per_token = {tp: memory_plan(target, gpu_mib=8192, tp=tp).kv_bytes for tp in (1, 2, 8)}
    assert per_token == {1: 2 * 2 * 8 * 2, 2: 2 * 8 * 2, 8: 2 * 8 * 2}
    assert "repeated" in repr(memory_plan(target, gpu_mib=8192, tp=8).report)


@pytest.mark.parametrize("dtype, size", [(None, 2), ("auto", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("bfloat16", 2)])
def test_bytes_of_a_cached_number(tmp_path, dtype, size):
    assert memory_plan(llama(tmp_path / "m"), gpu_mib=8192, kv_dtype=dtype).kv_bytes == 2 * 2 * 8 * size


def test_a_cache_dtype_nobody_knows_is_unknown(tmp_path):
    plan = memory_plan(llama(tmp_path / "m"), gpu_mib=8192, mem_fraction_static=0.9, kv_dtype="int3")
    assert plan.kv_tokens is None and verdicts(plan)["memory-kv"] == "unknown"


@pytest.mark.parametrize("more", [{"layer_types": ["sliding_attention", "full_attention"]},
                                  {"full_attention_interval": 4}])
def test_a_pool_of_mixed_layers_is_unknown(tmp_path, more):
    plan = memory_plan(llama(tmp_path / "m", more), gpu_mib=8192, mem_fraction_static=0.9)
    assert plan.kv_bytes is None and verdicts(plan)["memory-kv"] == "unknown"


def test_dtypes_count_as_they_are_loaded(tmp_path):
    tensors = {L0 + "mlp.up_proj.weight": ("F8_E4M3", [128, 64]), L0 + "mlp.up_proj.weight_scale_inv": ("F32", [1, 1]),
               L0 + "mlp.down_proj.weight_packed": ("I32", [64, 16]),
               L0 + "mlp.down_proj.weight_scale": ("BF16", [64, 4]),
               "model.embed_tokens.weight": ("F32", [1024, 64])}
    plan = memory_plan(llama(tmp_path / "m", tensors=tensors), gpu_mib=8192)
    assert gib(plan) == 128 * 64 + 4 + 64 * 16 * 4 + 64 * 4 * 2 + 1024 * 64 * 2


def test_a_tied_head_is_not_counted_twice(tmp_path):
    tensors = {"model.embed_tokens.weight": ("BF16", [1024, 64]), "lm_head.weight": ("BF16", [1024, 64]),
               L0 + "input_layernorm.weight": ("BF16", [64])}
    tied, untied = (memory_plan(llama(tmp_path / str(t), {"tie_word_embeddings": t}, tensors), gpu_mib=8192)
                    for t in (True, False))
    assert gib(untied) - gib(tied) == 1024 * 64 * 2


@pytest.mark.parametrize("name", ["target", "eagle3"])
def test_a_gguf_is_as_large_as_its_tensor_data(name):
    facts = read_model(LocalReader(MICRO / f"{name}.q8_0.gguf"))
    plan = memory_plan(facts, gpu_mib=8192)
    assert plan.target_basis == "headers" and gib(plan) == pytest.approx(facts.weight_bytes, rel=0.02)


def test_mtp_layers_count_only_when_they_draft(tmp_path):
    tensors = {L0 + "mlp.up_proj.weight": ("BF16", [128, 64]), "model.layers.1.mlp.up_proj.weight": ("BF16", [128, 64]),
               "model.layers.1.embed_tokens.weight": ("BF16", [1024, 64])}
    target = llama(tmp_path / "m", {"num_nextn_predict_layers": 1}, tensors)
    base, mtp = (memory_plan(target, gpu_mib=8192, mem_fraction_static=0.9, algorithm=a) for a in ("none", "NEXTN"))
    assert gib(base) == gib(mtp) == 128 * 64 * 2 and base.drafter_gib == 0
    assert gib(mtp, target=False) == 128 * 64 * 2, "the embedding is the target's"
    assert mtp.draft_kv_bytes == mtp.kv_bytes


def test_a_standalone_drafter_keeps_its_own_embedding_and_head(tmp_path):
    small = {"model.embed_tokens.weight": ("BF16", [1024, 64]), "lm_head.weight": ("BF16", [1024, 64])}
    drafter = llama(tmp_path / "d", tensors=small | {L0 + "input_layernorm.weight": ("BF16", [64])})
    plan = memory_plan(llama(tmp_path / "t"), drafter, gpu_mib=8192, algorithm="STANDALONE")
    assert gib(plan, target=False) == 2 * 1024 * 64 * 2 + 128


def test_an_ngram_drafter_takes_nothing(tmp_path):
    plan = memory_plan(pair(tmp_path, "big_base")[0], gpu_mib=143771, mem_fraction_static=0.5, algorithm="NGRAM")
    assert plan.drafter_gib == plan.draft_kv_gib == 0 and plan.kv_tokens


@pytest.mark.parametrize("release, known", [("0.5.12.post1", True), ("0.5.14", False)])
def test_a_drafter_that_is_not_given_is_unknown_and_so_are_tokens_that_depend_on_it(tmp_path, release, known):
    plan = memory_plan(pair(tmp_path, "big_base")[0], gpu_mib=143771, mem_fraction_static=0.5, algorithm="EAGLE3",
                       engine=f"sglang=={release}")
    assert plan.drafter_gib is None and verdicts(plan)["memory-drafter"] == "unknown" and plan.left_gib is None
    assert (plan.kv_tokens is not None) is known


# damage and nonsense

def test_headers_that_were_not_all_read_make_an_estimate(tmp_path):
    whole = ballast(tmp_path, "target")
    half = {n: t for n, t in whole.tensors.items() if "layers.3" not in n}
    total = 2 * sum(s[0] * (s[1] if len(s) > 1 else 1) for _, s in whole.tensors.values())
    by_size = memory_plan(replace(whole, tensors=half, weight_bytes=total), gpu_mib=143771, mem_fraction_static=0.5)
    by_config = memory_plan(replace(whole, tensors=half), gpu_mib=143771, mem_fraction_static=0.5)
    assert (by_size.target_basis, by_config.target_basis) == ("file sizes", "estimate")
    exact = memory_plan(whole, gpu_mib=143771, mem_fraction_static=0.5)
    for plan in (by_size, by_config):
        assert verdicts(plan)["memory-headers"] == "unknown"
        assert plan.target_gib == pytest.approx(exact.target_gib, rel=0.01)


def test_a_missing_shard_is_not_taken_for_a_smaller_model(tmp_path):
    whole = ballast(tmp_path, "target")
    torn = replace(whole, problems=(Problem("model-00002-of-00004.safetensors", "not there"),))
    assert memory_plan(torn, gpu_mib=143771).target_basis == "estimate"


def test_nothing_known_is_unknown():
    plan = memory_plan(ModelFacts("x", "hf"), gpu_mib=8192, mem_fraction_static=0.9)
    assert {f.verdict for f in plan.report if f.id in ("memory-weights", "memory-kv")} == {"unknown"}
    assert plan.target_gib is None and plan.ok and plan.bars() == [("driver and communication", pytest.approx(1.2)),
                                                                  ("drafter weights", 0.0), ("drafter KV", 0.0)]


@pytest.mark.parametrize("heads, kv, tp, good", [(8, 2, 3, False), (6, 4, 6, False), (8, 2, 8, True), (8, 8, 4, True)])
def test_heads_that_do_not_divide_fail(tmp_path, heads, kv, tp, good):
    target = llama(tmp_path / "m", {"num_attention_heads": heads, "num_key_value_heads": kv})
    assert (verdicts(memory_plan(target, gpu_mib=8192, tp=tp)).get("memory-heads") != "fail") is good


@pytest.mark.parametrize("bad", [
    {"mem_fraction_static": 0}, {"mem_fraction_static": 1.0}, {"mem_fraction_static": -3},
    {"mem_fraction_static": "0.9"},
    {"mem_fraction_static": float("nan")}, {"mem_fraction_static": True}, {"tp": 0}, {"tp": -1}, {"tp": 10**30},
    {"gpu_mib": 0}, {"gpu_mib": 10**400}, {"gpu_mib": None}, {"gpu_mib": 8192.5}, {"context": 0}, {"context": "x"},
    {"max_running_requests": 0}, {"topk": 0}, {"steps": -1}, {"verified": 0}, {"used_mib": -1}, {"algorithm": "EAGEL"},
    {"algorithm": None}, {"algorithm": 10**5000},
], ids=lambda bad: str(next(iter(bad))))
def test_a_setting_that_cannot_be_is_a_finding(tmp_path, bad):
    plan = memory_plan(llama(tmp_path / "m"), **{"gpu_mib": 8192, "mem_fraction_static": 0.9} | bad)
    assert [f.verdict for f in plan.report] == ["fail"] and plan.report.findings[0].id == "memory-input"
    assert plan.kv_tokens is None and repr(plan) and plan._repr_html_()


COUNT = st.none() | st.integers(0, 300) | st.sampled_from([1, 8, 4096, 2**31, 2**47])
CONFIG = st.dictionaries(st.sampled_from(
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
     "vocab_size", "n_routed_experts", "moe_intermediate_size", "first_k_dense_replace", "kv_lora_rank", "q_lora_rank",
     "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "layer_types", "quantization_config", "index_head_dim"]),
    COUNT | st.floats() | st.text(max_size=5) | st.lists(COUNT, max_size=3)
    | st.fixed_dictionaries({"bits": COUNT, "ignore": st.lists(st.text(max_size=8) | st.just("re:(a+)+$"), max_size=3),
                             "weight_block_size": st.lists(COUNT, max_size=2), "quant_method": st.text(max_size=4)}))


@settings(max_examples=80, deadline=None)
@given(config=CONFIG, tp=st.sampled_from([1, 3, 8]), algorithm=st.sampled_from(["none", "EAGLE3", "NEXTN", "DFLASH"]),
       engine=st.sampled_from(["sglang==0.5.12", "sglang==0.5.16"]), fraction=st.floats(0.05, 0.95))
def test_no_config_brings_the_plan_down(config, tp, algorithm, engine, fraction):
    facts = from_config(config, Weights(), name="x")
    plan = memory_plan(facts, facts, gpu_mib=98304, tp=tp, engine=engine, mem_fraction_static=fraction,
                       algorithm=algorithm)
    assert plan.report.findings and repr(plan) and plan.bars() is not None


def test_bars_add_up_to_the_gpu(tmp_path):
    plan = plan_of(tmp_path, "tp2_p2p_eagle3")
    names = [name for name, _ in plan.bars()]
    assert names[0] == "driver and communication" and names[-1] == "activations and graphs" and len(names) == 6
    assert sum(size for _, size in plan.bars()) == pytest.approx(143771 / 1024)


def test_more_requests_than_fit_are_warned_of(kimi):
    plan = memory_plan(kimi, gpu_mib=MIB_96_GB, tp=8, mem_fraction_static=0.88, context=32768, max_running_requests=64)
    assert 1 <= plan.requests < 64 and verdicts(plan)["memory-requests"] == "warn"


def test_a_drafter_that_does_not_fit_beside_a_high_fraction_fails(tmp_path):
    plan = memory_plan(*pair(tmp_path, "big_eagle3_3_1_4"), gpu_mib=143771, mem_fraction_static=0.97, context=2048,
                       algorithm="EAGLE3", engine="sglang==0.5.12.post1")
    found = next(f for f in plan.report if f.id == "memory-left")
    assert found.verdict == "fail"
    most = float(re.search(r"up to ([\d.]+)", found.fix)[1])
    calm = memory_plan(*pair(tmp_path, "big_eagle3_3_1_4"), gpu_mib=143771, mem_fraction_static=most - 0.001,
                       context=2048, algorithm="EAGLE3")
    assert verdicts(calm)["memory-left"] == "pass"


def test_experts_one_tensor_each_are_added_up(tmp_path):
    base = llama(tmp_path / "m", {"num_hidden_layers": 61})
    many = {f"model.layers.{i}.mlp.experts.{e}.{p}_proj.weight": Tensor("BF16", (4, 4))
            for i in range(61) for e in range(64) for p in ("up", "gate", "down")}
    plan = memory_plan(replace(base, tensors=many), gpu_mib=8192, tp=2)
    assert gib(plan) == len(many) * 32 / 2
