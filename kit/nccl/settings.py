"""Rules on what was set: the NCCL_* variables of a config, against what is there."""

from __future__ import annotations

from collections.abc import Iterator

from kit.findings import Finding
from kit.nccl.case import LEVELS, Case, Rule
from kit.topology import counted, distance

# What NCCL chooses by itself, for each message size anew; a setting holds for all sizes.
FORCED = {
    "NCCL_PROTO": "LL is quick for small messages and has half the bandwidth for large ones, as of a prefill",
    "NCCL_ALGO": "Ring waits once per rank, Tree once per doubling; which is faster depends on the message",
    "NCCL_MIN_NCHANNELS": "each channel takes a block of the GPU from the model's kernels",
    "NCCL_MAX_NCHANNELS": "fewer channels may leave bandwidth unused",
    "NCCL_BUFFSIZE": "a buffer per channel and peer: GPU memory that the model does not get",
    "NCCL_NTHREADS": "512 is NCCL's own choice on recent GPUs",
}


def p2p_disabled(c: Case) -> Iterator[Finding]:
    if c.env.get("NCCL_P2P_DISABLE") != "1":
        return
    if c.level is not None:
        yield Finding("nccl-p2p-level", "warn", "NCCL_P2P_LEVEL has no effect: NCCL_P2P_DISABLE=1 wins", "",
                      "take one of them out")
    if c.p2p_ok is False and not any(link.startswith("NV") for link in c.links.values()):
        yield Finding("nccl-p2p-disabled", "pass", "NCCL_P2P_DISABLE=1 changes little: the driver gives no P2P here")
        return
    lost = "NVLink is not used" if "NV" in "".join(c.links.values()) else "all passes through the host's memory"
    yield Finding("nccl-p2p-disabled", "warn", f"NCCL_P2P_DISABLE=1: {lost}", "it mends a hang, and costs bandwidth",
                  "measure without it, and keep it only where that hangs")


def p2p_level(c: Case) -> Iterator[Finding]:
    said, level = c.env.get("NCCL_P2P_LEVEL"), c.level
    if said is None or c.env.get("NCCL_P2P_DISABLE") == "1":
        return
    name = f"NCCL_P2P_LEVEL={said}" + ("" if said == level else f", which is {level},")
    write = "" if said == level else f"write {level}: what the numbers mean has changed between releases; "
    if not level:
        yield Finding("nccl-p2p-level", "warn", f"NCCL_P2P_LEVEL={said} is no level: NCCL passes over it", "",
                      f"one of {', '.join(LEVELS)}")
    elif not c.known:
        yield Finding("nccl-p2p-level", "unknown", f"{name} could not be compared with the links")
    elif level == "LOC":
        yield Finding("nccl-p2p-level", "warn", f"{name} switches P2P off", "all passes through the host's memory",
                      f"{write}measure without it")
    elif far := [link for link in c.links.values() if distance(link) > distance(LEVELS[level])]:
        yield Finding("nccl-p2p-level", "warn", f"{name} leaves {len(far)} of {len(c.links)} pairs without P2P",
                      f"{counted(far)} pairs are farther apart, and go through the host's memory",
                      f"{write}measure with the level of the farthest pair, and without it")
    elif c.p2p_ok is False:
        yield Finding("nccl-p2p-level", "warn", f"{name} asks for P2P that the driver does not give", "see gpu-p2p",
                      f"{write}take it out, or mend P2P")
    elif "SYS" in c.links.values():
        yield Finding("nccl-p2p-level", "warn", f"{name} sends P2P also between the processors", "NCCL's own choice "
                      "stops nearer on many hosts; which is faster differs", f"{write}measure with and without it")
    elif said != level:
        yield Finding("nccl-p2p-level", "warn", f"{name} admits all pairs", "", f"{write}or take it out")
    else:
        yield Finding("nccl-p2p-level", "pass", f"{name} admits all pairs")


def network(c: Case) -> Iterator[Finding]:
    nics, off = c.topology.nics, c.env.get("NCCL_IB_DISABLE") == "1"
    if c.nodes == 1:
        if off:
            yield Finding("nccl-ib", "pass", "NCCL_IB_DISABLE=1 changes nothing on one host"
                          + (", whose GPUs need no NIC" if nics else ""))
        return
    if nics is None:
        yield Finding("nccl-ib", "unknown", f"{c.nodes} hosts share the model, and this one's NICs could not be read")
        return
    rdma = [n.name for n in nics if n.rdma and n.up]
    if off and rdma:
        yield Finding("nccl-ib", "warn", f"NCCL_IB_DISABLE=1 leaves {', '.join(rdma)} unused: {c.nodes} hosts talk "
                      "over TCP", "", "take it out")
    elif not rdma:
        yield Finding("nccl-ib", "warn", f"no RDMA NIC is up here: {c.nodes} hosts talk over TCP",
                      "each all-reduce waits for it")
    else:
        yield Finding("nccl-ib", "pass", f"RDMA over {', '.join(rdma)}")


def forced(c: Case) -> Iterator[Finding]:
    there = {k: c.env[k] for k in FORCED if k in c.env}
    if there:
        yield Finding("nccl-forced", "warn", " ".join(f"{k}={v}" for k, v in there.items()) + ": set by hand, for all "
                      "message sizes", "; ".join(f"{k}: {FORCED[k]}" for k in there),
                      "sweep them at the sizes that this model sends, and take out what wins nothing")
    low, high = (c.env.get(f"NCCL_{which}_NCHANNELS", "") for which in ("MIN", "MAX"))
    if low.isdecimal() and high.isdecimal() and int(low) > int(high):
        yield Finding("nccl-channels", "warn", f"NCCL_MIN_NCHANNELS={low} is more than NCCL_MAX_NCHANNELS={high}",
                      fix="take both out")


RULES: tuple[Rule, ...] = (p2p_disabled, p2p_level, network, forced)
