"""Rules on what an engine release knows: classes, and a few things only it does."""

from __future__ import annotations

from collections.abc import Iterator

from kit.compat.classes import first_release, newest
from kit.compat.pair import Pair, Say, rule
from kit.findings import Finding
from kit.lint.versions import neighbours, parse, show
from kit.modelfacts import ModelFacts

EAGLE_CLASSES = {"eagle3": "LlamaForCausalLMEagle3", "eagle": "LlamaForCausalLMEagle"}
# vLLM's own list: part of the target's model_type
VLLM_EAGLE3_TYPES = {
    "0.9.2": ("llama",),
    "0.11.0": ("llama", "qwen", "minicpm", "gpt_oss"),
    "0.14.1": ("llama", "qwen", "minicpm", "gpt_oss"),
    "0.18.1": ("llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe", "nemotron_h",
               "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"),
}


@rule("engine-version")
def engine_version(p: Pair, say: Say) -> Iterator[Finding]:
    if p.support is None and p.engine.version and (last := newest(p.engine.name)):
        yield say("unknown", f"{p.engine} is not among the releases that were read",
                  f"they end at {last}; what a newer one knows cannot be told offline",
                  "read the installed engine on the host: --host NAME --engine-python PATH")


def _no_table(p: Pair, say: Say, what: str) -> Finding:
    if p.engine.name == "any":
        return say("unknown", f"{what}: no engine is named", "", "name it, e.g. sglang==0.5.12")
    if p.engine.version is None:
        return say("unknown", f"{what}: the engine's version is not said", "", f"name it, e.g. {p.engine.name}==1.2.3")
    last = newest(p.engine.name)
    return say("unknown", f"{what}: {p.engine} is not in the table", f"the newest that was read is {last}" if last
               else "there is no table for this engine", "read the installed engine on the host instead")


@rule("target-class")
def target_class(p: Pair, say: Say) -> Iterator[Finding]:
    arch = p.target.architecture
    if p.on("llamacpp") or p.target.format == "gguf":
        return
    if not arch:
        yield say("unknown", "the target's class is not said")
        return
    if p.on("vllm") and p.algorithm == "eagle3" and (refused := _vllm_refuses(p)):
        yield say("fail", *refused)
        return
    if p.support is None:
        yield _no_table(p, say, f"target class {arch}")
        return
    known, ability = p.support.has(arch), {"eagle3": "eagle3", "dflash": "dflash"}.get(p.algorithm)
    captures = p.support.has(arch, ability) if ability else True
    if known is False and p.on("vllm"):
        yield say("unknown", f"{p.engine} has no class of its own for {arch}",
                  "it may serve it through the Transformers library, which is not read here",
                  "try it without a drafter first", p.support.source)
    elif known is False:
        since = first_release(p.engine.name, arch)
        yield say("fail", f"{p.engine} does not know the target class {arch}",
                  "“Model architectures … are not supported for now”", f"{p.engine.name} {since} and later do" if since
                  else "no release that was read knows it", p.support.source)
    elif captures is False:
        since = first_release(p.engine.name, arch, ability)
        yield say("fail", f"{p.engine}: target class {arch} hands no hidden states to {p.engine.spelled(p.algorithm)}",
                  f"set_{ability}_layers_to_capture is missing, or inherited and set on layers that do not look at it: "
                  "the launch ends after the target was loaded, or nothing sensible is drafted"
                  if p.on("sglang") else "it is no SupportsEagle3; the launch ends after the target was loaded",
                  f"{p.engine.name} {since} and later do" if since else "no release that was read does",
                  p.support.source)
    elif known is None or captures is None:
        yield say("unknown", f"target class {arch}: the releases around {p.engine} differ", "", "", p.support.source)
    else:
        more = f" and hands over hidden states for {p.engine.spelled(p.algorithm)}" if ability else ""
        yield say("pass", f"{arch} is known{more}", evidence=p.support.source)


def _vllm_refuses(p: Pair) -> tuple[str, str, str] | None:
    """vLLM compared the target's model_type with a list, up to 0.18.1 or a little later. Refused where the releases
    around this one both do."""
    around = neighbours(p.engine.version, [parse(v) for v in VLLM_EAGLE3_TYPES]) if p.engine.version else (None, None)
    if None in around or not p.target.model_type:
        return None
    types = sorted({t for version in around for t in VLLM_EAGLE3_TYPES[show(version)]})
    if any(t in p.target.model_type for t in types):
        return None
    return (f"{p.engine} takes eagle3 only for some types of target; {p.target.model_type} is none of them",
            "“Eagle3 is only supported for … models”", f"a later release, or SGLang (it takes {', '.join(types)})")


