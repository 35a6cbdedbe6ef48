"""Rebuilds kit/compat/data/ENGINE_classes.json from the released wheels.

    python tests/oracle/class_tables.py sglang DIR      # DIR/sglang-0.5.12.post1-….whl …, or DIR/0.5.12.post1/sglang/ …

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
ABILITIES = {"eagle3": ("set_eagle3_layers_to_capture", "set_aux_hidden_state_layers"),
             "dflash": ("set_dflash_layers_to_capture", "set_aux_hidden_state_layers")}
ABOUT = ("Model classes each release registers, and whether they hand hidden states to a drafter. Read from the source "
         "of the released wheels by tests/oracle/class_tables.py. A span [first, last] is in releases of this sample; "
         "last null: still there in the newest.")


def key(version: str) -> tuple[int, ...]:
    return tuple(int(p) for p in version.split(".post")[0].split("."))


def classes(engine: str, source: Path) -> dict[str, list[str]]:
    """source: a wheel, or the folder where one was unpacked."""
    with tempfile.TemporaryDirectory() as folder:
        if source.is_file():
            with zipfile.ZipFile(source) as z:
                z.extractall(folder, [n for n in z.namelist() if "/models/" in n and n.endswith(".py")])
        package = Path(folder if source.is_file() else source) / engine
        said = subprocess.run([sys.executable, KIT / "remote" / "engine_classes.py", engine, package],
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


def main(engine: str, folder: str) -> None:
    wheels = {w.name.split("-")[1]: w for w in Path(folder).glob(f"{engine}-*.whl")}
    found = wheels or {p.name: p for p in Path(folder).iterdir() if (p / engine).is_dir()}
    read = {version: classes(engine, source) for version, source in found.items()}
    versions = sorted(read, key=key)
    table = {}
    for name in sorted({c for found in read.values() for c in found}):
        table[name] = {"known": spans(versions, lambda v, n=name: n in read[v])}
        for ability, methods in ABILITIES.items():
            if where := spans(versions, lambda v, n=name, ms=methods: bool(set(ms) & set(read[v].get(n, ())))):
                table[name][ability] = where
    rows = ",\n".join(f"  {json.dumps(n)}: {json.dumps(s)}" for n, s in table.items())
    (KIT / "compat" / "data" / f"{engine}_classes.json").write_text(
        f'{{\n "about": {json.dumps(ABOUT)},\n "versions": {json.dumps(versions)},\n'
        f' "classes": {{\n{rows}\n }}\n}}\n')
    print(f"{len(table)} classes, {len(versions)} releases")


if __name__ == "__main__":
    main(*sys.argv[1:3])
