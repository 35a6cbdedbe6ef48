"""A stand-in for SGLang on a host: a folder that looks like its virtual environment, for python3 >= 3.9 alone.

    python = install(tmp_path / "venv")                 # on this machine
    for path, content in files().items(): …             # to send to a host; EXECUTABLE needs mode 0755

`PYTHON -m sglang.launch_server FLAGS` starts, fails and serves as SGLang does, out of recorded logs and answers
(tests/fixtures/sglang*); `import sglang.srt.server_args` is enough for the dry run, `sglang/srt/models` for the class
tables. What it may do wrong is told by its environment: see site/sglang/standin.py.
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
VERSION = "0.5.12.post1"
EXECUTABLE = ("bin/python",)
RECORDED = {"start-eagle3.log": FIXTURES / "sglang" / "start-eagle3.log",
            "start-base.log": FIXTURES / "sglang" / "start-baseline.log",
            "steps-missing.log": FIXTURES / "sglang" / "fail-spec-steps-missing.log",
            "eagle3.json": FIXTURES / "sglang-0.5.12" / "eagle3.json",
            "base.json": FIXTURES / "sglang-0.5.12" / "base.json"}
PYTHON = """#!/bin/sh
# python3 with the stand-in on its path, as a virtual environment would have the engine
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
PYTHONPATH="$here/lib${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1
exec "${STANDIN_PYTHON:-python3}" "$@"
"""


def files(version: str = VERSION) -> dict[str, bytes]:
    """{path inside the environment: content} of a stand-in for that release; its flags are the release's own."""
    site = HERE / "site"
    out = {f"lib/{p.relative_to(site)}": p.read_bytes() for p in sorted(site.rglob("*.py"))}
    out |= {f"lib/sglang/recorded/{name}": path.read_bytes() for name, path in RECORDED.items()}
    out["lib/sglang/recorded/flags.json"] = json.dumps(_flags(version)).encode()
    out["lib/sglang/version.py"] = f'__version__ = "{version}"\n'.encode()
    out[f"lib/sglang-{version}.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n" \
        .encode()
    return out | {"bin/python": PYTHON.encode()}


def install(folder: str | Path, version: str = VERSION) -> str:
    """Writes it there; the path of its python."""
    for path, content in files(version).items():
        target = Path(folder) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if path in EXECUTABLE:
            target.chmod(0o755)
    return str(Path(folder) / "bin" / "python")


def _flags(version: str) -> list[dict]:
    """Names, kind, nargs and choices of every flag of the release."""
    from kit.lint.flags import known_versions, table
    from kit.lint.versions import neighbours, parse
    below, _ = neighbours(parse(version), list(known_versions("sglang")))
    flags = {f.name: f for f in table("sglang", below).by_name.values() if f.name != "--help"}
    return [{"names": f.names, "kind": f.kind, "nargs": f.nargs, "choices": f.choices} for f in flags.values()]
