"""How long one lint takes in process (imports excluded, tables cold and warm).

    python tests/benchmarks/lint.py
"""

from __future__ import annotations

import statistics
import time

from kit.lint import flags, lint

COMMAND = ("python -m sglang.launch_server --model-path /m/target --port 30001 --host 0.0.0.0 --tp-size 8 "
           "--mem-fraction-static 0.88 --context-length 32768 --max-running-requests 64 --attention-backend triton "
           "--speculative-algorithm EAGLE3 --speculative-draft-model-path /m/drafter "
           "--speculative-num-draft-tokens 3 --speculative-eagle-topk 4")


def main() -> None:
    for engine, version, command in (("sglang", "0.5.12", COMMAND), ("sglang", "0.5.4", COMMAND),
                                     ("vllm", "0.32.0", "vllm serve m --speculative-config.method ngram "
                                      "--speculative-config.num_speculative_tokens 3 -tp 2")):
        cold, warm = [], []
        for _ in range(10):
            flags.table.cache_clear()
            flags._data.cache_clear()
            flags.known_versions.cache_clear()
            cold.append(_once(engine, version, command))
            warm += [_once(engine, version, command) for _ in range(10)]
        print(f"{engine}=={version}: cold {statistics.median(cold):.1f} ms (max {max(cold):.1f}), "
              f"warm {statistics.median(warm):.2f} ms (max {max(warm):.2f})")


def _once(engine: str, version: str, command: str) -> float:
    start = time.perf_counter()
    lint(engine, version, [command])
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
