"""How a GPU's memory is divided before anything is loaded: weights, KV cache, drafter, and what is left."""

from kit.memory.build import memory_plan
from kit.memory.plan import MemoryPlan

__all__ = ["MemoryPlan", "memory_plan"]
