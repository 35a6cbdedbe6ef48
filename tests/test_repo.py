"""The shape of the project: layers, sizes, what is exported, and that its papers agree."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
KIT = sorted((ROOT / "kit").rglob("*.py"))
SHIPPED = [p for p in KIT if "remote" in p.parts and p.name != "__init__.py"]

# Lower layers know nothing of higher ones. A package stands for all its modules.
LAYERS = [
    {"errors", "project", "alive", "checkpoint"},
    {"yamlfile", "launch", "masking"},
    {"command", "spec", "findings", "registry", "shipping", "words"},
    {"seams", "topology"},
    {"facts", "modelfacts", "engines", "supervisors", "lint"},
    {"compat", "memory", "diagnose", "surveys", "nccl", "workload", "metrics", "analysis", "attach", "stages"},
    {"checks", "verdict", "steps", "sharing"},
    {"planning"},
    {"sshfiles", "hostkeys", "channels", "sftp", "tunnel", "rehearsal_session", "httpreader"},
    {"rehearsal", "rehearsal_server", "sshhost"},
    {"host", "job", "plots", "sources", "store", "launches"},
    {"following", "surveying", "checking", "dryrun", "pages", "adopting"},
    {"health", "prelaunch", "gpus", "evidence"},
    {"applying"},
    {"benching"},
    {"verbs", "reading"},
    {"ui", "ui_controls"},
    {"widgets"},
    {"compat_cli", "lint_cli", "diagnose_cli"},
    {"__init__", "demo", "__main__"},
]
LEVEL = {name: i for i, names in enumerate(LAYERS) for name in names}

# Effects live in one place each.
ONLY_IN = {
    "fabric": {"host"}, "paramiko": {"host"}, "invoke": {"host"},
    "asyncssh": {"rehearsal_server", "rehearsal_session"}, "ipywidgets": {"ui", "ui_controls"}, "IPython": set(),
    "threading": {"host", "sshhost", "channels", "tunnel", "job"}, "subprocess": {"rehearsal", "alive"},
    "socket": {"host", "tunnel"}, "plotly": {"plots", "pages"}, "papermill": {"demo"},
}


def module(path):
    """kit/engines/llamacpp.py → engines; kit/spec.py → spec."""
    return path.relative_to(ROOT / "kit").parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import, which this test does not follow"
            if node.module == "kit":
                yield from (f"kit.{a.name}" for a in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", [p for p in KIT if p not in SHIPPED], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_and_effects_stay_in_their_module(path):
    here = module(path)
    if here == "remote":
        return
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "kit" and rest:
            there = rest.split(".")[0]
            assert there == here or LEVEL[there] < LEVEL[here] \
                or {here, there} <= {"ui", "ui_controls"}, \
                f"{here} imports {there}, which is not below it"
        if top in ONLY_IN:
            assert here in ONLY_IN[top], f"{here} imports {top}"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_what_travels_to_the_host_is_one_file_of_python_3_9_and_the_standard_library(path):
    ast.parse(path.read_text(), feature_version=(3, 9))
    tops = {name.split(".")[0] for name in imports(path)}
    assert tops - {"xllamacpp", "babysit", "journal", "sglang"} <= sys.stdlib_module_names, tops
    assert ("sglang" in tops) <= (path.name == "sglang_dryrun.py")
    assert ("babysit" in tops) <= (path.name == "unitctl.py"), "unitctl builds on babysit, which travels with it"
    assert ("journal" in tops) <= (path.name in ("unitctl.py", "foreign_unit.py")), "both read systemd's journal"
    assert ("xllamacpp" in tops) <= (path.name == "llamacpp_server.py")


@pytest.mark.parametrize("path", [p for p in KIT if p not in SHIPPED], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 280


def test_every_exported_name_is_there_and_in_the_readme():
    import kit
    readme = (ROOT / "README.md").read_text()
    for name in kit.__all__:
        assert hasattr(kit, name)
        assert f"kit.{name}" in readme, f"kit.{name} is not in the README"
    assert list(kit.__all__) == sorted(kit.__all__)


def test_no_module_hides_a_function_of_the_same_name():
    import kit
    assert not {p.stem for p in KIT if p.parent.name == "kit"} & set(kit.__all__) - {"metrics", "plots"}


def test_environment_yml_and_pyproject_name_the_same_packages_and_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {*project["dependencies"], *project["optional-dependencies"]["dev"]}
    conda = [d for d in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"] if isinstance(d, str)]
    assert set(conda) - {"pip", "python>=3.11"} == wanted
    assert project["requires-python"] == ">=3.11"


def tracked():
    if not (ROOT / ".git").exists():        # a tarball
        made = {".venv", ".cache", ".rehearsal", "runs", "reports", "__pycache__", ".pytest_cache", ".ruff_cache"}
        return [p for p in ROOT.rglob("*") if p.is_file() and not made & set(p.relative_to(ROOT).parts)]
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, check=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_the_tree_is_small_enough_to_travel():
    assert sum(p.stat().st_size for p in tracked()) < 44 * 2**20


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebooks_are_stripped_short_and_hold_no_logic(path):
    book = json.loads(path.read_text())
    assert "widgets" not in book["metadata"]
    code = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert [c for c in code if "parameters" in c["metadata"].get("tags", [])] == code[:1], "one parameters cell, first"
    head = "".join(book["cells"][0]["source"])
    assert all(word in head for word in ("**Purpose**", "**Needs**", "**Changes on the host**", "**Undo**"))
    for cell in code:
        source = "".join(cell["source"])
        assert not cell["outputs"] and cell["execution_count"] is None
        assert len(source.splitlines()) <= 10
        tree = ast.parse(source)
        assert not [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While))]
        assert {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names} <= {"kit"}


# Assembled, so that this file does not find itself.
FOREIGN = [r"/wo" r"rk/", r"pypi\.o" r"rg", r"debian\.o" r"rg", r"npm" r"js", r"\.\./sha" r"red", r"sub" r"agent"]


def test_the_project_speaks_for_itself():
    kinds = (".py", ".md", ".yaml", ".yml", ".toml", ".ipynb", ".json", ".sh", ".txt")
    texts = [p for p in tracked() if p.suffix in kinds or p.name in ("Makefile", "run")]
    for path in texts:
        found = re.search("|".join(FOREIGN), path.read_text(errors="replace"))
        assert not found, f"{path.relative_to(ROOT)}: {found[0]}"


def test_relative_links_in_the_papers_exist():
    for paper in [p for p in tracked() if p.suffix == ".md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", paper.read_text()):
            assert (paper.parent / target).exists(), f"{paper.name} links to {target}"
