"""Rebuilds kit/lint/data/*_flags.json from the engines' own sources.

    python tests/oracle/flag_tables.py sglang DIR   # DIR/<version>/sglang/srt/server_args.py …
    python tests/oracle/flag_tables.py vllm DIR     # DIR/<version>/vllm/engine/arg_utils.py …

Reads syntax only (no import of the engine), so it needs neither GPU nor torch.
A flag is {"n": names, "k": kind, "a": nargs, "c": choices, "m": message, "v": [first, last]}
where the versions are indices into "versions", and kind is one of
int float str json size (32k, 1M) | flag (no value) | bool (also --no-…) | gone (an error by its own message).
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

DATA = Path(__file__).parents[2] / "kit" / "lint" / "data"
NUMBERS = {"int": "int", "float": "float", "human_readable_int": "size", "json.loads": "json",
           "human_readable_int_or_auto": "str"}


class Constants(dict):
    """Module-level lists of a source tree, for `choices=NAME`; None where it is computed."""

    deprecated_raises = False               # what this release's DeprecatedAction does

    def read(self, tree: ast.Module) -> Constants:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == "DeprecatedAction":
                self.deprecated_raises = any(isinstance(n, ast.Raise) for n in ast.walk(node))
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = self.value(node.value)
                if isinstance(value, list):
                    self[node.targets[0].id] = value
        return self

    def value(self, node):
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple() | ast.Set():
                values = []
                for e in node.elts:
                    one = self.value(e.value if isinstance(e, ast.Starred) else e)
                    if one is None:
                        return None
                    values += one if isinstance(e, ast.Starred) else [one]
                return values
            case ast.Name():
                return self.get(node.id)
            case ast.BinOp(op=ast.Add()):
                left, right = self.value(node.left), self.value(node.right)
                return left + right if isinstance(left, list) and isinstance(right, list) else None
            case ast.Call(func=ast.Name(id="sorted" | "list" | "set")):
                return self.value(node.args[0]) if node.args else None
        return None


def _entry(names, kind, nargs=None, choices=None, message=None, required=False):
    out = {"n": names, "k": kind}
    if nargs is not None:
        out["a"] = nargs
    if choices:
        out["c"] = choices
    if message:
        out["m"] = message
    if required:
        out["r"] = 1
    return out


def _kind_of_action(action: str, kwargs: dict, const: Constants):
    message = const.value(kwargs.get("error_message") or kwargs.get("new_flag") or ast.Constant(None))
    match action:
        case "store_true" | "store_false":
            return "flag", None, None
        case "BooleanOptionalAction":
            return "bool", None, None
        case "DeprecatedAction":
            refused = "error_message" in kwargs or const.deprecated_raises
            return ("gone" if refused else "flag"), None, message or const.value(kwargs.get("help")) or "deprecated"
        case "DeprecatedStoreTrueAction":
            return "flag", None, message or "deprecated"
        case "DeprecatedStoreConstAction":
            return ("str" if "nargs" in kwargs else "flag"), None, message or "deprecated"
        case "LoRAPathAction":
            return "str", "*", None
        case "DeprecatedAliasStoreAction":
            return None, None, message or "deprecated"
    return None, None, None


def _from_call(call: ast.Call, const: Constants):
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
    if not names:
        return None
    kwargs = {k.arg: k.value for k in call.keywords if k.arg}
    action = kwargs.get("action")
    action = action.value if isinstance(action, ast.Constant) else ast.unparse(action).split(".")[-1] if action else ""
    kind, nargs, message = _kind_of_action(action, kwargs, const)
    kind = kind or NUMBERS.get(ast.unparse(kwargs["type"]) if "type" in kwargs else "str", "str")
    if kind in ("flag", "bool", "gone"):
        return _entry(names, kind, message=message)
    nargs = const.value(kwargs["nargs"]) if "nargs" in kwargs else nargs
    return _entry(names, kind, nargs, const.value(kwargs["choices"]) if "choices" in kwargs else None, message,
                  "required" in kwargs)


def _annotated(field: ast.AnnAssign, const: Constants):
    """`name: A[type, "help" | Arg(…)] = default` of the newer sources."""
    ann = field.annotation
    if not (isinstance(ann, ast.Subscript) and ast.unparse(ann.value) in ("A", "Annotated")):
        return None
    inner, *meta = ann.slice.elts
    call = next((m for m in meta if isinstance(m, ast.Call) and ast.unparse(m.func) == "Arg"), None)
    if call is None and not any(isinstance(m, (ast.Constant, ast.JoinedStr, ast.BinOp)) for m in meta):
        return None
    kw = {k.arg: k.value for k in call.keywords} if call else {}
    if "no_cli" in kw:
        return None
    names = [const.value(kw["cli_name"]) if "cli_name" in kw else "--" + field.target.id.replace("_", "-")]
    names += (const.value(kw["aliases"]) if "aliases" in kw else None) or []
    if "action" in kw:
        extra = {}
        if isinstance(kw.get("action_kwargs"), ast.Dict):
            extra = {k.value: v for k, v in zip(kw["action_kwargs"].keys, kw["action_kwargs"].values, strict=True)}
        if isinstance(kw.get("action_kwargs"), ast.Call):
            extra = {k.arg: k.value for k in kw["action_kwargs"].keywords}
        kind, nargs, message = _kind_of_action(ast.unparse(kw["action"]).strip("'\"").split(".")[-1], extra, const)
        choices = const.value(extra["choices"]) if "choices" in extra else None
        return _entry(names, kind or NUMBERS.get(ast.unparse(extra.get("type", ast.Constant("str"))), "str"),
                      nargs, choices, message)
    text = ast.unparse(inner)
    for wrapper in ("Optional[", "typing.Optional["):
        if text.startswith(wrapper):
            text = text[len(wrapper):-1]
    text = text.removesuffix(" | None").removesuffix("| None")
    choices = const.value(kw["choices"]) if "choices" in kw else None
    parser = ast.unparse(kw["type_parser"]) if "type_parser" in kw else ""
    if text.startswith("Literal["):
        values = list(ast.literal_eval("[" + text[8:-1] + "]"))
        return _entry(names, "int" if isinstance(values[0], int) else "str", None, choices or values)
    if text.lower().startswith("list[") and not parser:
        kind = {"int]": "int", "float]": "float"}.get(text[5:].lower(), "str")
        return _entry(names, kind, (const.value(kw["nargs"]) if "nargs" in kw else None) or "+", choices)
    if text == "bool":
        return _entry(names, "flag")
    kind = NUMBERS.get(parser, "str") if parser else {"int": "int", "float": "float"}.get(text, "str")
    return _entry(names, kind, const.value(kw["nargs"]) if "nargs" in kw else None, choices,
                  required=field.value is None)


def sglang(root: Path) -> list[dict]:
    srt = root / "sglang" / "srt"
    files = [srt / "server_args.py", *sorted((srt / "arg_groups").glob("**/*.py"))]
    trees = {f: ast.parse(f.read_text()) for f in files if f.exists()}
    const = Constants()
    for _ in range(2):                      # lists made of lists of another file
        for tree in trees.values():
            const.read(tree)
    flags: dict[str, dict] = {}
    for path, tree in trees.items():
        for cls in (n for n in tree.body if isinstance(n, ast.ClassDef)):
            own = path.name == "server_args.py" and cls.name == "ServerArgs"
            if own or path.parent.name == "fields":
                for f in cls.body:
                    if isinstance(f, ast.AnnAssign) and (e := _annotated(f, const)):
                        flags[e["n"][0]] = e
            if not own:
                continue
            for fn in (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "add_cli_args"):
                for call in (c for c in ast.walk(fn) if isinstance(c, ast.Call)):
                    if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" \
                            and (e := _from_call(call, const)):
                        flags[e["n"][0]] = e
    return list(flags.values())


def _annotations(trees) -> dict[str, dict[str, str]]:
    """{class: {field: annotation text}} of vLLM's config classes, bases merged."""
    out: dict[str, dict[str, str]] = {}
    for tree in trees:
        for cls in (n for n in tree.body if isinstance(n, ast.ClassDef)):
            fields = {}
            for base in cls.bases:
                fields |= out.get(ast.unparse(base), {})
            out[cls.name] = fields | {f.target.id: ast.unparse(f.annotation) for f in cls.body
                                      if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)}
    return out