@rule("own-width")
def own_width(p: Pair, say: Say) -> Iterator[Finding]:
    head, has = p.head, p.target.hidden_size
    if head is None or head.packaging != "eagle3" or not head.hidden_size or not has or head.hidden_size == has:
        return
    what = f"the drafter is {head.hidden_size} wide, the target {has}"
    if p.on("vllm") and p.since("0.9.1") is False:
        yield say("fail", what, f"{p.engine} takes both for equal: “assert hidden_states.shape[-1] == "
                  "input_embeds.shape[-1]”", "a later vLLM, or SGLang")
    elif p.on("vllm", "llamacpp", "any"):
        yield say("unknown", what, "whether this release allows for it was not read")


@rule("naming")
def naming(p: Pair, say: Say) -> Iterator[Finding]:
    head = p.head
    if head is None or head.format == "gguf" or head.has_embed is None:
        return
    bias = "" if head.fc_bias is None else f", fc {'with' if head.fc_bias else 'without'} bias"
    text = f"tensors are named {head.naming or 'in no way that is known here'}.*{bias}"
    if head.packaging == "eagle" and p.on("vllm") and p.since("0.9.2") is not True:
        yield say("unknown", text, "early vLLM wanted a converted EAGLE head (eagle_fc_bias, other names); one in its "
                  "original form failed to load, or ran with accept rates below 0.1", "vLLM 0.9.2 or later")
    else:
        yield say("pass", text)


@rule("drafter-class")
def drafter_class(p: Pair, say: Say) -> Iterator[Finding]:
    d = p.drafter
    if d is None or p.on("llamacpp") or d.format == "gguf" or p.algorithm in ("none", "ngram", "suffix", "mtp"):
        return
    arch, usual = d.architecture, EAGLE_CLASSES.get(d.packaging)
    if not arch:
        yield say("unknown", "the drafter's class is not said")
    elif p.on("sglang") and usual and d.packaging == p.algorithm and "eagle" not in arch.lower():
        yield say("fail", f"the drafter says class {arch}; {p.engine} goes by that name and would load a whole model",
                  "heads are published so for engines that go by the method",
                  f'set "architectures": ["{usual}"] in a copy of its config.json')
    elif p.support is None:
        yield _no_table(p, say, f"drafter class {arch}")
    elif (known := p.support.has(asked := _asked_for(p, d))) is None:
        yield say("unknown", f"drafter class {asked}: the releases around {p.engine} differ", "", "", p.support.source)
    elif not known and p.on("vllm") and d.packaging == "plain":
        yield say("unknown", f"{p.engine} has no class of its own for {arch}",
                  "it may serve it through the Transformers library, which is not read here", "", p.support.source)
    elif not known:
        since = first_release(p.engine.name, asked)
        fix = f"{p.engine.name} {since} and later do" if since else "use a head in another format"
        if d.speculators and p.on("sglang"):
            fix = f"this is the speculators layout: convert it to {usual}, or serve it with vLLM"
        yield say("fail", f"{p.engine} does not know the drafter class {asked}",
                  "“Model architectures … are not supported for now”", fix, p.support.source)
    else:
        yield say("pass", f"{asked} is known" + (f" ({arch} to {p.engine.title})" if asked != arch else ""),
                  evidence=p.support.source)


def _asked_for(p: Pair, d: ModelFacts) -> str:
    """The class that the engine's registry is asked for: vLLM puts the method's name before it
    (transformers_utils/configs/eagle.py), and knows one class for each kind of speculators head (speculators/algos.py).
    """
    arch, method = d.architecture, {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}.get(p.algorithm)
    if not p.on("vllm") or not method:
        return arch
    if d.speculators:
        return {"eagle3": "Eagle3LlamaForCausalLM", "dflash": "DFlashDraftModel"}.get(p.algorithm, arch)
    own = arch.startswith(method) or (method != "Eagle" and p.since("0.11.0") is not False and arch.endswith(method))
    return arch if own else method + arch
