"""What drafting adds to a GPU: the drafter's weights, what of them the target lends, and its own KV cache.

Sources: SGLang 0.5.12 speculative/eagle_worker_v2.py (set_embed, set_embed_and_head), models/llama_eagle3.py,
models/deepseek_nextn.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kit.memory.kv import PerToken, per_token
from kit.memory.weights import EMBED, HEAD, Weights, extra_layers, weights_of
from kit.modelfacts import ModelFacts

# The class builds its layer as a plain Llama one, then replaces both by its own (llama_eagle3.py, 0.4.9 to 0.5.23).
REBUILT_MLP, REBUILT_QKV = re.compile(r"\b(gate|up|gate_up|down)_proj\b"), re.compile(r"\b(q|k|v|qkv)_proj\b")


@dataclass(frozen=True)
class Drafting:
    """resident_bytes   weights that stay, on each GPU
    load_bytes       at the end of loading: also what is given back later (the embedding that the target lends, a
                     layer that was built twice). An engine's log prints this one.
    kv               bytes per token of the drafter's own cache; it has a slot for every token of the target's
    layers           its layers; drafts: False where nothing is loaded to draft with
    """

    resident_bytes: float | None = 0.0
    load_bytes: float | None = 0.0
    kv: PerToken = PerToken(0)
    basis: str = ""
    note: str = ""
    drafts: bool = True

    @property
    def layers(self) -> int:
        return self.kv.layers


def drafting(algorithm: str, target: ModelFacts, drafter: ModelFacts | None, tp: int, size: int | None) -> Drafting:
    """Of one GPU of `tp`. size: bytes of a cached number. Bytes are None where the drafter says too little."""
    if algorithm in ("none", "ngram", "suffix"):
        return Drafting(drafts=False)
    if algorithm == "mtp" and drafter is None:
        weights, layers = extra_layers(weights_of(target), target.num_layers), target.mtp_layers or 1
        kv = per_token(target, tp, size, layers) if size else PerToken(None, layers)
        if not weights.known:
            return Drafting(None, None, kv, note="the headers show no MTP layer")
        own = weights.without(EMBED, HEAD).on_gpu(tp)
        return Drafting(own, own, kv, weights.basis)
    if drafter is None:
        return Drafting(None, None, PerToken(None, why="no drafter"), note="no drafter was given")
    weights = weights_of(drafter)
    kv = per_token(drafter, tp, size) if size else PerToken(None, drafter.num_layers or 0)
    if not weights.known:
        return Drafting(None, None, kv, note=weights.note)
    resident = weights.without(*_lent(algorithm, drafter)).on_gpu(tp)
    return Drafting(resident, weights.on_gpu(tp) + _given_back(algorithm, drafter, weights, tp), kv, weights.basis,
                    weights.note)


def _lent(algorithm: str, drafter: ModelFacts) -> list[re.Pattern]:
    """What the drafter does not keep, because it uses the target's."""
    if algorithm == "draft":
        return []
    if algorithm != "eagle3":
        return [EMBED, HEAD]
    narrower = drafter.target_hidden_size not in (None, drafter.hidden_size)    # then its own embedding is used
    headless = drafter.has_lm_head is False or (drafter.draft_vocab_size is None and drafter.tie_embeddings is not True)
    return [*([] if narrower else [EMBED]), *([HEAD] if headless else [])]


def _given_back(algorithm: str, drafter: ModelFacts, weights: Weights, tp: int) -> float:
    """Allocated while loading though no file holds it: the embedding to be replaced, and the layer built twice."""
    extra = 0.0
    wide = (drafter.vocab_size or 0) * (drafter.hidden_size or 0) * 2 / tp
    if algorithm in ("eagle", "eagle3") and not weights.only(EMBED).known:
        extra += wide
    if algorithm == "eagle3" and not drafter.kv_lora_rank:
        extra += weights.only(REBUILT_MLP).on_gpu(tp) + weights.only(REBUILT_QKV).on_gpu(tp) / 2
    return extra
