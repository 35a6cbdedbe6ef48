"""SGLang, from an environment on the host that the user brings: `python -m sglang.launch_server`.

What this engine does its own way:

- `--speculative-num-draft-tokens` counts the tokens *verified*: one more than are drafted (vLLM counts the drafts).
- Steps, topk and draft tokens come together or not at all; they are always written out here, as a missing one is a
  bare AssertionError. With topk 1 SGLang sets draft tokens = steps + 1 itself, so another number is refused here.
- The port is not bound before the weights are loaded and the graphs captured; from then on /health_generate answers
  503 while it warms up. It always generates a token; /health does not when busy, nor when a variable forbids it.
- `--max-running-requests` is always given: with speculation SGLang would cap it at 48, and a baseline not.
- Acceptance comes from three places, each for what it means: the counters of the metrics page (0.5.13+) give a window
  of any length; `meta_info` of a /generate answer gives one request's, in every release; `/get_server_info` gives a
  mean since the start or the last /flush_cache, which moves every 40 decode steps and so says nothing of a short run.
- The flags written here exist from 0.4.6 to 0.5.23; `flags.py` knows algorithms and names by release, `log.py` the
  log, `dryrun.py` what SGLang itself says about a command.
- Its caches (kernels compiled on first use) go below the kit's folder, where the server may write, and undo finds them.
"""

from __future__ import annotations

import re
from typing import Any

from kit import shipping
from kit.command import Command, Result
from kit.engines.sglang import dryrun
from kit.engines.sglang.flags import TYPES, algorithm, rendered
from kit.engines.sglang.log import FAILURES, OWN_KILL, PHASES
from kit.errors import SpecError
from kit.seams import Acceptance, DryRun, Unit
from kit.spec import Experiment, Spec

PROGRAM = "sglang_dryrun.py"
DRY_RUN_S = 180.0           # importing torch from a cold disk takes a minute; the program itself gives up after 150 s
PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROOF_TOKENS = 80           # of each prompt of a proof; four of them are more than the 300 that are judged


