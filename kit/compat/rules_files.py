"""Rules on the files themselves and on how the drafter is packaged."""

from __future__ import annotations

from collections.abc import Iterator

from kit.compat.pair import FOR_PACKAGING, NEEDS, Pair, Say, rule
from kit.findings import Finding

WORDS = {"plain": "a whole model", "eagle": "an EAGLE-1/2 head", "eagle3": "an EAGLE-3 head", "dflash": "a DFlash head",
         "dspark": "a DSpark head", "unknown": "of no packaging that is known here"}


@rule("files")
def files(p: Pair, say: Say) -> Iterator[Finding]:
    for role, facts in (("target", p.target), ("drafter", p.drafter)):
        for problem in facts.problems if facts else ():
            yield say("fail", f"{role}: {problem}", "the engine will stop at it, or run with a part of the weights",
                      "fetch that file again", facts.name)


@rule("format")
def format_(p: Pair, say: Say) -> Iterator[Finding]:
    for role, facts in (("target", p.target), ("drafter", p.drafter)):
        if facts is None:
            continue
        if p.on("llamacpp") and facts.format != "gguf":
            yield say("fail", f"the {role} is a Hugging Face folder, {p.engine} reads GGUF", "",
                      "convert it with convert_hf_to_gguf.py" + (" --target-model-dir TARGET" if facts.is_head else ""))
        elif not p.on("llamacpp") and facts.format == "gguf" and facts.is_head:
            yield say("fail", f"the drafter is a GGUF, {p.engine} reads drafting heads from safetensors folders", "",
                      "use the Hugging Face folder it was converted from")


@rule("packaging")
def packaging(p: Pair, say: Say) -> Iterator[Finding]:
    drafter, wanted = p.drafter, NEEDS.get(p.algorithm)
    if drafter is None:
        if wanted:
            yield say("fail", f"{p.engine.spelled(p.algorithm)} drafts with {WORDS[wanted[0]]}; none is named", "",
                      "name a drafter, or choose another algorithm")
        return
    is_ = f"the drafter is {WORDS[drafter.packaging]}"
    if p.algorithm in ("none", "ngram", "suffix"):
        yield say("warn", f"{p.engine.spelled(p.algorithm)} uses no drafter; the one named is not loaded", is_,
                  f"choose {p.engine.spelled(FOR_PACKAGING.get(drafter.packaging, 'none'))} to use it")
    elif drafter.packaging == "unknown":
        yield say("unknown", "what kind of drafter this is cannot be told", drafter.packaging_why,
                  "its safetensors header would tell", drafter.summary())
    elif wanted and drafter.packaging in wanted:
        yield say("pass", f"{is_}, as {p.engine.spelled(p.algorithm)} needs", evidence=drafter.packaging_why)
    elif wanted:
        yield _wrong(p, say, is_)


def _wrong(p: Pair, say: Say, is_: str) -> Finding:
    drafter = p.drafter
    right = p.engine.spelled(FOR_PACKAGING[drafter.packaging])
    what, fix = f"{is_}, {p.engine.spelled(p.algorithm)} cannot use it", f"choose {right}, or another drafter"
    if (p.algorithm, drafter.packaging) == ("eagle", "eagle3"):
        why = ("EAGLE hands over one hidden state where this head fuses several; the widths happen to fit, so it runs "
               "without an error at an accept length near 1 (1.07 was measured)")
        verdict = "warn" if p.on("vllm") else "fail"
        return say(verdict, what, why, f"set the algorithm to {right}", drafter.packaging_why)
    if (p.algorithm, drafter.packaging) == ("eagle3", "eagle"):
        why = "it has no draft vocabulary and takes one hidden state, EAGLE-3 hands over several"
        fix = f"use the EAGLE3 sibling that its publisher may have, or choose {right}"
    else:
        why = drafter.packaging_why
    return say("fail", what, why, fix, drafter.packaging_why)


@rule("mtp")
def mtp(p: Pair, say: Say) -> Iterator[Finding]:
    if p.algorithm != "mtp":
        return
    t = p.target
    if not t.mtp_layers and not t.has_mtp_weights:
        yield say("fail" if t.num_layers else "unknown", "the target has no multi-token-prediction layer",
                  "its config names no num_nextn_predict_layers", "use a separate drafter", t.summary())
    elif t.has_mtp_weights is False:
        layer = f"layer {t.num_layers} " if t.num_layers else ""
        yield say("fail", f"the weights of the MTP layer ({layer}and above) are not in this checkpoint",
                  "some quantised uploads dropped them", "use a checkpoint that kept them",
                  f"num_nextn_predict_layers {t.mtp_layers}")
    elif t.has_mtp_weights is None:
        yield say("unknown", f"the config names {t.mtp_layers} MTP layers; no header says whether they are there",
                  fix="give the folder with its safetensors index")
    else:
        yield say("pass", f"{t.mtp_layers or 'its'} MTP layer(s) with their weights")
