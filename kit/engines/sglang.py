"""SGLang, from an environment on the host that the user brings: `python -m sglang.launch_server`.

What this engine does its own way:

- `--speculative-num-draft-tokens` counts the tokens *verified*: one more than are drafted (vLLM counts the drafts).
- Steps, topk and draft tokens come together or not at all; they are always written out here, as a missing one is a
  bare AssertionError. With topk 1 SGLang sets draft tokens = steps + 1 itself, so another number is refused here.
- The port is not bound before the weights are loaded and the graphs captured; from then on /health_generate answers
  503 while it warms up. It always generates a token; /health does not when busy, nor when a variable forbids it.
- `--max-running-requests` is always given: with speculation SGLang would cap it at 48, and a baseline not.
- The metrics page has counters of verification from 0.5.13 on; before, only a gauge of the last 40 steps, from which
  no window can be taken.
- Every flag written here exists from 0.4.6 to 0.5.23; which algorithms a release has is for `kit.lint` to say.
"""

from __future__ import annotations

import re

from kit import shipping
from kit.command import Command
from kit.errors import SpecError
from kit.seams import Acceptance, Phase, Unit
from kit.spec import Experiment, Spec

TYPES = {"none": "", "ngram": "NGRAM", "draft": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN",
         "dflash": "DFLASH"}

PHASES = (
    Phase("arguments", r"server_args=ServerArgs\(", "the flags were accepted"),
    Phase("distributed", r"Init torch distributed begin|Memory baseline taken", "its processes meet, NCCL starts"),
    Phase("load-target", r"Load weight begin", "reading the target's weights"),
    Phase("kv-cache", r"KV Cache (is )?allocated", "the target is loaded, its key-value cache is allocated"),
    Phase("load-drafter", r"Load weight end\..* type=\w*(Eagle|NextN|MTP|DFlash|DSpark)", "the drafter is loaded too"),
    Phase("graphs", r"Capture .*(cuda|CUDA) graph begin", "capturing CUDA graphs: minutes without a word"),
    Phase("sized", r"max_total_num_tokens=\d+", "tokens and requests that fit are known"),
    Phase("listening", r"Uvicorn running on|Application startup complete", "the port is open, warming up"),
    Phase("ready", r"The server is fired up and ready to roll", "warmed up; /health_generate answers 200"),
)