def _vllm_kind(annotation: str, aliases: dict[str, str]) -> dict:
    text = annotation.strip("'\"")
    for _ in range(4):
        text = aliases.get(text, text)
        for prefix in ("Optional[", "SkipValidation["):
            if text.startswith(prefix) and text.endswith("]"):
                text = text[len(prefix):-1]
        text = text.removesuffix(" | None").removeprefix("None | ").strip("'\"")
    if text == "bool":
        return {"k": "bool"}
    if text.startswith("Literal[") and text.endswith("]") and "[" not in text[8:]:
        values = Constants().value(ast.parse(f"[{text[8:-1]}]", mode="eval").body)
        return {"k": "str", "c": values} if values and all(isinstance(v, str) for v in values) else {"k": "str"}
    if text.startswith(("list[", "List[", "tuple[")):
        return {"k": "str", "a": "+"}
    if text == "float":
        return {"k": "float"}
    if text == "int":
        return {"k": "size"}                # vLLM takes 32k, 1M … for some
    return {"k": "str"}


def vllm(root: Path) -> list[dict]:
    files = [root / "vllm/config.py", *sorted((root / "vllm/config").glob("*.py")),
             *sorted((root / "vllm").glob("entrypoints/**/cli_args.py")), root / "vllm/engine/arg_utils.py"]
    trees = [ast.parse(f.read_text()) for f in files if f.exists()]
    classes = _annotations(trees) | _annotations(trees)
    aliases = {}
    for tree in trees:
        for n in tree.body:
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and "Literal[" in ast.unparse(n.value):
                aliases[n.targets[0].id] = ast.unparse(n.value)
    flags: dict[str, dict] = {}
    groups: dict[str, str] = {}             # variable → config class, from `x_kwargs = get_kwargs(X)`
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) \
                    and ast.unparse(node.value.func) == "get_kwargs" and isinstance(node.targets[0], ast.Name):
                groups[node.targets[0].id] = ast.unparse(node.value.args[0])
    for tree in trees:
        for call in (c for c in ast.walk(tree) if isinstance(c, ast.Call)):
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
                continue
            names = [a.value for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
            if not names:
                continue
            names.sort(key=lambda n: not n.startswith("--"))
            star = next((k.value for k in call.keywords if k.arg is None), None)
            if isinstance(star, ast.Dict):  # **{**kwargs["field"], "default": …}
                star = next((v for k, v in zip(star.keys, star.values, strict=True) if k is None), star)
            if isinstance(star, ast.Subscript) and isinstance(star.value, ast.Name):
                note = classes.get(groups.get(star.value.id, ""), {}).get(ast.literal_eval(star.slice), "str")
                entry = {"n": names} | _vllm_kind(note, aliases)
            else:
                entry = _from_call(call, Constants()) or {"n": names, "k": "str"}
                entry["n"] = names
            flags[names[0]] = entry
    for cls in ("FrontendArgs", "BaseFrontendArgs"):
        for name, note in classes.get(cls, {}).items():
            flags.setdefault("--" + name.replace("_", "-"),
                             {"n": ["--" + name.replace("_", "-")]} | _vllm_kind(note, aliases))
    return list(flags.values())


def speculative(root: Path) -> dict:
    """Methods and keys of --speculative-config."""
    path = root / "vllm/config/speculative.py"
    tree = ast.parse((path if path.exists() else root / "vllm/config.py").read_text())
    methods: list[str] = []
    keys: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) \
                and node.targets[0].id.endswith(("ModelTypes", "GPUTypes", "SpeculativeMethod")):
            methods += [c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant)]
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig":
            keys = [f.target.id for f in node.body if isinstance(f, ast.AnnAssign)]
    return {"methods": sorted(set(methods)), "keys": sorted(k for k in keys if not k.endswith("_config"))}


