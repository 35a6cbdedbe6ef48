"""What goes before an engine's command: typed, and turned into an absolute argv prefix."""

from __future__ import annotations

from pydantic import Field

from kit.checkpoint import Frozen

NODES = r"^(all|!?\+?\d+([-,]\d+)*)$"       # as numactl reads them: 0 · 0,1 · 0-3 · all
ABSOLUTE = r"^/[^\x00\n]*[^/\x00\n]$"
# `exec` keeps the process: signals reach the server itself, which `conda run` would not pass on.
ACTIVATE = '. "$1/etc/profile.d/conda.sh" && conda activate "$2" && shift 2 && exec "$@"'


class Numactl(Frozen):
    """Which NUMA nodes the server's threads run on, and where its memory comes from."""

    cpunodebind: str = Field("", pattern=rf"{NODES}|^$", description="nodes whose cores it may use, e.g. 0 or 0-1")
    membind: str = Field("", pattern=rf"{NODES}|^$", description="nodes whose memory it may use")

    def prefix(self) -> tuple[str, ...]:
        flags = {"--cpunodebind": self.cpunodebind, "--membind": self.membind}
        words = tuple(f"{flag}={nodes}" for flag, nodes in flags.items() if nodes)
        return ("/usr/bin/numactl", *words) if words else ()


class Launch(Frozen):
    """How the engine's command is started.

    >>> Launch(numactl={"cpunodebind": "0", "membind": "0"}).prefix()
    ('/usr/bin/numactl', '--cpunodebind=0', '--membind=0')
    """

    numactl: Numactl | None = None
    conda: str | None = Field(None, pattern=ABSOLUTE, description="folder of a conda environment, activated first")

    def prefix(self) -> tuple[str, ...]:
        """Words before the engine's own, the first of them absolute; () where nothing is asked for."""
        words: tuple[str, ...] = ()
        if self.conda:
            base = self.conda.rsplit("/envs/", 1)[0]        # /opt/conda/envs/sglang belongs to /opt/conda
            words = ("/bin/sh", "-c", ACTIVATE, "sh", base, self.conda)
        return words + (self.numactl.prefix() if self.numactl else ())