# Specific causes first; what only says "it failed" comes last. A whole log is read by `kit.diagnose`.
FAILURES = (
    Phase("spec-steps-missing", r"^\s*(self\.)?speculative_(eagle_topk|num_draft_tokens) is None\s*(and|$)",
          "--speculative-num-steps is missing beside topk or draft tokens. Fix: set steps, topk and draft tokens."),
    Phase("spec-topk-missing", r"TypeError: '>' not supported between instances of 'NoneType' and 'int'",
          "--speculative-eagle-topk is missing beside the steps. Fix: set steps, topk and draft tokens."),
    Phase("flag", r"error: (unrecognized arguments|argument |ambiguous option|the following arguments are required)",
          "SGLang refuses a flag; the line names it. Fix: correct engine.args for engine.version."),
    Phase("no-sglang", r"No module named '?sglang", "The interpreter lacks SGLang. Fix: engine.python of its venv."),
    Phase("no-gpu", r"No accelerator \(.*is available|nvidia-smi (failed|not found)",
          "SGLang sees no GPU. Fix: look at the driver, and at CUDA_VISIBLE_DEVICES."),
    Phase("model-missing", r"(Repo id must be in the form|does not appear to have a file named config\.json)",
          "The model's folder is not there or is no checkpoint. Fix: fetch it, or correct its path."),
    Phase("architecture", r"Model architectures .* are not supported for now",
          "This release does not know the model's class. Fix: a newer SGLang, or another checkpoint."),
    Phase("eagle3-target", r"set_eagle3_layers_to_capture",
          "This release cannot do EAGLE-3 on the target's class. Fix: a newer SGLang (Kimi K2.5, K2.6: 0.5.10)."),
    Phase("context", r"is greater than the derived context_length",
          "The context is longer than target or drafter allow. Fix: a smaller serve.context."),
    Phase("head-shape", r"mat1 and mat2 shapes cannot be multiplied",
          "The drafter was made for another hidden size. Fix: the drafter that belongs to this target."),
    Phase("tree-too-wide", r"selected index k out of range",
          "More draft tokens than the tree has candidates. Fix: draft_tokens of at most topk + (steps - 1) topk²."),
    Phase("gpus-busy", r"The memory capacity is unbalanced",
          "Other processes hold memory on some GPUs. Fix: end them; the survey shows the memory in use."),
    Phase("kv-memory", r"Not enough memory\. Please try to increase --mem-fraction-static",
          "No room is left for the key-value cache. Fix: see the memory plan; mostly a higher serve.mem_fraction."),
    Phase("graph-memory", r"Capture \w*\s?(cuda|CUDA) graph failed",
          "No memory is left for CUDA graphs. Fix: a lower serve.mem_fraction or fewer serve.slots."),
    Phase("gpu-memory", r"torch\.(cuda\.)?OutOfMemoryError: CUDA out of memory",
          "The GPU's memory does not suffice. Fix: see the memory plan."),
    Phase("port-busy", r"[Aa]ddress already in use|Port is already in use|is not available in \d+ seconds",
          "Another process has the port, found out only after loading. Fix: stop it, or change serve.port."),
    Phase("nccl", r"nccl(UnhandledCuda|System|Internal|Remote)Error|DistBackendError|Watchdog caught collective",
          "The GPUs could not talk to each other. Fix: try NCCL_P2P_DISABLE=1 and NCCL_DEBUG=INFO in engine.env."),
    Phase("watchdog", r"Scheduler watchdog timeout",
          "The scheduler made no step for minutes. Fix: read the stacks it printed; try the baseline."),
    Phase("scheduler", r"Scheduler hit an exception",
          "A scheduler failed; the traceback says why. A SIGKILL after it is SGLang ending itself, not the kernel."),
)


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

    def python(self, exp: Experiment, root: str) -> str:
        """The interpreter of the user's environment; `SpecError` where the config names none."""
        if not exp.engine.python:
            raise SpecError("engine.python: SGLang runs from an environment on the host, and the config names none",
                            where=exp.name, next="set engine.python, e.g. /opt/sglang/bin/python")
        return exp.engine.python

    def service(self, exp: Experiment, root: str) -> Unit:
        """The unit of the arm in force. `SpecError` where SGLang cannot do what it asks."""
        spec, serve = exp.spec, exp.serve
        flags = {"--model-path": exp.target.path(root), "--served-model-name": exp.name, "--host": serve.bind,
                 "--port": serve.port, "--tp-size": serve.tp, "--context-length": serve.context,
                 "--max-running-requests": serve.slots}
        if serve.mem_fraction is not None:
            flags["--mem-fraction-static"] = f"{serve.mem_fraction:g}"
        terms = self.terms(spec)
        if spec.needs_drafter:
            flags |= {"--speculative-algorithm": terms["--speculative-algorithm"],
                      "--speculative-draft-model-path": exp.drafter.path(root)}
        words = [str(word) for pair in (flags | terms).items() for word in pair]
        return Unit(name=exp.unit, port=serve.port, stop_timeout_s=serve.stop_within_s,
                    env={"OMP_NUM_THREADS": str(exp.engine.threads), **exp.engine.env},
                    argv=(self.python(exp, root), "-m", "sglang.launch_server", *words, "--enable-metrics",
                          *exp.engine.args),
                    about={"experiment": exp.name, "arm": exp.arm_name, "engine": self.name,
                           "algorithm": spec.algorithm})

    def dry_run(self, exp: Experiment, root: str) -> Command:
        """The installed SGLang reads the unit's flags (9 s in 0.5.12); nothing is written, no GPU is touched."""
        unit = self.service(exp, root)
        env = tuple(f"{k}={v}" for k, v in unit.env.items())
        flags = unit.argv[unit.argv.index("sglang.launch_server") + 1:]
        return Command(("env", *env, self.python(exp, root), "-", *flags), shipping.content("sglang_dryrun.py"), 120.0)

    def terms(self, spec: Spec) -> dict[str, str]:
        """Flags of `spec`; {} without speculation. `SpecError` for what SGLang has not, or would change."""
        if spec.algorithm not in TYPES:
            raise SpecError(f"algorithm {spec.algorithm}: SGLang does not have it", where="engine sglang",
                            next=f"it has: {', '.join(TYPES)}")
        if spec.algorithm == "none":
            return {}
        flags = {"--speculative-algorithm": TYPES[spec.algorithm]}
        if spec.algorithm in ("ngram", "dflash"):       # they choose depth and width themselves
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

    def verifying(self, prompt: str, max_tokens: int) -> tuple[str, dict]:
        """A plain generation whose answer counts its own verify steps, in every release."""
        return "/generate", {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens,
                                                                 "ignore_eos": True}}

    def verified(self, answer: dict) -> tuple[int, int] | None:
        """meta_info: (completion_tokens without the prefill's, spec_verify_ct)."""
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        counts = (meta.get("completion_tokens"), meta.get("spec_verify_ct")) if isinstance(meta, dict) else ()
        if not counts or not all(isinstance(c, int) for c in counts) or not counts[1]:
            return None
        return counts[0] - 1, counts[1]

    def metrics_path(self) -> str:
        return "/metrics"

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


ENGINE = SGLang()
