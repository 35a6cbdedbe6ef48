"""What a check says: one finding per rule, and the report they make together."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from kit.errors import CheckError

Verdict = Literal["fail", "warn", "pass", "unknown"]
ORDER: dict[str, int] = {"fail": 0, "unknown": 1, "warn": 2, "pass": 3}


@dataclass(frozen=True)
class Finding:
    """One rule's answer. `id` is stable; `evidence` is what was read, as text."""

    id: str
    verdict: Verdict
    what: str
    why: str = ""
    fix: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Report:
    """Findings, worst first. Falsy when something failed.

    >>> Report((Finding("hidden-size", "pass", "both 576"),)).ok
    True
    """

    findings: tuple[Finding, ...]
    title: str = ""

    def __post_init__(self):
        object.__setattr__(self, "findings", tuple(sorted(self.findings, key=lambda f: ORDER[f.verdict])))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def ok(self) -> bool:
        return not any(f.verdict == "fail" for f in self.findings)

    __bool__ = lambda self: self.ok  # noqa: E731

    def require(self) -> Report:
        """Itself, or `CheckError` with the first failure."""
        for f in self.findings:
            if f.verdict == "fail":
                raise CheckError(f"{f.id}: {f.what}" + (f" ({f.why})" if f.why else ""), where=self.title,
                                 next=f.fix or "choose another drafter or target")
        return self

    def to_json(self) -> str:
        return json.dumps([asdict(f) for f in self.findings], indent=1)

    def __repr__(self) -> str:
        width = max((len(f.id) for f in self.findings), default=0)
        lines = [self.title] if self.title else []
        for f in self.findings:
            lines.append(f"{f.verdict:7} {f.id:{width}}  {f.what}")
            lines += [f"{'':8}{'':{width}}  {label}: {text}" for label, text in (("why", f.why), ("fix", f.fix))
                      if text and f.verdict != "pass"]
        return "\n".join(lines) or "nothing to say"

    def _repr_html_(self) -> str:
        rows = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(c))}</td>" for c in
                                        (f.verdict, f.id, f.what, f.why, f.fix)) + "</tr>" for f in self.findings)
        head = "".join(f"<th style='text-align:left'>{h}</th>" for h in ("verdict", "rule", "what", "why", "fix"))
        return f"<p>{html.escape(self.title)}</p><table><tr>{head}</tr>{rows}</table>"
