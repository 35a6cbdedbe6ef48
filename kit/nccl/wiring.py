"""Rules on what is there: links, processors, P2P, IOMMU, and hosts that have hung."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kit.findings import Finding
from kit.nccl.case import Case, Rule
from kit.topology import counted

# (pattern of the GPU's name, what was seen, source)
HANGS = (
    (r"RTX PRO 6000", "the first all-reduce over PCIe P2P has hung on hosts with this GPU, the driver said OK; "
     "IOMMU and ACS were the cause where one was found", "NVIDIA/nccl#1999, vllm-project/vllm#33041"),
    (r"RTX 4090", "all-reduce over PCIe P2P has hung on hosts with this GPU", "NVIDIA/nccl-tests#117"),
)


def links(c: Case) -> Iterator[Finding]:
    if not c.known:
        why = "nvidia-smi topo -m gave no table" if c.ranks else "which GPUs the server will see cannot be told"
        yield Finding("gpu-links", "unknown", "how these GPUs are linked could not be read", why,
                      "run nvidia-smi topo -m on the host")
        return
    said = counted(c.links.values())
    if c.nvlinked:
        yield Finding("gpu-links", "pass", "NVLink between all of them", evidence=said)
        return
    some = "only some of them have NVLink" if any(k.startswith("NV") for k in c.links.values()) else "no NVLink"
    yield Finding("gpu-links", "warn", f"{some}: {said} pairs", "every layer waits for its all-reduce over PCIe, "
                  "at each verify step too, and larger batches send more", "measure the all-reduce at the sizes that "
                  "this model sends; compare fewer GPUs where the model fits", said)


def claimed(c: Case) -> Iterator[Finding]:
    asked = ["the write-up"] if "nvlink" in c.claim.lower() else []
    asked += [f"{k}={v}" for k, v in c.env.items() if (k, v) in (("NCCL_P2P_LEVEL", "NVL"), ("NCCL_NVLS_ENABLE", "1"))]
    asked += [word for word in c.args if word == "--enable-nccl-nvls"]
    if not asked:
        return
    if not c.known:
        yield Finding("nvlink-claimed", "unknown", f"{', '.join(asked)} counts on NVLink, and the links were not read")
    elif not any(link.startswith("NV") for link in c.links.values()):
        yield Finding("nvlink-claimed", "warn", f"{', '.join(asked)} counts on NVLink, and there is none",
                      f"nvidia-smi topo -m shows {counted(c.links.values())}", "believe what was seen")


def custom_all_reduce(c: Case) -> Iterator[Finding]:
    if "--disable-custom-all-reduce" in c.args:
        yield Finding("custom-all-reduce", "pass", "switched off: NCCL does it")
    elif c.known and not c.nvlinked and c.tp > 2:
        yield Finding("custom-all-reduce", "warn", f"the engine's own all-reduce will be off: {c.tp} GPUs without "
                      "NVLink between all", "SGLang and vLLM use it on more than two GPUs only with NVLink between "
                      "all; NCCL's takes longer for the small messages of decoding",
                      "nothing to set; --disable-custom-all-reduce says it openly")
    elif c.p2p_ok is False:
        yield Finding("custom-all-reduce", "warn", "the engine's own all-reduce needs P2P, and not all pairs have it",
                      "SGLang has died of it: peer access is not supported between these two devices",
                      "engine.args: --disable-custom-all-reduce")


def sockets(c: Case) -> Iterator[Finding]:
    where = {g: c.topology.numa[g] for g in c.ranks or () if g in c.topology.numa}
    across = "SYS" in c.links.values() or len(set(where.values())) > 1
    if not across:
        known = c.known or len(where) == c.here
        yield Finding("gpu-sockets", "pass", "all on one NUMA node") if known else \
            Finding("gpu-sockets", "unknown", "which NUMA nodes they are on could not be read")
        return
    nodes = {n: [g for g in sorted(where) if where[g] == n] for n in sorted(set(where.values()))}
    at = "; ".join(f"node {n}: GPU {', '.join(map(str, there))}" for n, there in nodes.items())
    if c.nvlinked:
        yield Finding("gpu-sockets", "pass", "on several NUMA nodes, joined by NVLink", evidence=at)
        return
    groups = [[g for g, n in sorted(c.topology.numa.items()) if n == node] for node in set(c.topology.numa.values())]
    near = next((g[:c.here] for g in sorted(groups) if len(g) >= c.here), None)
    yield Finding("gpu-sockets", "warn", "they are on several NUMA nodes" + (f" ({at})" if at else ""),
                  "what passes between the processors is slower than PCIe within one, and all wait for it",
                  f"engine.env: CUDA_VISIBLE_DEVICES: \"{','.join(map(str, near))}\"" if near else
                  f"no node has {c.here} GPUs: compare tensor parallel within a node", at)


def p2p(c: Case) -> Iterator[Finding]:
    bad = [f"{a}-{b} {state}" for (a, b), state in c.p2p.items() if state not in ("OK", "U", "")]
    if bad:
        yield Finding("gpu-p2p", "warn", f"no direct access between {len(bad)} of {len(c.p2p)} pairs",
                      "NCCL then copies through the host's memory",
                      "IOMMU, ACS, the driver and the kind of GPU decide it", ", ".join(bad))
    elif c.p2p_ok:
        yield Finding("gpu-p2p", "pass", "direct access (P2P) between all of them, says the driver")
    else:
        yield Finding("gpu-p2p", "unknown", "whether they have direct access could not be read",
                      fix="run nvidia-smi topo -p2p r on the host")


def iommu(c: Case) -> Iterator[Finding]:
    if c.nvlinked or c.p2p_off:
        return                                          # nothing passes between GPUs over PCIe directly
    i, found = c.topology.iommu, []
    if i.translates:
        found.append("the IOMMU translates the GPUs' accesses")
    if i.acs and i.acs[0]:
        found.append(f"access control (ACS) is on at {i.acs[0]} of {i.acs[1]} PCI bridges")
    seen = "; ".join(filter(None, (" ".join(i.words), ", ".join(sorted(set(i.domains.values()))))))
    if found:
        yield Finding("iommu", "warn", " and ".join(found), "P2P between GPUs then goes through the processor, "
                      "slower, and has hung", "where no virtual machines need it: iommu=pt or off on the kernel's "
                      "command line, ACS off in the BIOS", seen)
    elif i.vm:
        yield Finding("iommu", "unknown", "a virtual machine: IOMMU and ACS of the machine below cannot be seen")
    elif i.translates is None or i.acs is None:
        what = "IOMMU" if i.translates is None else "ACS"
        yield Finding("iommu", "unknown", f"{what}: could not be read", "lspci shows ACS only to root" if what == "ACS"
                      else "", "on the host: sudo lspci -vvv | grep ACSCtl; SrcValid+ means on", seen)
    else:
        yield Finding("iommu", "pass", "neither IOMMU nor ACS is in the way of P2P", evidence=seen)


def hangs(c: Case) -> Iterator[Finding]:
    if c.nvlinked or c.p2p_off or c.p2p_ok is False:
        return
    for pattern, seen, source in HANGS:
        if re.search(pattern, c.names):
            yield Finding("p2p-hang", "warn", f"{c.names}: P2P over PCIe may hang", seen, "try one all-reduce before "
                          "the model is loaded; if it hangs: IOMMU and ACS off, a newer driver, else "
                          "NCCL_P2P_DISABLE=1, which is slower", source)


def mig(c: Case) -> Iterator[Finding]:
    if on := [g.index for g in c.gpus if g.mig and g.index in (c.ranks or ())]:
        yield Finding("gpu-mig", "warn", f"MIG is on at GPU {', '.join(map(str, on))}", "its slices have no P2P among "
                      "them, and a server that asks for whole GPUs sees one slice", "MIG off, or tp: 1 per slice")


RULES: tuple[Rule, ...] = (links, claimed, custom_all_reduce, sockets, p2p, iommu, hangs, mig)
