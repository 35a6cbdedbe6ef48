"""A Hugging Face folder → ModelFacts: config.json, tokenizer files and safetensors headers.

Real configs vary and all of it must pass: the language part nested under
`text_config`, the drafter's under `transformer_layer_config` (speculators),
`dtype` or `torch_dtype`, `rope_theta` at the top or under `rope_parameters`,
aux layer ids absent or null, full-vocabulary heads without d2t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kit.errors import CheckError
from kit.modelfacts import packaging, tokenizers
from kit.modelfacts.bounded import HUGE, Malformed, count, ids, number, parse_object, text
from kit.modelfacts.draftmap import read_draft_map
from kit.modelfacts.facts import ModelFacts, Problem, Rope
from kit.modelfacts.readers import Reader
from kit.modelfacts.safetensors import Weights, read_weights

LARGEST_CONFIG = 16 << 20
CARD_HEAD = 8192
NESTED = ("text_config", "llm_config", "language_config", "transformer_layer_config")
CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
EXPERT_KEYS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
NORM_FLAGS = ("fc_norm", "use_aux_norm", "norm_output", "norm_before_fc", "norm_before_residual")


class Fields:
    """The config with its language part in front: a field is looked for there first."""

    def __init__(self, config: Mapping[str, Any]):
        parts = [config[k] for k in NESTED if isinstance(config.get(k), dict)]
        self.parts = [*parts, config]

    def get(self, *names: str) -> Any:
        for name in names:
            for part in self.parts:
                if part.get(name) is not None:
                    return part[name]
        return None

    def has(self, name: str) -> bool:
        return any(name in part for part in self.parts)

    def count(self, *names: str) -> int | None:
        return count(self.get(*names))

    def section(self, name: str) -> dict:
        value = self.get(name)
        return value if isinstance(value, dict) else {}


def read_config(reader: Reader, name: str) -> dict:
    """A small JSON object of the folder; `CheckError` says what is wrong with it."""
    files = reader.list()
    if name not in files:
        raise CheckError(f"no {name} here, so not a Hugging Face checkpoint", where=reader.name,
                         next="give the folder that holds config.json, or a .gguf file")
    try:
        if files[name] > LARGEST_CONFIG:
            raise Malformed(f"{files[name]} bytes, too large for a config")
        return parse_object(reader.read(name, 0, LARGEST_CONFIG))
    except Malformed as e:
        raise CheckError(f"{name}: {e}", where=reader.name, next="fetch the checkpoint again") from None


def read_folder(reader: Reader, every_header: bool = False, tokenizer: bool = True) -> ModelFacts:
    config = read_config(reader, "config.json")
    weights = read_weights(reader, every_header)
    problems = list(weights.problems)
    vocabulary = None
    try:
        vocabulary = tokenizers.of_folder(reader) if tokenizer else None
    except Malformed as e:
        problems.append(Problem("tokenizer.json", str(e)))
    fields = Fields(config)
    if not any(fields.count(k) for k in ("hidden_size", "n_embd", "num_hidden_layers", "vocab_size")) \
            and not weights.known and not text(_first(config.get("architectures"))):
        raise CheckError("config.json names no architecture and no width: not a language model", where=reader.name,
                         next="give the folder of the checkpoint itself")
    facts = from_config(config, weights, name=reader.name, reader=reader, problems=problems)
    return replace(facts, tokenizer=vocabulary, base_models=facts.base_models or _card(reader),
                   chat_template=_chat_template(reader), files=dict(reader.list()))


def from_config(config: Mapping[str, Any], weights: Weights, *, name: str, reader: Reader | None = None,
                problems: list[Problem] | None = None) -> ModelFacts:
    """The facts in one config and the headers beside it."""
    fields, problems = Fields(config), list(problems or ())
    for key in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"):
        if fields.get(key) is not None and fields.count(key) is None:
            problems.append(Problem("config.json", f"{key} is {str(fields.get(key))[:40]!r}, not a count"))
    kind, why, speculators = packaging.classify(config, fields, weights)
    written = _aux_ids(fields)
    shift = -1 if speculators else 0
    heads = fields.count("num_attention_heads")
    hidden = fields.count("hidden_size", "n_embd")
    width = fields.count("head_dim") or (hidden // heads if hidden and heads and hidden % heads == 0 else None)
    known, shapes = weights.known, packaging.Shapes(weights, fields.count("num_hidden_layers"))
    vocab = fields.count("vocab_size")
    draft_vocab = fields.count("draft_vocab_size", "truncated_vocab_size")
    d2t = read_draft_map(weights, reader, offsets=True)
    return ModelFacts(
        name=name, format="hf", packaging=kind, packaging_why=why, speculators=speculators,
        architecture=text(_first(config.get("architectures"))), model_type=text(fields.get("model_type")),
        hidden_size=hidden, target_hidden_size=fields.count("target_hidden_size"),
        intermediate_size=fields.count("intermediate_size"), num_layers=fields.count("num_hidden_layers", "n_layer"),
        target_layers=_target_layers(fields, kind),
        vocab_size=vocab, draft_vocab_size=draft_vocab or shapes.lm_head_rows if kind == "eagle3" else draft_vocab,
        draft_vocab_declared=fields.has("draft_vocab_size"),
        aux_layer_ids=None if written is None else tuple(i + shift for i in written), aux_as_written=written,
        context_length=_context(fields), num_heads=heads, num_kv_heads=fields.count("num_key_value_heads") or heads,
        head_dim=width, kv_lora_rank=fields.count("kv_lora_rank"), q_lora_rank=fields.count("q_lora_rank"),
        num_experts=fields.count(*EXPERT_KEYS), mtp_layers=fields.count(*MTP_KEYS) or 0,
        has_mtp_weights=shapes.mtp_weights if known else None,
        block_size=fields.count("block_size") or count(fields.section("dflash_config").get("block_size")),
        rope=_rope(fields), dtype=text(fields.get("dtype", "torch_dtype")),
        quantization=_quantization(fields), tie_embeddings=_flag(fields.get("tie_word_embeddings")),
        norm_flags=tuple(f for f in NORM_FLAGS if True in (fields.get(f), fields.section("eagle_config").get(f))),
        bos=ids(fields.get("bos_token_id")) or (), eos=ids(fields.get("eos_token_id")) or (),
        has_embed=shapes.has_embed if known else None, has_lm_head=shapes.has_lm_head if known else None,
        lm_head_rows=shapes.lm_head_rows, d2t=d2t, has_d2t=shapes.has("d2t") if known else None,
        has_t2d=shapes.has("t2d") if known else None, fc_in=shapes.fc_in, fc_out=shapes.fc_out, qkv_in=shapes.qkv_in,
        q_out=shapes.q_out, t2d_length=shapes.t2d_length,
        fc_bias=shapes.has("fc.bias") if shapes.fc_in else None, naming=shapes.naming,
        base_models=tuple(filter(None, [text(fields.get("base_model", "target_model", "base_model_name_or_path"))])),
        weight_bytes=weights.weight_bytes, tensors=weights.tensors, config=config, problems=tuple(problems))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _aux_ids(fields: Fields) -> tuple[int, ...] | None:
    """The list as written: where it is, and under which name, depends on who saved the head."""
    places = [fields.section("eagle_config").get("eagle_aux_hidden_state_layer_ids"),
              fields.get("eagle_aux_hidden_state_layer_ids"),
              fields.section("dflash_config").get("target_layer_ids"),
              fields.get("target_layer_ids"), fields.get("aux_hidden_state_layer_ids")]
    found = next((p for p in places if p), None)
    return ids(found, least=-1) if isinstance(found, list) else None


def _target_layers(fields: Fields, kind: str) -> int | None:
    """Depth of the target a DFlash head was made for. DSpark uses the same key for the number of tapped layers."""
    named = fields.count("target_num_hidden_layers")
    if named or kind not in ("dflash", "dspark"):
        return named
    depth = fields.count("num_target_layers")
    tapped = ids(fields.section("dflash_config").get("target_layer_ids") or fields.get("target_layer_ids")) or ()
    return depth if depth and depth > max(tapped, default=0) else None


def _rope(fields: Fields) -> Rope:
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    theta = number(fields.get("rope_theta"))
    return Rope(theta if theta is not None else number(scaling.get("rope_theta")),
                text(scaling.get("rope_type") or scaling.get("type")) or "default",
                number(scaling.get("factor")) or 1.0, count(scaling.get("original_max_position_embeddings")))


def _context(fields: Fields) -> int | None:
    """First context key × rope factor, but factor 1 when the original length is given or the type is llama3.

    Source: SGLang utils/hf_transformers_utils.py `get_context_length`.
    """
    length, rope = fields.count(*CONTEXT_KEYS), _rope(fields)
    if not length:
        return None
    plain = rope.original_context is not None or rope.type in ("llama3", "default", "mrope")
    return min(int(length * (1.0 if plain else rope.factor)), HUGE)


def _quantization(fields: Fields) -> str:
    section = fields.section("quantization_config") or fields.section("compression_config")
    return text(section.get("quant_method") or section.get("quant_algo"), 40) or ("unnamed" if section else "")


def _card(reader: Reader) -> tuple[str, ...]:
    """`base_model` in the front matter of the card: a name, or a list of them."""
    if "README.md" not in reader.list():
        return ()
    lines = reader.read("README.md", 0, CARD_HEAD).decode("utf-8", "replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return ()
    found, inside = [], False
    for line in lines[1:]:
        key, _, value = line.partition(":")
        if line.strip() == "---":
            break
        if key == "base_model":
            inside = not value.strip()
            found += [] if inside else [value]
        elif inside and line.lstrip().startswith("- "):
            found.append(line.lstrip()[2:])
        else:
            inside = False
    return tuple(f.strip().strip("\"'[]")[:200] for f in found)


def _chat_template(reader: Reader) -> bool | None:
    files = reader.list()
    if "chat_template.jinja" in files or "chat_template.json" in files:
        return True
    if "tokenizer_config.json" not in files:
        return None
    try:
        return bool(read_config(reader, "tokenizer_config.json").get("chat_template"))
    except CheckError:
        return None

