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

MODELS = {"sglang": ("srt/models",), "vllm": ("model_executor/models", "models")}
ELSEWHERE = ("amd", "cpu", "xpu")       # folders of the same classes for what is no NVIDIA GPU
VLLM = "set_aux_hidden_state_layers"
METHODS = ("set_eagle3_layers_to_capture", "set_dflash_layers_to_capture", VLLM)
CAPTURED = "layers_to_capture"


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
                        found[key.value] = (parts[0].rsplit(".", 1)[-1], parts[1])
    return found


class Class:
    """One class statement: what decides whether its hidden states can be had."""

    def __init__(self, module, node):
        self.module = module
        self.bases = [b.id if isinstance(b, ast.Name) else getattr(b, "attr", "") for b in node.bases]
        functions = [m for m in node.body if isinstance(m, ast.FunctionDef)]
        self.methods = {m.name for m in functions if m.name in METHODS}
        self.inner = ""                     # class of the layers, where its own __init__ names one
        self.reads = False                  # a method other than these looks at layers_to_capture
        for method in functions:
            if method.name == "__init__":
                self.inner = inner_model(method)
            elif method.name not in METHODS:
                self.reads = self.reads or any(getattr(n, "attr", "") == CAPTURED for n in ast.walk(method))


def inner_model(init):
    """`self.model = X(...)`, `self.language_model = X(...)`, or the default of an argument `language_model_cls=X`."""
    for i, default in enumerate(init.args.defaults, len(init.args.args) - len(init.args.defaults)):
        if init.args.args[i].arg == "language_model_cls" and isinstance(default, ast.Name):
            return default.id
    for node in ast.walk(init):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            if getattr(node.targets[0], "attr", "") in ("model", "language_model"):
                return node.value.func.id
    return ""


class Source:
    """All classes of a folder. A name means the class of the same file, else the imported one, else the only one."""

    def __init__(self):
        self.classes, self.imports, self.entries = {}, {}, {}

    def add(self, module, tree):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[module, node.name] = Class(module, node)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    self.imports[module, name.asname or name.name] = (node.module.rsplit(".", 1)[-1], name.name)
            elif isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "EntryClass" for t in node.targets):
                self.entries.update((n, (module, n)) for n in names_in(node.value))

    def find(self, module, name):
        for key in ((module, name), self.imports.get((module, name))):
            if key in self.classes:
                return self.classes[key]
        return next((c for (_, n), c in self.classes.items() if n == name), None)

    def line(self, cls, seen=()):
        """The class and its ancestors, nearest first."""
        if cls is None or cls in seen:
            return []
        out = [cls]
        for base in cls.bases:
            out += [c for c in self.line(self.find(cls.module, base), [*seen, *out]) if c not in out]
        return out

    def has(self, cls, method):
        """SGLang: a method that was inherited sets `self.model.layers_to_capture`, for nothing where a descendant has
        put other layers there that neither look at it nor have the method themselves. vLLM's is an interface, and what
        inherits it is let through."""
        replaced = None
        for ancestor in self.line(cls):
            if method in ancestor.methods:
                inner = self.line(replaced)
                return method == VLLM or not inner or any(c.reads or method in c.methods for c in inner)
            if replaced is None and ancestor.inner:
                replaced = self.find(ancestor.module, ancestor.inner)
        return False


def scan(*tops):
    source = Source()
    for base, folders, files in (step for top in tops for step in os.walk(top)):
        folders[:] = sorted(f for f in folders if f not in ELSEWHERE)
        for name in sorted(files):
            if not name.endswith(".py"):
                continue
            try:
                with open(os.path.join(base, name), "rb") as f:     # bytes: Python itself knows of byte order marks
                    tree = ast.parse(f.read())
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue
            source.add(name[:-3], tree)
            if name == "registry.py":
                source.entries.update(registered_by_name(tree))
    return {arch: sorted(m for m in METHODS if source.has(source.find(*place), m))
            for arch, place in source.entries.items()}


def main(engine, folder=None):
    answer = {"engine": engine, "version": "", "classes": {}, "error": ""}
    try:
        if folder is None:
            spec = importlib.util.find_spec(engine)
            if spec is None or not spec.submodule_search_locations:
                raise ImportError("no %s in this Python" % engine)
            folder = list(spec.submodule_search_locations)[0]
            answer["version"] = importlib.metadata.version(engine)
        answer["classes"] = scan(*(os.path.join(folder, *path.split("/")) for path in MODELS[engine]))
        if not answer["classes"]:
            answer["error"] = "no model classes found under %s" % folder
    except (ImportError, OSError, KeyError, ValueError) as e:
        answer["error"] = "%s: %s" % (type(e).__name__, e)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:3])
