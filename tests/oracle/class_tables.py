"""Rebuilds kit/compat/data/sglang_classes.json from the released wheels.

    python tests/oracle/class_tables.py DIR         # DIR/sglang-0.5.12.post1-….whl …

Uses the very program that reads an installed engine (kit/remote/engine_classes.py): syntax only, nothing is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

KIT = Path(__file__).parents[2] / "kit"
OUT = KIT / "compat" / "data" / "sglang_classes.json"
ABILITIES = {"set_eagle3_layers_to_capture": "eagle3", "set_dflash_layers_to_capture": "dflash"}
ABOUT = ("Model classes each release registers, and whether they hand hidden states to a drafter. Read from the source "
         "of the released wheels by tests/oracle/class_tables.py. A span [first, last] is in releases of this sample; "
         "last null: still there in the newest.")


def key(version: str) -> tuple[int, ...]:
    return tuple(int(p) for p in version.split(".post")[0].split("."))


def classes(wheel: Path) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as z:
        z.extractall(folder, [n for n in z.namelist() if n.startswith("sglang/srt/models/") and n.endswith(".py")])
        said = subprocess.run([sys.executable, KIT / "remote" / "engine_classes.py", "sglang", f"{folder}/sglang"],
                              capture_output=True, check=True).stdout
    return json.loads(said)["classes"]


def spans(versions: list[str], holds) -> list[list[str | None]]:
    """Runs of consecutive releases for which `holds`."""
    found: list[list[str | None]] = []
    for before, version in zip([None, *versions], versions, strict=False):
        if holds(version):
            if not (found and before and holds(before)):
                found.append([version, version])
            found[-1][1] = version
    for span in found:
        span[1] = None if span[1] == versions[-1] else span[1]
    return found


def main(folder: str) -> None:
    read = {w.name.split("-")[1]: classes(w) for w in Path(folder).glob("sglang-*.whl")}
    versions = sorted(read, key=key)
    table = {}
    for name in sorted({c for found in read.values() for c in found}):
        table[name] = {"known": spans(versions, lambda v, n=name: n in read[v])}
        for method, ability in ABILITIES.items():
            if where := spans(versions, lambda v, n=name, m=method: m in read[v].get(n, ())):
                table[name][ability] = where
    rows = ",\n".join(f"  {json.dumps(n)}: {json.dumps(s)}" for n, s in table.items())
    OUT.write_text(f'{{\n "about": {json.dumps(ABOUT)},\n "versions": {json.dumps(versions)},\n'
                   f' "classes": {{\n{rows}\n }}\n}}\n')
    print(f"{len(table)} classes, {len(versions)} releases")


if __name__ == "__main__":
    main(sys.argv[1])
