"""What `--mem-fraction-static` divides, release by release, and what an engine needs beside it.

SGLang sizes the KV pool once the weights are loaded:

    KV bytes = free now − (1 − fraction) × free before the weights were loaded

so the fraction covers weights and KV cache; activations, CUDA graphs and everything else live in the rest. Whether
the drafter is inside the fraction depends on the release. Read in every listed wheel, `profile_max_num_token`, later
`_profile_available_bytes` (model_executor/, from 0.5.16 mem_cache/kv_cache_configurator.py), the pool configurator,
and when the drafter is loaded: from 0.5.14 before any pool (managers/scheduler.py `init_memory_pools`), earlier after.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit.lint.versions import Version, parse, show

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Budget:
    """How a span of releases spends the fraction.

    drafter_inside   False: weights and KV of an EAGLE or stand-alone drafter come on top, unbudgeted. True: both are
                     counted, its KV as if each of its layers took what a layer of the target takes
                     (sgl-project/sglang#23862).
    """

    first: Version
    last: Version
    drafter_inside: bool


SGLANG = (Budget((0, 4, 6), (0, 5, 13), False), Budget((0, 5, 14), (0, 5, 23), True))

# Gone before the weights are loaded: driver, CUDA context, communicators. H200, SGLang 0.5.12.post1: 1.2 GiB on one
# GPU; on two 2.1 GiB with P2P and custom all-reduce, 1.6 GiB without.
CONTEXT_GIB_ONE, CONTEXT_GIB_MORE = 1.2, 2.1


def budget(engine: str, version: Version | None, drafts: bool) -> Budget | None:
    """Of a release; None when it was not read. Without a drafter the releases read agree, so none need be named."""
    if engine != "sglang" or (version is None and drafts):
        return None
    return SGLANG[-1] if version is None else next((b for b in SGLANG if b.first <= version <= b.last), None)


def newest() -> str:
    return show(SGLANG[-1].last)


def context_gib(tp: int) -> float:
    return CONTEXT_GIB_ONE if tp == 1 else CONTEXT_GIB_MORE


def prefill_chunk(gpu_mib: float) -> int:
    """Tokens of one prefill step when nobody says (`_handle_gpu_memory_settings`, 0.5.12)."""
    return 2048 if gpu_mib < 35 * 1024 else 4096 if gpu_mib < 60 * 1024 else 8192 if gpu_mib < 160 * 1024 else 16384


def graph_batch(gpu_mib: float, tp: int) -> int:
    """Largest batch with a CUDA graph when nobody says; the capture stops at the running requests."""
    for below_gib, few, many in ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512)):
        if gpu_mib < below_gib * 1024:
            return few if tp < 4 else many
    return 512


def reserve_gib(gpu_mib: float, tp: int, graphs: bool, requests: int | None) -> float:
    """SGLang's rule of thumb for activations and graphs (0.5.12 `_handle_gpu_memory_settings`), MiB: 512, 1.5 for each
    token of a prefill chunk, 2 for each graph's batch, 1024 × tp / 8. It is cautious: less can do.

    >>> round(reserve_gib(143771, 1, True, 64), 2)
    12.75
    """
    batch = min(graph_batch(gpu_mib, tp), requests or 1 << 30) if graphs else 0
    return (512 + 1.5 * prefill_chunk(gpu_mib) + 2 * batch + 1024 * tp / 8) / 1024


def parse_engine(text: str) -> tuple[str, Version | None]:
    """>>> parse_engine("sglang==0.5.12.post1")
    ('sglang', (0, 5, 12))
    """
    name, _, number = str(text).partition("==")
    return name.strip().lower(), parse(number[:40]) if number else None
