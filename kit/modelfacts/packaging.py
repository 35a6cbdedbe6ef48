"""How a checkpoint drafts, told from its config and the shapes of its tensors.

The class name alone does not tell: EAGLE heads are published as
`LlamaForCausalLM`. Evidence in order: what the config says outright, then the
vocabulary map and the fusing projection, then the number of layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kit.modelfacts.facts import Packaging
from kit.modelfacts.safetensors import Weights

QUERY = r"(midlayer|layers\.0)\.self_attn\.(q_proj|qkv_proj|q_a_proj|fused_qkv_a_proj_with_mqa)\.weight"


class Shapes:
    """The few tensors that decide, whatever prefix and dialect they have."""

    def __init__(self, weights: Weights, layers: int | None):
        self.names, self.tensors, self.layers = weights.names, weights.tensors, layers

    def has(self, tail: str) -> bool:
        return any(n == tail or n.endswith("." + tail) for n in self.names.having(tail))

    def matrix(self, part: str, pattern: str) -> tuple[int | None, int | None]:
        """(rows, columns) of a linear layer; (None, None) where it is packed, as 4-bit weights are."""
        found = (self.tensors[n] for n in self.names.having(part)
                 if n in self.tensors and re.search(rf"(^|\.){pattern}$", n))
        tensor = next(found, None)
        if tensor is None or len(tensor.shape) != 2 or not tensor.dtype.startswith(("F", "BF")):
            return None, None
        return tensor.shape[0], tensor.shape[1]

    @property
    def has_embed(self) -> bool:
        return self.has("embed_tokens.weight") or self.has("tok_embeddings.weight") or self.has("wte.weight")

    @property
    def has_lm_head(self) -> bool:
        return self.has("lm_head.weight")

    @property
    def lm_head_rows(self) -> int | None:
        return self.matrix("lm_head.", r"lm_head\.weight")[0]

    @property
    def fc_in(self) -> int | None:
        return self.matrix("fc.", r"fc\.weight")[1]

    @property
    def fc_out(self) -> int | None:
        return self.matrix("fc.", r"fc\.weight")[0]

    @property
    def qkv_in(self) -> int | None:
        """Input width of the first attention layer: EAGLE-3 feeds it embedding and features side by side."""
        return self.matrix("self_attn.", QUERY)[1]

    @property
    def q_out(self) -> int | None:
        """Output width of a plain query projection: heads × head width."""
        return self.matrix("q_proj.", r"(midlayer|layers\.0)\.self_attn\.q_proj\.weight")[0]

    @property
    def t2d_length(self) -> int | None:
        found = (t for n in self.names.having("t2d") if (t := self.tensors.get(n)) and len(t.shape) == 1)
        return next((t.shape[0] for t in found), None)

    @property
    def naming(self) -> str:
        """Whose names the first layer has."""
        for dialect in ("midlayer.", "layers.0.", "model.layers.0."):
            if any(n.startswith(dialect) for n in self.names.having(dialect)):
                return dialect.rstrip(".")
        return ""

    @property
    def mtp_weights(self) -> bool:
        """Tensors of a layer past the last one, or under an `mtp` module."""
        extra = rf"(^|\.)layers\.{self.layers}\." if self.layers else r"(?!)"
        pattern = re.compile(rf"{extra}|(^|\.)mtp(_layers|_block)?\.")
        near = (f"layers.{self.layers}.", "mtp")
        return any(pattern.search(n) for part in near for n in self.names.having(part))


def classify(config: Mapping[str, Any], fields: Any, weights: Weights) -> tuple[Packaging, str, bool]:
    """(packaging, evidence, in the speculators layout)."""
    names = [a for a in config.get("architectures") or () if isinstance(a, str)] \
        if isinstance(config.get("architectures"), list) else []
    arch = names[0] if names else ""
    low = arch.lower()
    layout = fields.get("speculators_model_type")
    if isinstance(layout, str) and layout:
        kind = {"eagle3": "eagle3", "eagle": "eagle", "dflash": "dflash"}.get(layout, "unknown")
        return kind, f"speculators_model_type {layout[:40]}", True
    shapes = Shapes(weights, fields.count("num_hidden_layers"))
    block = fields.section("dflash_config")
    if "dspark" in low or fields.get("markov_rank") or block.get("projector_type") == "dspark":
        return "dspark", f"class {arch}" if "dspark" in low else "a markov head", False
    if "dflash" in low or block:
        return "dflash", f"class {arch}" if "dflash" in low else "a dflash_config", False
    if "eagle3" in low:
        return "eagle3", f"class {arch}", False
    if "eagle" in low:
        return "eagle", f"class {arch}", False
    return (*_by_shape(arch, fields, shapes, weights.known), False)


def _by_shape(arch: str, fields: Any, shapes: Shapes, known: bool) -> tuple[Packaging, str]:
    hidden, layers = fields.count("hidden_size") or shapes.fc_out, fields.count("num_hidden_layers")
    vocab = fields.count("vocab_size")
    if shapes.has("d2t"):
        return "eagle3", "has a d2t table"
    if fields.section("eagle_config"):
        return "eagle3", "has an eagle_config"
    if layers == 1 and (fields.has("draft_vocab_size") or fields.has("truncated_vocab_size")):
        return "eagle3", "one layer and a draft vocabulary"
    if layers == 1 and vocab and shapes.lm_head_rows and shapes.lm_head_rows < vocab // 2:
        return "eagle3", f"one layer, and an lm_head of {shapes.lm_head_rows} rows for {vocab} ids"
    if shapes.fc_in and hidden:
        if shapes.fc_in == 2 * hidden and shapes.qkv_in != 2 * hidden:
            return "eagle", f"fc takes 2 × {hidden}: embedding and one hidden state"
        return "eagle3", f"fc takes {shapes.fc_in} inputs at width {hidden}"
    if shapes.qkv_in and hidden and shapes.qkv_in == 2 * hidden:
        return "eagle3", f"attention takes 2 × {hidden}: embedding and features"
    if shapes.naming == "midlayer":
        return "eagle3", "its one layer is named midlayer"
    if known:
        return "plain", "a whole model: no fc, no d2t"
    if layers == 1 and arch:    # without a class it may be an EAGLE-3 head that leaves its draft vocabulary out
        return "eagle", "one decoder layer and no draft vocabulary"
    if layers == 1:
        return "unknown", "one decoder layer; neither a class nor a draft vocabulary is said"
    return ("plain", "more than one layer and nothing of a head") if layers else ("unknown", "config says too little")
