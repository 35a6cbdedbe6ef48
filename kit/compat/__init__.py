"""Does this drafter fit this target, on this engine? Rules as data, one finding each."""

# importing them registers their rules, in the order they are answered
from kit.compat import rules_files, rules_shapes, rules_use, rules_engine, rules_sglang  # noqa: F401,I001  # isort: skip
from kit.compat.pair import ALGORITHMS, Engine, Pair, algorithm_named, judge

__all__ = ["ALGORITHMS", "Engine", "Pair", "algorithm_named", "judge"]
