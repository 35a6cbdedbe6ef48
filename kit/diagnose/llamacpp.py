"""What llama.cpp's lines say: the engine's own tables, and the tools beside its server."""

from __future__ import annotations

from kit.diagnose.marks import Mark, cause
from kit.engines.llamacpp import FAILURES, PHASES

_READY, _SERVED = "listening", "first-request"

MARKS = (
    *(Mark("ready" if p.id == _READY else "served" if p.id == _SERVED else "point", p.id, p.pattern, p.meaning)
      for p in PHASES),
    Mark("accept", "accept", r"draft acceptance = .*mean len =\s+([\d.]+)"),
    Mark("stop", "stopped", r"^stopped$"),
)

CAUSES = (
    cause("drafter-vocabulary", r"draft model vocab must match target model to use speculation",
          "target and drafter have different tokenizers", fix="a drafter of the same family"),
    *(cause(p.id, p.pattern, *(part.strip() for part in (lambda a, _, b: (a, "", b))(*p.meaning.partition("Fix:"))))
      for p in FAILURES),
)
