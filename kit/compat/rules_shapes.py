"""Rules on widths, layers and vocabularies: arithmetic between two sets of facts, the same for every engine."""

from __future__ import annotations

from collections.abc import Iterator

from kit.compat.pair import Pair, Say, rule
from kit.findings import Finding
from kit.modelfacts import ModelFacts


def taken(p: Pair) -> int:
    """How many hidden states the head fuses."""
    if p.head.packaging == "eagle":
        return 1
    return len(p.aux_layers or ()) or 3


def fed_width(p: Pair) -> int | None:
    """Width of one hidden state the head expects. Of a head of another width that does not say, fc tells."""
    head = p.head
    silent = head.target_hidden_size is None and head.packaging == "eagle3" and head.hidden_size != p.target.hidden_size
    if silent and head.fc_in and head.fc_in % taken(p) == 0:
        return head.fc_in // taken(p)
    return head.fed_width


@rule("hidden-size")
def hidden_size(p: Pair, say: Say) -> Iterator[Finding]:
    if p.head is None:
        return
    fed, has = fed_width(p), p.target.hidden_size
    if not fed or not has:
        yield say("unknown", f"hidden sizes: target {has}, drafter expects {fed}", "one of them is not said")
    elif fed != has:
        yield say("fail", f"the drafter expects hidden states of width {fed}, the target has {has}",
                  "shapes will not multiply when the drafter is loaded or first run",
                  "use a drafter that was trained for this target")
    elif p.head.hidden_size and p.head.hidden_size != has:
        yield say("pass", f"hidden states of width {has}, projected to the drafter's own {p.head.hidden_size}")
    else:
        yield say("pass", f"both {has}")


@rule("fc-width")
def fc_width(p: Pair, say: Say) -> Iterator[Finding]:
    head, has = p.head, p.target.hidden_size
    if head is None or head.packaging not in ("eagle", "eagle3", "dflash"):
        return
    if head.packaging == "eagle":
        want, how = (2 * head.hidden_size if head.hidden_size else None), "embedding and hidden state"
    else:
        n = len(p.aux_layers or ()) or 3
        want, how = (n * has if has else None), f"{n} layers × {has}"
    if head.fc_in is None:
        yield say("unknown", f"fc should take {want} inputs ({how}); no header says what it takes",
                  fix="give the folder with its safetensors file")
    elif want is None:
        yield say("unknown", f"fc takes {head.fc_in} inputs; the target's hidden size is not said")
    elif head.fc_in != want:
        yield say("fail", f"fc takes {head.fc_in} inputs, it will be fed {want} ({how})",
                  "as many layers are captured as ids are listed; the concatenation must fill fc",
                  "the list of aux layer ids or the target is not the one it was trained with")
    elif head.fc_out and head.hidden_size and head.fc_out != head.hidden_size:
        yield say("fail", f"fc gives {head.fc_out} outputs, the drafter is {head.hidden_size} wide")
    else:
        yield say("pass", f"fc takes {head.fc_in} = {how}")


@rule("aux-layers")
def aux_layers(p: Pair, say: Say) -> Iterator[Finding]:
    head, depth = p.head, p.target.num_layers
    if head is None or head.packaging not in ("eagle3", "dflash", "dspark"):
        return
    ids = p.aux_layers
    named = head.aux_layer_ids is not None
    source = "named by the drafter" if named else "named by nobody, so the engine's default: inputs of 2, L/2, L-3"
    written = f"written as {list(head.aux_as_written)}" if head.aux_as_written else "no list in the file"
    if ids is None or not depth:
        yield say("unknown", "which target layers are captured cannot be told",
                  "the number of the target's layers is not said" if not depth else "the drafter names none",
                  evidence=written)
        return
    text = f"outputs of target layers {list(ids)} of {depth} ({source})"
    # one past the last captured input does not exist: engines capture inside the loop over layers
    low, high = (0, depth - 2) if p.on("sglang") else (-1, depth - 1)
    outside = [i for i in ids if not low <= i <= high]
    if outside or len(set(ids)) < len(ids):
        why = (f"{p.engine} captures the input of layer id+1, inside its loop over {depth} layers" if outside
               else "a layer that is listed twice is captured once, and fc gets too few inputs")
        yield say("fail", f"{text}: {outside or list(ids)} cannot be captured", why,
                  "the drafter belongs to a target of another depth, or its ids count in another convention"
                  if named else "list the layers it was trained with in its config", written)
    elif list(ids) != sorted(ids):
        yield say("warn", f"{text}: not ascending",
                  "engines join the captured states in the order of layers, not of the list", evidence=written)
    else:
        yield say("pass", text, evidence=written)


