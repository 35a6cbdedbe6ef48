"""Experiment + survey → the steps that make the host as wanted. Pure.

Every step says why. When nothing differs the plan is empty and says so; stop
and undo are plans of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kit.command import Command
from kit.seams import Unit
from kit.spec import Checkpoint


@dataclass(frozen=True)
class Write:
    """Put a small file on the host, atomically."""
    path: str
    content: bytes = field(repr=False)
    why: str
    mode: int = 0o644

    @property
    def subject(self) -> str:
        return self.path


@dataclass(frozen=True)
class Run:
    """Run one command on the host as a supervised job, and wait for its end."""
    unit: Unit
    why: str

    @property
    def subject(self) -> str:
        return self.unit.name


@dataclass(frozen=True)
class Fetch:
    """Bring a checkpoint to the host."""
    checkpoint: Checkpoint
    dest: str
    why: str

    @property
    def subject(self) -> str:
        return self.checkpoint.source


@dataclass(frozen=True)
class Stop:
    """Stop a unit of ours: its whole tree, until its port is closed."""
    name: str
    why: str
    timeout_s: float = 10.0

    @property
    def subject(self) -> str:
        return self.name


@dataclass(frozen=True)
class Start:
    """Write the unit and start it."""
    unit: Unit
    why: str

    @property
    def subject(self) -> str:
        return self.unit.name


@dataclass(frozen=True)
class Healthy:
    """Wait until the service answered a real generation."""
    unit: str
    within_s: float
    why: str

    @property
    def subject(self) -> str:
        return self.unit


@dataclass(frozen=True)
class Remove:
    """Delete a folder or file of ours under the kit's root on the host."""
    path: str
    why: str

    @property
    def subject(self) -> str:
        return self.path


Step = Write | Run | Fetch | Stop | Start | Healthy | Remove
