"""Is this pid still the process we started?"""

from __future__ import annotations

import subprocess
from pathlib import Path


def identity(pid: int) -> str:
    """A string that no other process on any boot shares; "" when nobody has that pid (or only a zombie).

    Linux: boot id and start time in clock ticks. Elsewhere: start time to the second, from ps.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return "" if fields[0] in "ZX" else f"{boot}/{pid}/{fields[19]}"
    said = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return f"{pid}/{said}" if said else ""
