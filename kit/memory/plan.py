"""The plan as a value: what of each GPU's memory goes where, and how many tokens and requests that leaves room for."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from kit.findings import Report
from kit.memory.budget import GIB


@dataclass(frozen=True)
class MemoryPlan:
    """GiB are of *each* GPU; None: not known, and a finding says why.

    free_gib           before the weights are loaded
    target_gib         weights of the target there; `target_basis` "headers", "file sizes" or "estimate"
    drafter_gib        weights of the drafter that stay; drafter_load_gib: what its loading takes, as a log prints it
    kv_bytes           per token, of the target; draft_kv_bytes: of the drafter, for the same tokens
    kv_tokens          tokens the cache holds, over all GPUs (`max_total_num_tokens`)
    tokens_per_request the context, and the draft tokens in flight
    requests           of that length, at once
    left_gib           for activations and CUDA graphs; reserve_gib: the engine's own rule of thumb for them
    report             findings

    >>> plan.kv_tokens, plan.requests, plan.report.ok
    (930665, 453, True)
    """

    engine: str
    gpu_gib: float | None = None
    tp: int = 1
    mem_fraction_static: float | None = None
    free_gib: float | None = None
    target_gib: float | None = None
    target_basis: str = ""
    drafter_gib: float | None = 0.0
    drafter_load_gib: float | None = 0.0
    drafter_basis: str = ""
    kv_bytes: int | None = None
    draft_kv_bytes: int | None = 0
    kv_tokens: int | None = None
    context: int | None = None
    tokens_per_request: int | None = None
    max_running_requests: int | None = None
    reserve_gib: float | None = None
    report: Report = field(default=Report(()), repr=False)

    @property
    def kv_gib(self) -> float | None:
        return _gib(self.kv_tokens, self.kv_bytes)

    @property
    def draft_kv_gib(self) -> float | None:
        return _gib(self.kv_tokens, self.draft_kv_bytes)

    @property
    def requests(self) -> int | None:
        if self.kv_tokens is None or not self.tokens_per_request:
            return None
        return self.kv_tokens // self.tokens_per_request

    @property
    def left_gib(self) -> float | None:
        taken = (self.target_gib, self.kv_gib, self.drafter_gib, self.draft_kv_gib)
        return None if self.free_gib is None or None in taken else self.free_gib - sum(taken)

    @property
    def ok(self) -> bool:
        return self.report.ok

    def bars(self) -> list[tuple[str, float]]:
        """(what, GiB of each GPU), from the bottom of a stacked bar up; what is not known is left out."""
        outside = None if self.gpu_gib is None or self.free_gib is None else self.gpu_gib - self.free_gib
        rows = [("driver and communication", outside), ("target weights", self.target_gib), ("target KV", self.kv_gib),
                ("drafter weights", self.drafter_gib), ("drafter KV", self.draft_kv_gib),
                ("activations and graphs", self.left_gib)]
        return [(name, gib) for name, gib in rows if gib is not None]

    def rows(self) -> list[tuple[str, str]]:
        """(fact, value) for a reader."""
        count = "unknown" if self.kv_tokens is None else f"{self.kv_tokens:,}"
        per = "unknown" if self.kv_bytes is None else f"{self.kv_bytes:,} B"
        more = f" + {self.draft_kv_bytes:,} B drafter" if self.draft_kv_bytes else ""
        fit = "unknown" if self.requests is None else f"{self.requests:,} of {self.tokens_per_request:,} tokens"
        return [("engine", self.engine), ("GPUs", f"{self.tp} × {_show(self.gpu_gib)}"),
                ("free before loading", _show(self.free_gib)),
                ("target weights", _show(self.target_gib, self.target_basis)), ("target KV", _show(self.kv_gib)),
                ("drafter weights", _show(self.drafter_gib, self.drafter_basis)),
                ("drafter KV", _show(self.draft_kv_gib)), ("left", _show(self.left_gib)),
                ("rule of thumb for it", _show(self.reserve_gib)), ("KV per token", per + more), ("KV tokens", count),
                ("requests at once", fit)]

    def __repr__(self) -> str:
        rows = self.rows()
        width = max(len(k) for k, _ in rows)
        return "\n".join([*(f"{k:{width}}  {v}" for k, v in rows), "", repr(self.report)])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th style='text-align:left'>{html.escape(k)}</th>"
                       f"<td style='text-align:left'>{html.escape(v)}</td></tr>" for k, v in self.rows())
        return f"<table>{rows}</table>{self.report._repr_html_()}"


def _gib(tokens: int | None, size: int | None) -> float | None:
    if size == 0:
        return 0.0
    return None if tokens is None or size is None else tokens * size / GIB


def _show(gib: float | None, basis: str = "headers") -> str:
    note = "" if basis in ("", "headers") else f" (by {basis})"
    return "unknown" if gib is None else f"{gib:,.2f} GiB{note}"
