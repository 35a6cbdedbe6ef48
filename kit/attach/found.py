"""What was found of somebody's service: values only, with where each is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.attach.unitfile import UnitFile

# Variables that change what an inference server does; the rest of a process's environment is its login's.
ENGINE_VARIABLES = ("CUDA_", "NCCL_", "SGL", "VLLM_", "LLAMA_", "GGML_", "OMP_", "MKL_", "TORCH", "PYTORCH_", "HF_",
                    "TRITON_", "FLASHINFER_", "TOKENIZERS_", "TRANSFORMERS_", "UCX_", "GLOO_", "NVIDIA_", "HIP_",
                    "ROCR_", "HSA_", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it. start: clock ticks after boot; with the pid it names one process.

    environ    only what an engine reads; None where we may not look
    container  it runs in one, and the kit outside of it: its paths are not the host's
    """

    pid: int
    start: int
    argv: tuple[str, ...] = field(repr=False)
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: str = ""
    user: str = ""
    container: bool = False


@dataclass(frozen=True)
class Found:
    """What was read on the host.

    where    "system/x.service" · "user/x.service" · "pid/4242-98765" · "port/30000": how the supervisor finds it again
    unit     None where no systemd unit keeps it
    info     answer of /server_info (SGLang) or /props (llama.cpp); {} where there was none
    served   answer of /v1/models
    status   of the server's answer: 0, there was none; None, it was not asked
    odd_bytes   some of it was no UTF-8, and stands here as \\xNN
    """

    host: str
    root: str
    where: str
    unit: UnitFile | None = None
    process: Process | None = None
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)
    served: Mapping[str, Any] = field(default_factory=dict, repr=False)
    version: str | None = None
    port: int | None = None
    state: Mapping[str, str] = field(default_factory=dict, repr=False)
    user: str = ""              # who logs in there
    python: str = "python3"
    status: int | None = None
    odd_bytes: bool = False

    @property
    def scope(self) -> str:
        kind = self.where.partition("/")[0]
        return kind if kind in ("system", "user") else ""

    @property
    def longest(self) -> int | None:
        """Tokens per request that the server itself states."""
        models = self.served.get("data")
        first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        longest = first.get("max_model_len")
        return longest if isinstance(longest, int) else None
