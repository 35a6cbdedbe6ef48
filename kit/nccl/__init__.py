"""What the wiring of the GPUs and the NCCL settings mean for a launch: advice, each with its reason. Pure.

    advice(now.topology, now.gpus, unit.env, exp.serve.tp, unit.argv)

A rule sees the `Case` and gives findings. One page of cases with their verdicts: tests/fixtures/topology/cases.yaml.
Sources: NCCL user guide (environment variables; troubleshooting: PCI access control services), NCCL
src/graph/paths.cc (levels), SGLang and vLLM custom_all_reduce.py; those of the hangs stand beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.facts import Gpu
from kit.findings import Finding, Report
from kit.nccl import settings, wiring
from kit.nccl.case import Case
from kit.topology import Topology


def advice(topology: Topology, gpus: Sequence[Gpu], env: Mapping[str, str], tp: int,
           engine_args: Sequence[str] = (), claim: str = "") -> Report:
    """Findings on the traffic between `tp` GPUs: what slows or stops it, and what to do. None of them is a failure.

    env     of the server: CUDA_VISIBLE_DEVICES says which GPUs, NCCL_* what was chosen for it
    claim   what a write-up says of the links ("NVLink"); "" for nothing

    >>> advice(now.topology, now.gpus, {"NCCL_P2P_LEVEL": "5"}, 8)      # doctest: +SKIP
    """
    case = Case(topology, tuple(gpus), env, tp, tuple(engine_args), claim)
    title = f"traffic between {tp} GPUs" if tp > 1 else "one GPU"
    if tp == 1:
        return Report((Finding("gpu-links", "pass", "one GPU holds the whole model: GPUs need not talk"),), title)
    rules = (*(wiring.RULES if case.here > 1 else ()), *settings.RULES)
    return Report(tuple(f for rule in rules for f in rule(case)), title)
