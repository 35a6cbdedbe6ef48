"""Lists the model classes of the engine that is installed here. Standard library only, Python >= 3.9.

    python - sglang [FOLDER] < engine_classes.py        (the engine's own python)

Reads the engine's source without importing it: no GPU, no torch, no side effect. Prints one JSON object
{"engine", "version", "classes": {name: [method, ...]}, "error"}; the methods named are those that decide what can be
speculated with, inherited ones included. FOLDER: where the package lies, when it is not to be looked up.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import sys

MODELS = {"sglang": "srt/models", "vllm": "model_executor/models"}
METHODS = ("set_eagle3_layers_to_capture", "set_dflash_layers_to_capture", "set_aux_hidden_state_layers")


def names_in(node):
    """Class names in `EntryClass = X`, `= [X, Y]`."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [e.id for e in node.elts if isinstance(e, ast.Name)]
    return [node.id] if isinstance(node, ast.Name) else []


def registered_by_name(tree):
    """vLLM keeps {"ArchitectureName": ("module", "Class"), ...} tables in registry.py."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for i, key in enumerate(node.keys):
                value = node.values[i]
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                    parts = [e.value for e in value.elts if isinstance(e, ast.Constant)]
                    if len(parts) == 2 and isinstance(key.value, str):
                        found[key.value] = parts[1]
    return found


def scan(folder):
    bases, methods, entries = {}, {}, {}
    for base, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if not name.endswith(".py"):
                continue
            try:
                with open(os.path.join(base, name), encoding="utf-8", errors="replace") as f:
                    source = f.read()
                tree = ast.parse(source)
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    kin = [b.id if isinstance(b, ast.Name) else getattr(b, "attr", "") for b in node.bases]
                    bases[node.name] = kin
                    methods[node.name] = [m.name for m in node.body
                                          if isinstance(m, ast.FunctionDef) and m.name in METHODS]
                elif isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "EntryClass" for t in node.targets):
                    entries.update((n, n) for n in names_in(node.value))
            if name == "registry.py":
                entries.update(registered_by_name(tree))

    def known(cls, seen):
        found = set(methods.get(cls, ()))
        for kin in bases.get(cls, ()):
            if kin not in seen:
                found |= known(kin, seen | {kin})
        return found

    return {arch: sorted(known(cls, {cls})) for arch, cls in entries.items()}


def main(engine, folder=None):
    answer = {"engine": engine, "version": "", "classes": {}, "error": ""}
    try:
        if folder is None:
            spec = importlib.util.find_spec(engine)
            if spec is None or not spec.submodule_search_locations:
                raise ImportError("no %s in this Python" % engine)
            folder = list(spec.submodule_search_locations)[0]
            answer["version"] = importlib.metadata.version(engine)
        answer["classes"] = scan(os.path.join(folder, *MODELS[engine].split("/")))
        if not answer["classes"]:
            answer["error"] = "no model classes found under %s" % folder
    except (ImportError, OSError, KeyError, ValueError) as e:
        answer["error"] = "%s: %s" % (type(e).__name__, e)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:3])
