"""Rules on what SGLang does with a head, release by release. Boundaries are those of the released wheels."""

from __future__ import annotations

from collections.abc import Iterator

from kit.compat.pair import Pair, Say, rule
from kit.compat.rules_engine import EAGLE_CLASSES
from kit.findings import Finding

# first release that reads the flag; an older one loads such a head and ignores it
NORM_SINCE = {"llama": {"fc_norm": "0.5.12", "use_aux_norm": "0.5.12", "norm_output": "0.5.12",
                        "norm_before_fc": "0.5.17"},
              "mla": {"fc_norm": "0.5.13", "use_aux_norm": "0.5.13", "norm_output": "0.5.13"}}
BOTH_ATTENTIONS = ("triton", "flashinfer")      # latent attention, and the ordinary one of most heads
DRAFT_BACKEND = "--speculative-draft-attention-backend"
SHIFTING = ("DeepseekV2", "DeepseekV3", "KimiK25", "KimiK2")       # targets whose capture lives in deepseek_v2.py


@rule("drafter-layers")
def drafter_layers(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or head.packaging != "eagle3" or not head.num_layers:
        return
    if head.num_layers == 1:
        yield say("pass", "one layer")
    elif p.on("sglang") and (head.kv_lora_rank or p.since("0.5.12") is False):
        yield say("fail", f"the drafter's config says {head.num_layers} layers; {p.engine} takes one",
                  "“EAGLE3 currently only supports 1 layer”",
                  "set num_hidden_layers to 1 if that is what its weights hold; else SGLang 0.5.12 or later")
    elif _layers_in_header(p) == 1:
        yield say("fail", f"the config says {head.num_layers} layers, the weights hold one",
                  "the count was copied from the target; the others would be left random", "set num_hidden_layers to 1")
    else:
        yield say("unknown" if not p.since("0.5.12") else "pass", f"{head.num_layers} layers")


def _layers_in_header(p: Pair) -> int | None:
    names = p.head.tensors
    found = {n.split("layers.", 1)[1].split(".", 1)[0] for n in names if "layers." in n}
    found |= {"0"} if any("midlayer." in n for n in names) else set()
    return len(found) or None


@rule("norm-flags")
def norm_flags(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or not head.norm_flags or not p.on("sglang"):
        return
    known = NORM_SINCE["mla" if head.kv_lora_rank else "llama"]
    for flag in head.norm_flags:
        since = known.get(flag)
        if since is None:
            yield say("unknown", f"the drafter sets {flag}; no SGLang release that was read uses it for this class")
        elif p.since(since) is None:
            yield say("unknown", f"the drafter sets {flag}, read by SGLang {since} and later; the version is not said")
        elif not p.since(since):
            yield say("fail", f"the drafter sets {flag}; {p.engine} does not read it",
                      "it loads without an error and computes something else: few drafts are accepted",
                      f"SGLang {since} or later")
        else:
            yield say("pass", f"{flag} is read")


@rule("lm-head")
def lm_head(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or head.packaging != "eagle3" or head.format == "gguf":
        return
    named = head.draft_vocab_size if head.draft_vocab_declared else None
    if head.has_lm_head is None:
        return
    if head.has_lm_head or head.tie_embeddings:
        yield say("pass", "has its own lm_head" if head.has_lm_head else "lm_head is its embedding")
    elif named and p.on("sglang"):
        yield say("fail", f"no lm_head, yet draft_vocab_size is {named}",
                  "SGLang then makes a random one and reports nothing missing: accept length 1.00",
                  'set "draft_vocab_size": null in a copy of its config.json, so that the target\'s is used'
                  if named == head.vocab_size else "fetch the drafter again: a reduced vocabulary needs its own")
    elif p.on("sglang") and p.since("0.5.3") is False:
        yield say("fail", f"no lm_head, and {p.engine} does not take the target's", "", "SGLang 0.5.3 or later")
    else:
        yield say("pass", "no lm_head: the target's is used")


@rule("draft-vocab-key")
def draft_vocab_key(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or not p.on("sglang") or head.architecture != EAGLE_CLASSES["eagle3"] or head.draft_vocab_declared:
        return
    if head.tie_embeddings is not True and head.num_layers:
        yield say("fail", "the drafter's config has no draft_vocab_size",
                  "SGLang's LlamaForCausalLMEagle3 reads that attribute without a default: AttributeError at load",
                  f'add "draft_vocab_size": {head.vocab_size or "null"} (null: use the target\'s lm_head)')


@rule("target-hidden-key")
def target_hidden_key(p: Pair, say: Say) -> Iterator[Finding]:
    head, has = p.head, p.target.hidden_size
    if head is None or head.packaging != "eagle3" or not p.on("sglang") or head.format == "gguf":
        return
    if head.hidden_size and has and head.hidden_size != has and head.target_hidden_size is None and head.fc_in:
        yield say("fail", f"widths differ ({head.hidden_size}, target {has}) and the config has no target_hidden_size",
                  "SGLang then sizes fc by the drafter's own width and its weights do not fit",
                  f'add "target_hidden_size": {has}')


@rule("aux-shift")
def aux_shift(p: Pair, say: Say) -> Iterator[Finding]:
    """The same list means other layers in other releases, for targets of the DeepSeek family."""
    head, arch = p.head, p.target.architecture
    if head is None or head.packaging != "eagle3" or not p.on("sglang") or not head.aux_as_written:
        return
    if p.since("0.5.11") is False:
        yield say("warn", "CUDA graphs replace the drafter's layer ids by the default ones",
                  f"{p.engine} sets the layers again, without ids, before it captures graphs",
                  "SGLang 0.5.11 or later, or --disable-cuda-graph", f"ids {list(head.aux_as_written)}")
    if arch.startswith(SHIFTING) and head.aux_as_written[0] != 1 and p.target.num_layers:
        early, late = [i + 1 for i in head.aux_as_written], list(head.aux_as_written)
        newer = p.since("0.5.13")
        now = "not said" if newer is None else str(late if newer else early)
        yield say("warn", f"ids {late}: inputs of layers {early} up to SGLang 0.5.12, of {late} from 0.5.13 on",
                  f"{arch} adds one to the ids only if the first is 1 since 0.5.13; {p.engine} takes {now}",
                  "measure the accept length; a drop between releases is this")


@rule("attention-backend")
def attention_backend(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or not p.on("sglang") or not p.target.kv_lora_rank or head.kv_lora_rank:
        return
    if not (head.architecture or head.num_heads):
        return
    what = "the target uses latent attention (MLA), the drafter ordinary attention"
    own, flag = p.flag(DRAFT_BACKEND), "--attention-backend"
    backend = own or p.flag(flag)
    if backend in BOTH_ATTENTIONS:
        yield say("pass", f"{what}: {backend} does both", "", "", f"{DRAFT_BACKEND if own else flag} {backend}")
    else:
        yield say("warn", what + (f", and {backend} is named" if backend else ""),
                  "the drafter inherits the target's attention backend; one made for MLA cannot run it",
                  f"{flag} triton or flashinfer, or {DRAFT_BACKEND}", f"kv_lora_rank {p.target.kv_lora_rank} and none")
