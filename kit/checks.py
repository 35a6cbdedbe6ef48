"""The checks before a launch, as one call. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Sequence

from kit.compat import Engine, Pair, algorithm_named, judge
from kit.compat.classes import Support, from_table
from kit.findings import Report
from kit.modelfacts import ModelFacts


def check_pair(target: ModelFacts, drafter: ModelFacts | None, *, engine: str, algorithm: str,
               context: int | None = None, tp: int = 1, support: Support | None = None,
               args: Sequence[str] = ()) -> Report:
    """Does the drafter fit the target on this engine?

    engine     "llamacpp", "sglang==0.5.12.post1", … (without a version, what depends on it is `unknown`)
    algorithm  in our words or the engine's: eagle3, EAGLE3, STANDALONE, draft_model …
    context    tokens per request; None: the target's own
    support    classes read from the installed engine; None: the table of that release
    args       the engine's further flags, where known: some settle a question (--attention-backend)
    Raises SpecError for an engine or algorithm that is not known.

    >>> check_pair(read_model(LocalReader("t")), read_model(LocalReader("d")), engine="sglang==0.5.12",
    ...            algorithm="EAGLE3", tp=8).require()
    """
    where = Engine.parse(engine)
    how = algorithm_named(algorithm)
    support = support or from_table(where.name, where.version)
    pair = Pair(target, drafter, where, how, context, tp, support, tuple(args))
    title = f"{drafter.name if drafter else 'no drafter'} on {target.name}, {where.spelled(how)}, {where}"
    return Report(judge(pair), title)