def release(name: str) -> tuple[int, ...]:
    return tuple(int(p) for p in name.split(".post")[0].split("."))


def main(engine: str, root: str) -> None:
    folders = sorted((p for p in Path(root).iterdir() if p.is_dir()), key=lambda p: release(p.name))
    table: list[dict] = []
    open_: dict[str, dict] = {}
    for i, folder in enumerate(folders):
        now = {}
        for flag in {"sglang": sglang, "vllm": vllm}[engine](folder):
            key = json.dumps(flag, sort_keys=True)
            old = open_.get(key)
            if old is None:
                old = flag | {"v": [i, i]}
                table.append(old)
            old["v"][1] = i
            now[key] = old
        open_ = now
    versions = [".".join(map(str, release(f.name))) for f in folders]
    spec = {v: speculative(f) for v, f in zip(versions, folders, strict=True)} if engine == "vllm" else {}
    rows = ",\n".join(json.dumps(f, separators=(",", ":")) for f in sorted(table, key=lambda f: (f["n"], f["v"])))
    DATA.mkdir(exist_ok=True)
    (DATA / f"{engine}_flags.json").write_text(
        f'{{"versions":{json.dumps(versions)},\n"speculative":{json.dumps(spec)},\n"flags":[\n{rows}\n]}}\n')
    print(engine, versions, len(table), "rows")


if __name__ == "__main__":
    main(*sys.argv[1:3])
