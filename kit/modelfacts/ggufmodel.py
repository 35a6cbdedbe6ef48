"""A GGUF file → ModelFacts, in the same terms as a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kit.errors import CheckError
from kit.modelfacts import tokenizers
from kit.modelfacts.bounded import Malformed, count, ids, number, text
from kit.modelfacts.draftmap import read_draft_map
from kit.modelfacts.facts import ModelFacts, Packaging, Rope, Tensor
from kit.modelfacts.gguf import Gguf, read_gguf
from kit.modelfacts.readers import Reader
from kit.modelfacts.safetensors import Names, Weights

HEADS: Mapping[str, Packaging] = {"eagle3": "eagle3", "eagle": "eagle", "dflash": "dflash", "dspark": "dspark"}
# GGUF's tensor names in the words of the heads that are published on the hub
NAMES = {"token_embd": "embed_tokens", "output": "lm_head", "fc": "fc", "d2t": "d2t", "output_norm": "norm"}


def read_file(reader: Reader, file: str) -> ModelFacts:
    try:
        return from_gguf(read_gguf(reader, file), reader, file)
    except Malformed as e:
        raise CheckError(f"{file}: {e}", where=reader.name, next="fetch the file again") from None


def from_gguf(gguf: Gguf, reader: Reader, file: str) -> ModelFacts:
    meta = gguf.metadata
    arch = text(meta.get("general.architecture"), 60)
    if not arch:
        raise Malformed("names no general.architecture")

    def number_of(key: str) -> int | None:
        return count(meta.get(f"{arch}.{key}"))

    kind = HEADS.get(arch, "plain")
    written = ids(meta.get(f"{arch}.target_layers"), least=0)
    tensors = {_name(n): t for n, t in gguf.tensors.items()}
    weights = Weights(Names(tensors), tensors, {_name(n): (file, at) for n, at in gguf.starts.items()})
    fc, head = _shape(tensors, "fc.weight"), _shape(tensors, "lm_head.weight")
    query = _shape(tensors, "layers.0.self_attn.q_proj.weight") or (None, None)
    heads, hidden = number_of("attention.head_count"), number_of("embedding_length")
    template = meta.get("tokenizer.chat_template")
    tokens = meta.get("tokenizer.ggml.tokens")
    vocab = number_of("vocab_size") or (len(tokens) if isinstance(tokens, tuple) and tokens else None)
    d2t = read_draft_map(weights, reader, offsets=False)
    draft_vocab = d2t.length if d2t else head[0] if head else None
    return ModelFacts(
        name=reader.name, format="gguf", packaging=kind, packaging_why=f"general.architecture {arch}",
        architecture=arch, model_type=arch, hidden_size=hidden, target_hidden_size=number_of("target_hidden_size"),
        intermediate_size=number_of("feed_forward_length"), num_layers=number_of("block_count"),
        vocab_size=vocab, draft_vocab_size=draft_vocab if kind == "eagle3" else None,
        draft_vocab_declared=d2t is not None,
        aux_layer_ids=None if written is None else tuple(i - 1 for i in written), aux_as_written=written,
        context_length=number_of("context_length"), num_heads=heads,
        num_kv_heads=number_of("attention.head_count_kv") or heads,
        head_dim=number_of("attention.key_length") or (hidden // heads if hidden and heads else None),
        kv_lora_rank=number_of("attention.kv_lora_rank"), q_lora_rank=number_of("attention.q_lora_rank"),
        num_experts=number_of("expert_count") or None, mtp_layers=number_of("nextn_predict_layers") or 0,
        has_mtp_weights=any(".nextn." in n for n in gguf.tensors),
        rope=_rope(meta, f"{arch}.rope."),
        quantization=_commonest(gguf.tensors).lower(), tie_embeddings=None if head or kind != "plain" else True,
        norm_flags=tuple(f for f in ("norm_before_residual", "norm_before_fc") if meta.get(f"{arch}.{f}") is True),
        bos=ids(meta.get("tokenizer.ggml.bos_token_id")) or (), eos=ids(meta.get("tokenizer.ggml.eos_token_id")) or (),
        tokenizer=tokenizers.of_tokens("gguf", tokens) if _texts(tokens) else None,
        chat_template=isinstance(template, str) if tokens else None,
        has_embed="embed_tokens.weight" in tensors, has_lm_head="lm_head.weight" in tensors,
        lm_head_rows=head[0] if head else None, d2t=d2t, has_d2t="d2t" in tensors, has_t2d="t2d" in tensors,
        fc_in=fc[1] if fc else None, fc_out=fc[0] if fc else None,
        q_out=query[0], qkv_in=query[1],
        fc_bias="fc.bias" in tensors if fc else None, base_models=tuple(filter(None, [text(
            meta.get("general.base_model.0.name"))])), weight_bytes=reader.list()[file] - gguf.end,
        tensors=tensors, files=dict(reader.list()))


def _rope(meta: Mapping[str, Any], key: str) -> Rope:
    kind = text(meta.get(key + "scaling.type"))
    return Rope(number(meta.get(key + "freq_base")), "default" if kind in ("", "none") else kind,
                number(meta.get(key + "scaling.factor")) or 1.0,
                count(meta.get(key + "scaling.original_context_length")))


def _name(name: str) -> str:
    stem, _, suffix = name.rpartition(".") if "." in name else (name, "", "")
    if layer := re.fullmatch(r"blk\.(\d+)\.attn_(q|k|v|output)", stem):
        part = {"output": "o"}.get(layer[2], layer[2])
        return f"layers.{layer[1]}.self_attn.{part}_proj.{suffix}"
    return f"{NAMES[stem]}.{suffix}".rstrip(".") if stem in NAMES else name


def _shape(tensors: Mapping[str, Tensor], name: str) -> tuple[int, int] | None:
    shape = tensors[name].shape if name in tensors else ()
    return shape if len(shape) == 2 else None


def _texts(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(t) is str for t in value)


def _commonest(tensors: Mapping[str, Tensor]) -> str:
    """The type that most matrices have: how the file was quantised."""
    seen: dict[str, int] = {}
    for tensor in tensors.values():
        if len(tensor.shape) >= 2:
            seen[tensor.dtype] = seen.get(tensor.dtype, 0) + 1
    return max(seen, key=seen.get, default="")