@rule("target-depth")
def target_depth(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or head.target_layers is None:
        return
    if not p.target.num_layers:
        yield say("unknown", f"the drafter was made for {head.target_layers} layers; the target's number is not said")
    elif head.target_layers != p.target.num_layers:
        yield say("fail", f"the drafter was made for a target of {head.target_layers} layers, "
                  f"this one has {p.target.num_layers}", "its layer ids mean other layers here",
                  "use a drafter of this target")
    else:
        yield say("pass", f"made for {head.target_layers} layers, as the target has")


@rule("vocab")
def vocab(p: Pair, say: Say) -> Iterator[Finding]:
    if p.head is None:
        return
    own, theirs = p.head.vocab_size, p.target.vocab_size
    if not own or not theirs:
        yield say("unknown", f"vocabularies: target {theirs}, drafter {own}", "one of them is not said")
    elif own != theirs:
        yield say("fail", f"the target knows {theirs} token ids, the drafter {own}",
                  "a head shares the target's ids and embedding; another number means another tokenizer",
                  "use a drafter that was trained for this target")
    else:
        yield say("pass", f"both {own}")


@rule("draft-vocab")
def draft_vocab(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or head.packaging != "eagle3":
        return
    drafts, whole, d2t = head.draft_vocab_size, head.vocab_size, head.d2t
    limit = p.target.vocab_size or whole
    bad = list(_contradictions(head, limit))
    for what, why in bad:
        yield say("fail", what, why, "fetch the drafter again, or report it to its publisher")
    if bad:
        return
    if drafts and whole and drafts < whole and head.has_d2t is None:
        yield say("unknown", f"it drafts from {drafts} of {whole} ids; no header says whether d2t is there",
                  "without that table draft ids would be taken as target ids: accept length 1.00",
                  "give the folder with its safetensors file")
    elif d2t is None:
        whole_text = f"all {whole or drafts or 'the target’s'} ids"
        yield say("pass", f"drafts from {whole_text}, so it needs no d2t")
    elif d2t.highest is None:
        yield say("pass", f"d2t maps {d2t.length} draft ids; its range was not read")
    else:
        yield say("pass", f"d2t maps {d2t.length} draft ids into {d2t.lowest}…{d2t.highest} of {limit}")


def _contradictions(head: ModelFacts, limit: int | None) -> Iterator[tuple[str, str]]:
    drafts, whole, d2t = head.draft_vocab_size, head.vocab_size, head.d2t
    if drafts and whole and drafts > whole:
        yield f"it drafts from {drafts} ids, more than its vocabulary of {whole}", ""
    if drafts and whole and drafts < whole and head.has_d2t is False:
        yield (f"it drafts from {drafts} of {whole} ids and has no d2t table",
               "draft ids would be taken as target ids: it runs, at accept length 1.00")
    if d2t and drafts and d2t.length != drafts:
        yield f"d2t has {d2t.length} entries for {drafts} draft ids", "ids past its end index out of bounds"
    if head.t2d_length and whole and head.t2d_length != whole:
        yield f"t2d has {head.t2d_length} entries for {whole} ids", "it was made for another vocabulary"
    if head.lm_head_rows and drafts and head.lm_head_rows != drafts:
        yield f"lm_head has {head.lm_head_rows} rows for {drafts} draft ids", "the tensor will not load"
    if d2t and d2t.highest is not None and limit and not (0 <= d2t.lowest and d2t.highest < limit):
        yield (f"d2t points at ids {d2t.lowest}…{d2t.highest}, the target has {limit}",
               "an index out of bounds while drafting: a CUDA device-side assert")
    if d2t and d2t.distinct is False:
        yield "d2t gives two draft ids the same target id", "it was written as ids where offsets belong, or is damaged"


@rule("embedding")
def embedding(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None:
        return
    same = head.hidden_size is None or p.target.hidden_size is None or head.hidden_size == p.target.hidden_size
    if not same and head.has_embed is False:
        yield say("fail", f"no embed_tokens, and a width of {head.hidden_size} that cannot share the target's "
                  f"{p.target.hidden_size}", "embeddings are shared only between equal widths",
                  "use a head that ships its own embedding")
    elif not same and head.has_embed is None:
        yield say("unknown", f"widths differ ({head.hidden_size} and {p.target.hidden_size}), so it must ship its own "
                  "embed_tokens; no header says", fix="give the folder with its safetensors file")
    elif head.has_embed:
        yield say("pass", "has its own embed_tokens" + (", which the target's replaces" if same else ""))
    elif head.has_embed is False:
        yield say("pass", "shares the target's embedding")


@rule("attention-shape")
def attention_shape(p: Pair, say: Say) -> Iterator[Finding]:
    for role, facts in (("target", p.target), ("drafter", p.drafter)):
        if facts is None or not facts.num_heads or facts.kv_lora_rank:
            continue
        heads, kv = facts.num_heads, facts.num_kv_heads or facts.num_heads
        if heads % kv:
            yield say("fail", f"the {role}'s {heads} heads do not divide into {kv} key-value heads")
        elif facts.q_out and facts.head_dim and facts.q_out not in (heads * facts.head_dim, 2 * heads * facts.head_dim):
            # twice as wide: the query carries its output gate
            yield say("fail", f"the {role}'s query projection gives {facts.q_out}, {heads} heads of {facts.head_dim} "
                      f"need {heads * facts.head_dim}", "its config is of another model than its weights")
        elif role == "drafter" and facts.qkv_in and facts.hidden_size and facts.packaging == "eagle3" \
                and facts.qkv_in != 2 * facts.hidden_size:
            yield say("fail", f"the drafter's attention takes {facts.qkv_in} inputs, an EAGLE-3 head takes "
                      f"2 × {facts.hidden_size}", "embedding and features go in side by side")
        elif role == "drafter":
            yield say("pass", f"{heads} heads, {kv} key-value heads, head width {facts.head_dim}")
