"""The engine's own parser as oracle: does lint refuse what SGLang refuses?

    python tests/oracle/run.py ask --python VENV/bin/python --sources DIR [VERSION …]   # slow, by hand
    python tests/oracle/run.py score                                                    # seconds, replays

`ask` needs DIR/<version>/ with the unpacked wheel (without its .so files) and a Python that has torch (CPU) and
SGLang's light requirements; torchvision's `_meta_registrations.py` must be blank beside a CPU torch. It writes
recorded/<version>.jsonl. `score` lints the same sets and writes result.json: agreement, and every disagreement.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from kit.findings import Finding
from kit.lint import lint
from kit.lint.case import Target, breaks_later

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
RESULT = HERE / "result.json"
SEED, SETS = 20261130, 300
ARCHITECTURE = "Qwen3ForCausalLM"
MODEL = "MODEL"                     # stands for a folder with only a config.json
CONFIG = {"architectures": [ARCHITECTURE], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
          "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
          "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
          "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu"}
TARGET = Target(config=CONFIG, dspark_folder=False)     # lint judges the very folder that the engine saw

NUMBERS = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
SPEC = ["EAGLE"] * 4 + ["EAGLE3"] * 6 + ["NEXTN"] * 2 + ["STANDALONE"] * 2 + ["NGRAM"] * 3 + ["DFLASH"] * 2 + [
    "eagle3", "DSPARK", "MEDUSA"]
TRIPLES = [(3, 1, 4), (3, 1, 4), (5, 1, 6), (3, 4, 16), (5, 8, 32), (1, 1, 2), (3, 1, None),
           (None, None, None), (2, 2, 4)]
SOMETIMES = [   # (chance, flag, values); None: no value
    (.55, "--speculative-num-steps", [0, 1, 3, 3, 5, -1]), (.55, "--speculative-eagle-topk", [1, 1, 1, 2, 4, 8]),
    (.55, "--speculative-num-draft-tokens", [2, 3, 4, 4, 8, 16, 64]), (.75, "--speculative-draft-model-path", [MODEL]),
    (1, "--attention-backend", ["triton", "triton", "triton", "flashinfer", "flashinfer", "fa3", "torch_native",
                                "flex_attention", "cuda"]),
    (.25, "--page-size", [1, 16, 32, 64]), (.06, "--pp-size", [1, 2]), (.2, "--max-running-requests", [2, 16, 64]),
    (.08, "--enable-mixed-chunk", [None]), (.06, "--enable-lora", [None]), (.25, "--mem-fraction-static", [.5, .88]),
    (.08, "--speculative-accept-threshold-single", [.5, 1.0]), (.06, "--speculative-use-rejection-sampling", [None]),
    (.12, "--speculative-dflash-block-size", [4, 8, 0]), (.06, "--speculative-adaptive", [None]),
    (.05, "--disable-overlap-schedule", [None]), (.15, "--disable-cuda-graph", [None]),
    (.1, "--trust-remote-code", [None]),
    (.1, "--grammar-backend", ["none", "xgrammar", "guidance"]), (.2, "--tp-size", [1, 2, 4, "two"]),
    (.05, "--nnodes", [1, 2, 3]), (.1, "--context-length", [4096, "32k"]), (.08, "--cuda-graph-max-bs", [8]),
    (.04, "--num-speculative-tokens", [3]), (.04, "--speculative-num", [3]), (.05, "--speculative-num-step", [3]),
    (.04, "--enable-ep-moe", [None]), (.04, "--speculative-token-map", ["x"]),
    (.03, "--torchao-config", ["int4wo-128"]),
    (.04, "--speculative-ngram-max-trie-depth", [12]), (.04, "--speculative-ngram-max-match-window-size", [8]),
    (.05, "--speculative-draft-model-quantization", ["unquant", "fp8"]), (.04, "--nsa-prefill-backend", ["fa3"]),
    (.03, "--trust-remote-code=yes", [None]), (.03, "--speculative-attention-mode", ["decode", "both"]),
    (.03, "--speculative-draft-window-size", [512]), (.03, "--speculative-dspark-block-size", [7]),
    (.04, "--schedule-policy", ["lpm", "fcfs", "best"]), (.03, "--host", ["0.0.0.0"]),
    (.03, "--tensor-parallel-size", [2]),
]


def generate(seed: int = SEED, count: int = SETS) -> list[dict]:
    """Flag sets as people (mis)write them, the same for every release: every second one is sane but for a slip or two.

    The backend is always named: what SGLang would choose depends on the GPU, and here is none.
    """
    rng = random.Random(seed)
    out = []
    for i in range(count):
        argv = ["--model-path", MODEL, "--device", "cuda"]
        algorithm = rng.choice(SPEC[:-3] if i % 2 else SPEC) if rng.random() < .93 else None
        argv += ["--speculative-algorithm", algorithm] if algorithm else []
        if i % 2:
            argv += ["--speculative-draft-model-path", MODEL]
            argv += ["--attention-backend", rng.choice(["triton", "flashinfer"])]
            for flag, value in zip(NUMBERS, rng.choice(TRIPLES), strict=True):
                argv += [flag, str(value)] if value is not None and algorithm else []
            slips = rng.sample([s for s in SOMETIMES if s[1] not in argv], rng.choice([0, 1, 1, 2, 3]))
            chosen = [s for s in SOMETIMES if s in slips]
        else:
            chosen = [s for s in SOMETIMES if s[0] == 1 or rng.random() < s[0] * (.8 if s[1] in NUMBERS else .45)]
        for _, flag, values in chosen:
            value = rng.choice(values)
            glued = rng.random() < .15
            argv += [flag] if value is None else [f"{flag}={value}"] if glued else [flag, str(value)]
        env = {"SGLANG_ENABLE_SPEC_V2": rng.choice(["True", "False"])} if rng.random() < .12 else {}
        out.append({"argv": argv, "env": env})
    return out


def ask(python: str, sources: Path, versions: list[str]) -> None:
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        sets = generate()
        lines = [json.dumps(s | {"argv": [folder if w == MODEL else w.replace(f"={MODEL}", f"={folder}")
                                          for w in s["argv"]]}) for s in sets]
        for version in versions:
            env = {"PATH": os.environ["PATH"], "HOME": folder, "HF_HUB_OFFLINE": "1",
                   "PYTHONPATH": str(sources / version), "TOKENIZERS_PARALLELISM": "false"}
            done = subprocess.run([python, str(HERE / "worker.py")], input="\n".join(lines), text=True, env=env,
                                  capture_output=True, timeout=3600)
            answers = [json.loads(line) for line in done.stdout.splitlines()]
            if len(answers) != len(sets):
                raise SystemExit(f"{version}: {len(answers)} answers of {len(sets)}\n{done.stderr[-1500:]}")
            _write(RECORDED / f"{version}.jsonl", [{k: v.replace(folder, MODEL) if isinstance(v, str) else v
                                                    for k, v in a.items()} for a in answers])
            _write(RECORDED / "sets.jsonl", sets)
            print(version, sum(a["ok"] for a in answers), "accepted of", len(answers), flush=True)


def _write(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded() -> dict[str, list[dict]]:
    """{release: one {"argv", "env", "ok", "error", "says", …} for each set}."""
    sets = read(RECORDED / "sets.jsonl")
    return {path.stem: [s | a for s, a in zip(sets, read(path), strict=True)]
            for path in sorted(RECORDED.glob("[0-9]*.jsonl"))}


def lint_says(version: str, row: dict) -> tuple[list[Finding], list[Finding]]:
    """(findings by which the engine's parser would refuse this set, findings that leave it open)."""
    report = lint("sglang", version, row["argv"], row["env"], target=TARGET)
    return ([f for f in report if f.verdict == "fail" and not breaks_later(f)],
            [f for f in report if f.verdict == "unknown"])


def same_words(findings: list[Finding], row: dict) -> bool:
    """Whether lint foretold the beginning of what the engine said (its exception's name, where it said nothing)."""
    head = " ".join((row["says"] or row["error"]).split()[:4])
    return any(head in f.why for f in findings)


def score() -> dict:
    """Agreement on refuse/accept per release, refusals foretold in the engine's words, and each set that differs."""
    versions, differ = {}, []
    for version, rows in recorded().items():
        agree = worded = 0
        for i, row in enumerate(rows):
            refused_by, left_open = lint_says(version, row)
            if bool(refused_by) == (not row["ok"]):
                agree += 1
                worded += bool(refused_by) and same_words(refused_by, row)
            else:
                differ.append({"version": version, "set": i, "engine": "accepts" if row["ok"] else
                               f"refuses: {row['error']}: {row.get('says', '')[:120]}",
                               "lint": [f.id for f in refused_by] or (
                                   "says unknown" if same_words(left_open, row) else "accepts")})
        versions[version] = {"sets": len(rows), "refused": sum(not r["ok"] for r in rows), "agree": agree,
                                "same_words": worded}
    return {"versions": versions, "differ": differ}


def inputs_hash() -> str:
    """Of everything the recorded answers were made from, and of the answers."""
    digest = hashlib.sha256()
    for path in (HERE / "run.py", HERE / "worker.py", *sorted(RECORDED.glob("*.jsonl"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask")
    asking.add_argument("--python", required=True)
    asking.add_argument("--sources", required=True, type=Path)
    asking.add_argument("versions", nargs="*")
    commands.add_parser("score")
    args = parser.parse_args()
    if args.command == "ask":
        ask(args.python, args.sources, args.versions or sorted(p.name for p in args.sources.iterdir()))
    result = score()
    total = sum(v["sets"] for v in result["versions"].values())
    agree = sum(v["agree"] for v in result["versions"].values())
    result = {"date": datetime.date.today().isoformat(), "inputs_sha256": inputs_hash(), "seed": SEED,
              "agreement": f"{agree} of {total}", **result}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"agreement {agree} of {total} ({100 * agree / max(1, total):.2f} %)", file=sys.stderr)


if __name__ == "__main__":
    main()
