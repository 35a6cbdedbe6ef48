"""What is known of a checkpoint without its weights.

Three-valued on purpose: None means *not known*, never *no*. A config alone
knows little of its tensors, and a GGUF knows nothing of dtype before it was
quantised; rules must say `unknown` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Packaging = Literal["plain", "eagle", "eagle3", "dflash", "dspark", "unknown"]


class Tensor(NamedTuple):
    """One tensor of a header. `shape` is row-major ([out, in] of a linear layer), whatever the format says."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """Something wrong in a file that we could read around; the engine may not."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(frozen=True)
class Tokenizer:
    """kind: where the vocabulary was read; only fingerprints of the same `basis` compare.

    basis        "tokens" (sha256 over the token texts in id order) or "file" (over the file's bytes)
    size         number of ids, with added tokens; None where only the file was hashed
    """

    kind: str
    basis: Literal["tokens", "file"]
    fingerprint: str
    size: int | None = None
    tokens: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def first_difference(self, other: Tokenizer) -> int | None:
        """Lowest id whose text differs (where both go that far), None if there is none."""
        return next((i for i, (a, b) in enumerate(zip(self.tokens, other.tokens, strict=False)) if a != b), None)


@dataclass(frozen=True)
class DraftMap:
    """d2t: which target id each draft id stands for, as absolute ids.

    Hugging Face heads store *offsets* (target id = draft id + d2t), llama.cpp
    stores the ids themselves; both are absolute here. first/last/ascending are
    None when only its shape was read.
    """

    length: int
    lowest: int | None = None
    highest: int | None = None
    distinct: bool | None = None


@dataclass(frozen=True)
class Rope:
    theta: float | None = None
    type: str = "default"
    factor: float = 1.0
    original_context: int | None = None


@dataclass(frozen=True)
class ModelFacts:
    """One checkpoint, target or drafter.

    packaging          how it drafts: plain (a whole model), eagle (EAGLE-1/2 head), eagle3, dflash, dspark
    packaging_why      the evidence for it, in words
    speculators        in the speculators layout (nested `transformer_layer_config`)
    hidden_size        its own width; `target_hidden_size` is the width of the features it is fed
    vocab_size         ids its embedding knows; `draft_vocab_size` ids its own lm_head predicts
    aux_layer_ids      target layers it is fed from, as *outputs of layer i, 0-based* (-1: the embedding).
                       A Hugging Face EAGLE-3 head and DFlash count that way (SGLang adds one, because it captures
                       the input of the next layer); GGUF `target_layers` and speculators count *inputs* and are one
                       higher. None: not said, engines take `default_aux_layers`.
    aux_as_written     the same list as the file has it
    context_length     positions, after rope scaling (SGLang's derived length)
    fc_in, fc_out      widths of the fusing projection; qkv_in, q_out: of the first layer's query projection
    kv_lora_rank       not None: multi-head latent attention
    mtp_layers         extra multi-token-prediction layers; `has_mtp_weights` whether their tensors are there
    naming             dialect of a head's tensors: midlayer (SpecForge), layers.0, model.layers.0
    base_models        what its card or config says it was made for
    quantization       "", or as named in the file: fp8, awq, compressed-tensors, q8_0 …
    tensors            name → Tensor of the headers that were read, in Hugging Face's names for heads
    files              name → size of everything in the folder
    config             config.json as it is written ({} of a GGUF), for rules that need a rare key
    """

    name: str
    format: Literal["hf", "gguf"]
    packaging: Packaging = "unknown"
    packaging_why: str = ""
    speculators: bool = False
    architecture: str = ""
    model_type: str = ""
    hidden_size: int | None = None
    target_hidden_size: int | None = None
    intermediate_size: int | None = None
    num_layers: int | None = None
    target_layers: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    draft_vocab_declared: bool = False
    aux_layer_ids: tuple[int, ...] | None = None
    aux_as_written: tuple[int, ...] | None = None
    context_length: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    num_experts: int | None = None
    mtp_layers: int = 0
    has_mtp_weights: bool | None = None
    block_size: int | None = None
    rope: Rope = Rope()
    dtype: str = ""
    quantization: str = ""
    tie_embeddings: bool | None = None
    norm_flags: tuple[str, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    tokenizer: Tokenizer | None = None
    chat_template: bool | None = None
    has_embed: bool | None = None
    has_lm_head: bool | None = None
    lm_head_rows: int | None = None
    d2t: DraftMap | None = None
    has_d2t: bool | None = None
    has_t2d: bool | None = None
    fc_in: int | None = None
    fc_out: int | None = None
    qkv_in: int | None = None
    q_out: int | None = None
    t2d_length: int | None = None
    fc_bias: bool | None = None
    naming: str = ""
    base_models: tuple[str, ...] = ()
    weight_bytes: int | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    files: Mapping[str, int] = field(default_factory=dict, repr=False)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    problems: tuple[Problem, ...] = ()

    @property
    def is_head(self) -> bool:
        """Cannot generate alone: it needs the target's hidden states."""
        return self.packaging in ("eagle", "eagle3", "dflash", "dspark")

    @property
    def fed_width(self) -> int | None:
        """Width of one hidden state of the target it expects."""
        return self.target_hidden_size or self.hidden_size

    def summary(self) -> str:
        """One line for a table or a log."""
        parts = [self.packaging + (" (speculators)" if self.speculators else ""), self.architecture or self.model_type,
                 f"{self.num_layers} layers" if self.num_layers else "", f"hidden {self.hidden_size}",
                 f"vocab {self.vocab_size}", f"context {self.context_length}", self.quantization or self.dtype]
        return ", ".join(p for p in parts if p)


def default_aux_layers(num_layers: int) -> tuple[int, int, int]:
    """Layers an engine takes when the head names none, as outputs of layers.

    SGLang and llama.cpp capture the inputs of layers 2, L//2 and L-3
    (`set_eagle3_layers_to_capture`), which are the outputs of the layers before.

    >>> default_aux_layers(30)
    (1, 14, 26)
    """
    return (1, num_layers // 2 - 1, num_layers - 4)
