"""Sharing a host's GPUs: a note that says who uses them, and waiting until what was stopped has let go."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from kit import project
from kit.command import sh
from kit.errors import PlanError
from kit.facts import BUSY_MIB, GPU_HOLDERS, LEASES, NOTES
from kit.seams import Host, Unit

CLAIM = """
umask 022
[ -d "$1" ] || mkdir -m 1777 -- "$1" || exit 1
boot=$(cat /proc/sys/kernel/random/boot_id)
printf '%s' "$3" | sed "s/@BOOT@/$boot/; s/@NOW@/$(date +%s)/" > "$1/.$2.new" && mv -- "$1/.$2.new" "$1/$2.json" ||
  { rm -f -- "$1/.$2.new"; rmdir -- "$1" 2>/dev/null; exit 1; }
"""
RELEASE = 'rm -f -- "$1/$2.json"; rmdir -- "$1" 2>/dev/null || true'


def claim(host: Host, unit: Unit, seen: tuple[str, ...] = ()) -> None:
    """Leave the note, then look: of two who do so at once, both see the other's, and neither starts.

    seen   paths of notes that the plan was made in spite of
    Raises PlanError for a newer one; CommandError where the host's /tmp cannot be written.
    """
    note = {"who": f"{project.me()} as {host.user}", "unit": unit.name, "root": host.root,
            "experiment": unit.about.get("experiment", ""), "port": unit.port, "boot_id": "@BOOT@", "since_s": "@NOW@"}
    text = json.dumps(note).replace('"@NOW@"', "@NOW@")
    host.run(sh(CLAIM, LEASES, _name(host, unit.name), text)).check("noting who uses the GPUs")
    now = host.run(sh(NOTES.script.replace("/tmp/specbook.lock.d", LEASES))).check("looking for other notes").text
    boot = host.run(sh("cat /proc/sys/kernel/random/boot_id")).text.strip()
    others = [n for n in NOTES.parse(now) if n.path not in seen and n.boot_id == boot and not n.path.endswith(
        f"/{_name(host, unit.name)}.json") and (n.root != host.root or not n.who.startswith(f"{project.me()} as "))]
    if others:
        release(host, unit.name)
        raise PlanError(f"the GPUs are in use by {others[0].who}: {others[0].experiment}, unit {others[0].unit}; the "
                        "note was left while this plan was being made", where=f"{host.name}: {others[0].path}",
                        next="ask them, then plan again")


def release(host: Host, unit: str) -> None:
    """Take our note back, if there is one."""
    host.run(sh(RELEASE, LEASES, _name(host, unit)))


def _name(host: Host, unit: str) -> str:
    return f"{host.user}-{unit}"


def wait_free(host: Host, within_s: float, on_line: Callable[[str], None], check: Callable[[], None]) -> None:
    """Until all GPU memory that is in use belongs to a living process; those are somebody else's, and are named.

    What was stopped has been proven to have ended, and the driver gives its memory back a little later.
    """
    until, pause = time.monotonic() + within_s, 0.2
    while True:
        check()
        found = GPU_HOLDERS.parse(host.run(sh(GPU_HOLDERS.script)).check("who holds the GPUs").text)
        if found.trouble:
            on_line(f"GPU memory could not be read: {found.trouble}")
            return
        nobodys = {gpu: mib - sum(h.used_mib for h in found.holders if h.gpu == gpu) for gpu, mib in
                   found.used_mib.items()}
        busy = {gpu: mib for gpu, mib in nobodys.items() if mib > BUSY_MIB}
        if not busy:
            for h in found.holders:
                on_line(f"GPU {h.gpu}: {h.used_mib:,} MiB held by pid {h.pid} ({h.command[:80]}), which is not ours")
            return
        text = ", ".join(f"GPU {gpu} {mib:,} MiB" for gpu, mib in busy.items())
        if time.monotonic() > until:
            raise PlanError(f"GPU memory is still in use {within_s:g} s after the stop, by no process that can be "
                            f"seen: {text}", where=host.name, next="look on the host: nvidia-smi, and fuser -v "
                            "/dev/nvidia*; a container of somebody else may hold it")
        on_line(f"waiting for GPU memory: {text}")
        time.sleep(pause)
        pause = min(pause * 1.5, 2.0)
