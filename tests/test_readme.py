"""The README's commands and code are what the project does."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = dict.fromkeys(re.findall(r"```(\w+)\n(.*?)```", README, re.S))


def commands():
    return [line.split("#")[0].strip() for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]


def test_the_checks_say_what_the_readme_says():
    said = {}
    for command in [c for c in commands() if c.startswith("python -m kit")]:
        words = [sys.executable, *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1, done.stdout + done.stderr
        said[words[3]] = done.stdout
    assert "--speculative-num-steps is missing" in said["lint"] and "accept length near 1" in said["compat"]
    assert "--speculative-num-steps" in said["diagnose"]


def test_the_make_commands_and_their_plain_forms_are_the_same():
    plain = [c for c in commands() if c.startswith(".venv/bin/python -m") and "pip" not in c]
    recipe = (ROOT / "Makefile").read_text().replace("$(PY)", ".venv/bin/python")
    recipe = recipe.replace(" $(PYTEST_ARGS)", "").replace(" $(if $(filter 0,$(shell id -u)),--allow-root)", "")
    for command in plain:
        assert f"@{command}\n" in recipe, command
    made = [c.removeprefix("make ") for c in commands() if c.startswith("make ")]
    assert made == ["demo", "test", "lab"]
    for target in made:
        assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True).returncode == 0


def test_the_five_lines_use_only_what_is_exported():
    import kit
    for kind, text in BLOCKS:
        if kind == "python":
            used = {n.attr for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute)
                    and isinstance(n.value, ast.Name) and n.value.id == "kit"}
            assert used <= set(kit.__all__), used


def test_every_notebook_is_in_the_table():
    for book in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"`{book.stem}`" in README, book.stem
