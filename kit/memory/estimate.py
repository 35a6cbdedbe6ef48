"""The weights a config describes, where no header can be read: names, counts and bits, to be called an estimate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from kit.modelfacts import ModelFacts
from kit.modelfacts.bounded import count
from kit.modelfacts.hfconfig import Fields

MOST_BYTES = 1 << 60        # past this a config is not believed
BITS_OF = {"fp8": 8, "modelopt": 8, "awq": 4, "gptq": 4, "mxfp4": 4, "nvfp4": 4, "modelopt_fp4": 4}
LINEAR = re.compile(r"(_proj|experts)\b")
TAME = re.compile(r"(\.\*|\\\.|[\w.|()$^])*")      # of patterns in a file: nothing that can take for ever


class Part(NamedTuple):
    """One tensor, or all of one kind together; the name decides where it goes."""

    name: str
    bytes: float


class _Quantised(NamedTuple):
    """Of Linear layers whose name no `ignore` entry matches: bits per weight, a scale for every `group` of them."""

    bits: float = 16
    group: int | None = None
    scale_bits: int = 16
    ignore: tuple[str, ...] = ()

    def bits_of(self, name: str) -> float:
        if self.bits == 16 or not LINEAR.search(name) or any(_matches(i, name) for i in self.ignore):
            return 16
        return self.bits + (self.scale_bits / self.group if self.group else 0)


def parts_of_config(facts: ModelFacts) -> tuple[list[Part], str]:
    """(parts, what they leave out). No parts: what is missing in the config.

    Widths are those of Llama-like decoders (grouped-query attention, gated MLP), of DeepSeek's latent attention, of
    mixtures of experts, and of EAGLE heads, whose first layer takes twice the width.
    """
    f = Fields(facts.config)
    hidden, layers, vocab = facts.hidden_size, facts.num_layers, facts.vocab_size
    if not (hidden and layers and vocab and facts.num_heads and facts.config):
        return [], "the config does not give hidden size, layers, heads and vocabulary"
    if (quantised := _quantisation(f)) is None:
        return [], f"how {facts.quantization} stores its weights is not known"
    found = [*_top(facts, f), *_layers(facts, f)]
    if any(n is None for _, n in found):
        return [], "the config does not give every width"
    parts = [Part(name, n * quantised.bits_of(name) / 8) for name, n in found]
    if not 0 < sum(p.bytes for p in parts) < MOST_BYTES:
        return [], "the config's widths cannot be true"
    towers = [key.removesuffix("_config") for key in ("vision_config", "audio_config") if key in f.parts[-1]]
    return parts, f"the part for {' and '.join(towers)} is not counted" if towers else ""


def _times(*factors: int | None) -> int | None:
    total = 1
    for n in factors:
        if not n:
            return None
        total *= n
    return total


def _top(facts: ModelFacts, f: Fields) -> Iterator[tuple[str, int | None]]:
    yield "embed_tokens.weight", _times(facts.vocab_size, facts.hidden_size)
    if facts.tie_embeddings is not True:
        yield "lm_head.weight", _times(facts.draft_vocab_size or facts.vocab_size, facts.hidden_size)
    if facts.packaging in ("eagle3", "dflash", "dspark"):
        taken = len(facts.aux_layer_ids or ()) or 3
        yield "fc.weight", _times(facts.fed_width, taken, facts.hidden_size)
    elif facts.packaging == "eagle":
        yield "fc.weight", _times(2, facts.hidden_size, facts.hidden_size)


def _layers(facts: ModelFacts, f: Fields) -> Iterator[tuple[str, int | None]]:
    """One part for each kind of matrix, over all layers that have it."""
    n, hidden = facts.num_layers, facts.hidden_size
    for name, size in _attention(facts, f, 2 * hidden if facts.packaging == "eagle3" else hidden):
        yield f"layers.0.self_attn.{name}.weight", _times(n, size)
    experts, inner = facts.num_experts, f.count("moe_intermediate_size") or facts.intermediate_size
    dense = n if not experts else min(f.count("first_k_dense_replace") or 0, n)
    if dense:
        yield "layers.0.mlp.gate_up_proj.weight", _times(2, dense, hidden, facts.intermediate_size)
        yield "layers.0.mlp.down_proj.weight", _times(dense, hidden, facts.intermediate_size)
    if experts and n > dense:
        yield "layers.0.mlp.experts.weight", _times(3, n - dense, experts, hidden, inner)
        yield "layers.0.mlp.gate.weight", _times(n - dense, experts, hidden)
        together = f.count("shared_expert_intermediate_size") or (f.count("n_shared_experts") or 0) * (inner or 0)
        if together:
            yield "layers.0.mlp.shared_experts.up_proj.weight", _times(3, n - dense, hidden, together)


def _attention(facts: ModelFacts, f: Fields, width: int) -> Iterator[tuple[str, int | None]]:
    hidden, heads, rank = facts.hidden_size, facts.num_heads, facts.kv_lora_rank
    if not rank:
        yield "q_proj", _times(width, heads, facts.head_dim)
        yield "k_proj", _times(width, facts.num_kv_heads, facts.head_dim)
        yield "v_proj", _times(width, facts.num_kv_heads, facts.head_dim)
        yield "o_proj", _times(heads, facts.head_dim, hidden)
        return
    nope, rope, value = (f.count(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    per_head = nope + rope if nope and rope else None
    if facts.q_lora_rank:
        yield "q_a_proj", _times(width, facts.q_lora_rank)
        yield "q_b_proj", _times(facts.q_lora_rank, heads, per_head)
    else:
        yield "q_proj", _times(width, heads, per_head)
    yield "kv_a_proj_with_mqa", _times(width, rank + rope if rope else None)
    yield "kv_b_proj", _times(rank, heads, nope + value if nope and value else None)
    yield "o_proj", _times(heads, value, hidden)


def _quantisation(f: Fields) -> _Quantised | None:
    """None: quantised in a way whose bits are not said."""
    section = f.section("quantization_config") or f.section("compression_config")
    if not section:
        return _Quantised()
    ignore = tuple(i for k in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
                   if isinstance(section.get(k), list) for i in section[k] if isinstance(i, str))[:1000]
    groups = section.get("config_groups")
    first: Any = next(iter(groups.values()), None) if isinstance(groups, dict) and groups else None
    scheme = first.get("weights") if isinstance(first, dict) else None
    scheme = scheme if isinstance(scheme, dict) else {}
    method = str(section.get("quant_method") or section.get("quant_algo") or "").lower()
    bits = count(scheme.get("num_bits") or section.get("bits") or section.get("w_bit")) or BITS_OF.get(method)
    if not bits or not 1 <= bits <= 16:
        return None
    group = count(scheme.get("group_size") or section.get("group_size") or section.get("q_group_size"))
    block = section.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(count(b) for b in block):
        return _Quantised(bits, block[0] * block[1], 32, ignore)
    return _Quantised(bits, group, 16, ignore)


def _matches(entry: str, name: str) -> bool:
    """An `ignore` entry: a `re:` pattern of the module's name from its beginning, else a part of it."""
    if not entry.startswith("re:"):
        return entry in name
    pattern = entry[3:]
    if len(pattern) > 200 or not TAME.fullmatch(pattern) or pattern.count(".*") > 3:
        return False
    try:
        return re.match(pattern, name.removesuffix(".weight")) is not None
    except re.error:
        return False