class SGLang:
    """`kit.seams.Engine` for SGLang, 0.4.6 to 0.5.23.

    >>> ENGINE.terms(Spec(algorithm="eagle3", steps=3))["--speculative-num-draft-tokens"]
    '4'
    """

    name = "sglang"
    algorithms = tuple(TYPES)
    phases = PHASES
    failures = FAILURES
    packages = ()
    shipped = ()
    own_kill = OWN_KILL

    def python(self, exp: Experiment, root: str) -> str:
        """The interpreter of the user's environment; `SpecError` where the config names none."""
        if not exp.engine.python:
            raise SpecError("engine.python: SGLang runs from an environment on the host, and the config names none",
                            where=exp.name, next="set engine.python, e.g. /opt/sglang/bin/python")
        return exp.engine.python

    def service(self, exp: Experiment, root: str) -> Unit:
        """The unit of the arm in force, for `engine.version`. `SpecError` where SGLang cannot do what it asks."""
        spec, serve, version = exp.spec, exp.serve, exp.engine.version
        flags = {"--model-path": exp.target.path(root), "--served-model-name": exp.name, "--host": serve.bind,
                 "--port": serve.port, "--tp-size": serve.tp, "--context-length": serve.context,
                 "--max-running-requests": serve.slots}
        if serve.mem_fraction is not None:
            flags["--mem-fraction-static"] = f"{serve.mem_fraction:g}"
        algorithm(spec.algorithm, version)
        terms = self.terms(spec)
        if spec.needs_drafter:
            flags |= {"--speculative-algorithm": terms["--speculative-algorithm"],
                      "--speculative-draft-model-path": exp.drafter.path(root)}
        words = [str(word) for pair in (flags | terms).items() for word in pair]
        return Unit(name=exp.unit, port=serve.port, stop_timeout_s=serve.stop_within_s, env=self._env(exp, root),
                    argv=(*exp.engine.prefix, self.python(exp, root), "-m", "sglang.launch_server", *words,
                          "--enable-metrics", *rendered(exp.engine.args, version)),
                    about={"experiment": exp.name, "arm": exp.arm_name, "engine": self.name,
                           "algorithm": spec.algorithm})

    def _env(self, exp: Experiment, root: str) -> dict[str, str]:
        """The environment's programs first on PATH (compilers of kernels call ninja); caches where undo finds them."""
        venv, cache = self.python(exp, root).rsplit("/", 1)[0], f"{root}/compiled"
        return {"OMP_NUM_THREADS": str(exp.engine.threads), "PATH": f"{venv}:{PATH}", "XDG_CACHE_HOME": cache,
                "TRITON_CACHE_DIR": f"{cache}/triton", "FLASHINFER_WORKSPACE_BASE": cache, **exp.engine.env}

    def dry_run(self, exp: Experiment, root: str) -> Command | None:
        """Flags and environment of `service`, read by the SGLang there. The program travels on stdin: nothing is
        written on the host, and of the models only what is there is read."""
        unit, python = self.service(exp, root), self.python(exp, root)
        flags = unit.argv[unit.argv.index("sglang.launch_server") + 1:]
        env = unit.env | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": "1"}
        return Command(("env", *(f"{k}={v}" for k, v in env.items()), *exp.engine.prefix, python, "-", *flags),
                       shipping.content(PROGRAM), DRY_RUN_S)

    def read_dry_run(self, result: Result, exp: Experiment) -> DryRun:
        return dryrun.read(result, exp)

    def terms(self, spec: Spec) -> dict[str, str]:
        """Flags of `spec`; {} without speculation. `SpecError` for what SGLang has not, or would change."""
        name = algorithm(spec.algorithm, None)
        if not name:
            return {}
        flags = {"--speculative-algorithm": name}
        if spec.algorithm in ("ngram", "dflash", "dspark"):     # they choose depth and width themselves
            return flags | ({"--speculative-num-draft-tokens": str(spec.verified)} if spec.draft_tokens else {})
        if spec.topk == 1 and spec.drafts != spec.steps:
            raise SpecError(f"steps {spec.steps} with draft_tokens {spec.draft_tokens}: a chain drafts one per step, "
                            f"and SGLang would verify {spec.steps + 1}", where="engine sglang",
                            next="leave draft_tokens out, or widen the tree with topk")
        return flags | {"--speculative-num-steps": str(spec.steps), "--speculative-eagle-topk": str(spec.topk),
                        "--speculative-num-draft-tokens": str(spec.verified)}

    def ready_path(self) -> str:
        """200 when warmed up, 503 while warming up; nobody listens while it loads."""
        return "/health_generate"

    def generation(self, prompt: str, max_tokens: int, stream: bool) -> tuple[str, dict]:
        """Greedy. The last chunk of a stream carries `usage`, the same counts as an unstreamed answer."""
        body = {"model": "default", "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens,
                "temperature": 0, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        return "/v1/chat/completions", body

    def generated(self, answer: dict) -> int:
        """usage.completion_tokens of an OpenAI answer; 0 when it is not one."""
        usage = answer.get("usage") if isinstance(answer, dict) else None
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return tokens if isinstance(tokens, int) else 0

    def metrics_path(self) -> str:
        return "/metrics"

    def flush_path(self) -> str:
        return "/flush_cache"

    def acceptance(self, metrics: str) -> Acceptance | None:
        """Counters of finished requests (0.5.13+); None where the page has none: a baseline, or an older release.

        A request's first token comes from its prefill, every further one from a verify step that gave one of the
        target's own and the accepted drafts: accepted = generated - requests - steps.
        """
        def total(name: str) -> float | None:
            """Over data-parallel ranks; the ranks of one tensor-parallel group say the same."""
            rows = re.findall(rf"^sglang:{name}(\{{[^}}\n]*\}})? ([0-9.eE+-]+)$", metrics, re.M)
            mine = [float(value) for labels, value in rows if 'tp_rank="' not in labels or 'tp_rank="0"' in labels]
            return sum(mine) if mine else None

        steps, generated, requests = map(total, ("spec_verify_calls_total", "generation_tokens_total",
                                                 "num_requests_total"))
        verified = re.search(r"^sglang:spec_num_draft_tokens(?:\{[^}\n]*\})? ([0-9.eE+-]+)$", metrics, re.M)
        if steps is None or generated is None or requests is None or not verified:
            return None
        return Acceptance(steps, steps * (float(verified[1]) - 1), max(0.0, generated - requests - steps))

    def chunk_is_step(self, exp: Experiment) -> bool:
        """Unless it is told to gather. (Measured: within 1 % of `spec_verify_ct` over 64 requests, data/reference.)"""
        return not any(arg.startswith("--stream-interval") for arg in exp.engine.args)

    def info_path(self) -> str:
        """Its name in every release; 0.5.6 and later call it /server_info too."""
        return "/get_server_info"

    def accept_so_far(self, info: dict) -> float | None:
        """Of the first data-parallel rank; None before the first 40 decode steps, and without speculation."""
        states = info.get("internal_states") if isinstance(info, dict) else None
        length = states[0].get("avg_spec_accept_length") if isinstance(states, list) and states \
            and isinstance(states[0], dict) else None
        return float(length) if isinstance(length, (int, float)) else None

    def proof(self, prompts: tuple[str, ...]) -> list[tuple[str, dict]]:
        """One request with all prompts: SGLang runs them side by side, and each answer tells its own acceptance."""
        return [("/generate", {"text": list(prompts), "sampling_params": {
            "temperature": 0, "max_new_tokens": PROOF_TOKENS, "ignore_eos": True}})]

    def proven(self, answer: Any) -> tuple[int, Acceptance | None]:
        """Tokens and acceptance from `meta_info`. `spec_verify_ct` is in every release; from 0.5.12 on it also says how
        many drafts were right, before that they follow from it: the first token is the prefill's."""
        tokens, steps, drafted, accepted, told = 0, 0.0, 0.0, 0.0, False
        for one in answer if isinstance(answer, list) else [answer]:
            meta = one.get("meta_info") if isinstance(one, dict) else None
            if not isinstance(meta, dict) or not isinstance(meta.get("completion_tokens"), int):
                continue
            tokens += meta["completion_tokens"]
            verified = meta.get("spec_verify_ct")
            if isinstance(verified, int) and verified:
                right = meta.get("spec_num_correct_drafts")
                told, steps = True, steps + verified
                drafted += meta.get("spec_num_proposed_drafts") or 0
                accepted += right if isinstance(right, int) else max(0, meta["completion_tokens"] - 1 - verified)
        return tokens, Acceptance(steps, drafted, accepted) if told else None


ENGINE = SGLang()
