"""llama.cpp's server, out of the `xllamacpp` wheel; what runs on the host is kit/remote/llamacpp_server.py.

What this engine does its own way:

- A slot's context is --ctx-size / --parallel, so the flag carries context × slots.
- Drafters propose chains: one token per drafter pass, no tree.
- A request is independent of those before it only with `cache_prompt: false` in
  its body (the launcher also keeps no prompts in host memory); greedy is
  `temperature: 0`. Text with and without speculation may still differ at near
  ties, as a batch of several tokens rounds differently from single steps.
- The launcher leaves the drafter's backend sampling off. With it (llama-server's default) the accept length of
  the micro pair falls from 2.90 to 2.13 when two slots work at once; without it, it stays at 2.90.
- Without a usable drafter llama.cpp logs an error and serves *without*
  speculation; the launcher turns that into a failure.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from kit.command import Command, Result
from kit.errors import SpecError
from kit.seams import Acceptance, DryRun, Phase, Unit
from kit.spec import Experiment, Spec

TYPES = {"none": "none", "ngram": "ngram-simple", "draft": "draft-simple", "eagle3": "draft-eagle3"}

PROOF_TOKENS = 40

PHASES = (
    Phase("start", r"^xllamacpp \d", "the launcher runs and has the wheel"),
    Phase("load-target", r"load_model: loading model '", "reading the target's weights"),
    Phase("threadpool", r"llama threadpool init", "the target is loaded, its threads are ready"),
    Phase("load-drafter", r"loading draft model '", "reading the drafter's weights"),
    Phase("slots", r"load_model: initializing, n_slots", "allocating slots and their key-value cache"),
    Phase("listening", r"init: listening on http", "loaded; /health answers 200"),
    Phase("first-request", r"launch_slot_: .*processing task", "a request is being served"),
)

# Specific causes first; what only says "it failed" comes last.
FAILURES = (
    Phase("no-wheel", r"error: this interpreter has no usable xllamacpp",
          "The interpreter lacks the engine. Fix: leave engine.python out (the kit installs one), or install it."),
    Phase("file-missing", r"error: cannot read the (draft )?model: ",
          "The file is not there or not readable. Fix: fetch the checkpoint again, or correct its path."),
    Phase("not-gguf", r"error: the (draft )?model is not a GGUF file",
          "llama.cpp loads GGUF only. Fix: name a .gguf file, or convert the checkpoint."),
    Phase("truncated", r"data is not within the file bounds|gguf_init_from_reader: failed",
          "The GGUF ends too early: an interrupted copy. Fix: fetch it again with a pinned sha256."),
    Phase("unknown-architecture", r"unknown model architecture: '",
          "This llama.cpp does not know the model's architecture. Fix: a newer xllamacpp, or another model."),
    Phase("head-as-target", r"eagle3 requires ctx_other",
          "The target is itself an EAGLE-3 head. Fix: swap target and drafter in the config."),
    Phase("drafter-other-target", r"GGML_ASSERT\(ggml_can_repeat",
          "Shapes do not fit: just after 'loading draft model' the head was made for a target of another hidden size. "
          "Fix: take the drafter that belongs to this target."),
    Phase("drafter-not-eagle3", r"draft model is not eagle3",
          "The drafter is no EAGLE-3 head. Fix: algorithm draft for a plain small model, or the right drafter."),
    Phase("drafter-vocabulary", r"vocabs are not compatible|draft model vocab type must match",
          "Target and drafter have different tokenizers. Fix: a drafter of the same family, or algorithm ngram."),
    Phase("drafter-missing", r"error: --spec-type \S+ needs --model-draft",
          "The algorithm needs a drafter and none was given. Fix: name one in the config."),
    Phase("spec-type", r"error: unknown --spec-type",
          "This build has no such kind of speculation; the line lists what it has. Fix: choose one of those."),
    Phase("port-busy", r"error: cannot listen on .*Address already in use",
          "Another process listens on the port. Fix: stop it, or change serve.port."),
    Phase("address", r"error: cannot listen on ",
          "The host has no such address, or may not use this port. Fix: serve.bind 127.0.0.1 and a port from 1024 on."),
    Phase("no-memory", r"ggml_aligned_malloc: insufficient memory|failed to allocate buffer",
          "Memory does not suffice, mostly for the key-value cache. Fix: less serve.context or serve.slots."),
    Phase("flag", r"llamacpp_server: error: ",
          "The launcher refuses a flag; the line names it. Fix: correct engine.args or the field behind it."),
    Phase("not-speculating", r"error: --spec-type \S+ is not in force",
          "The drafter could not be set up; the lines above say why. Fix: check the drafter against the target."),
    Phase("stopped", r"error: the server stopped listening",
          "The server inside the process ended by itself. Fix: read the lines above and start it again."),
    Phase("assertion", r"GGML_ASSERT\(|GGML_ABORT",
          "llama.cpp met a state that it does not handle. Fix: read which load it was in; try the baseline arm."),
    Phase("load", r"error: llama\.cpp did not start",
          "Loading failed; the lines marked E above say why. Fix: check the model file and the flags."),
)


class LlamaCpp:
    """`kit.seams.Engine` for llama.cpp.

    >>> ENGINE.terms(Spec(algorithm="eagle3", steps=3))
    {'--spec-type': 'draft-eagle3', '--spec-draft-n-max': '3'}
    """

    name = "llamacpp"
    algorithms = tuple(TYPES)
    phases = PHASES
    failures = FAILURES
    packages = ("xllamacpp==2026.10.11549",)
    shipped = ("llamacpp_server.py",)
    own_kill = ""

    def python(self, exp: Experiment, root: str) -> str:
        """The user's interpreter, or that of an environment named after what it holds."""
        digest = hashlib.sha256("\n".join(self.packages).encode()).hexdigest()[:8]
        return exp.engine.python or f"{root}/engines/llamacpp-{digest}/bin/python"

    def service(self, exp: Experiment, root: str) -> Unit:
        """The unit of the arm in force. `SpecError` where llama.cpp cannot do what it asks."""
        spec, serve = exp.spec, exp.serve
        flags = {"--model": exp.target.path(root), "--alias": exp.name, "--host": serve.bind, "--port": serve.port,
                 "--ctx-size": serve.context * serve.slots, "--parallel": serve.slots,
                 "--threads": exp.engine.threads, **self.terms(spec)}
        if spec.needs_drafter:
            flags["--model-draft"] = exp.drafter.path(root)
        words = [str(word) for pair in flags.items() for word in pair]
        return Unit(name=exp.unit, port=serve.port, env=dict(exp.engine.env), stop_timeout_s=serve.stop_within_s,
                    argv=(*exp.engine.prefix, self.python(exp, root), f"{root}/bin/llamacpp_server.py", *words,
                          "--metrics", *exp.engine.args),
                    about={"experiment": exp.name, "arm": exp.arm_name, "engine": self.name,
                           "algorithm": spec.algorithm})

    def terms(self, spec: Spec) -> dict[str, str]:
        """Flags of `spec`; {} without speculation. `SpecError` for what llama.cpp has not."""
        if spec.algorithm not in TYPES:
            raise SpecError(f"algorithm {spec.algorithm}: llama.cpp cannot serve it from this kit",
                            where="engine llamacpp", next=f"it has: {', '.join(TYPES)}")
        if spec.algorithm == "none":
            return {}
        if spec.topk > 1:
            raise SpecError(f"topk {spec.topk}: llama.cpp drafts chains, not trees",
                            where="engine llamacpp", next="set topk to 1")
        if spec.algorithm == "ngram":
            return {"--spec-type": TYPES["ngram"], "--spec-ngram-simple-size-n": str(spec.lookup),
                    "--spec-ngram-simple-size-m": str(spec.drafts)}
        if spec.drafts != spec.steps:
            raise SpecError(f"steps {spec.steps} with draft_tokens {spec.draft_tokens}: a chain drafts one per step",
                            where="engine llamacpp", next="leave draft_tokens out, or make the two equal")
        return {"--spec-type": TYPES[spec.algorithm], "--spec-draft-n-max": str(spec.drafts)}

    def ready_path(self) -> str:
        """200 when loaded, 503 while loading (both recorded in the tests)."""
        return "/health"

    def generation(self, prompt: str, max_tokens: int, stream: bool) -> tuple[str, dict]:
        """Greedy, and independent of what was served before: `cache_prompt: false` has every prompt computed anew.

        The last chunk of a stream carries `usage` (include_usage), the same counts as an unstreamed answer.
        """
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0,
                "seed": 0, "cache_prompt": False, "stream": stream}
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
        return ""

    def acceptance(self, metrics: str) -> Acceptance | None:
        """The `llamacpp:spec_decode_*` counters; None where the page has none.

        This build shows the counters, at zero, whether or not it speculates, so zeros mean "nothing drafted yet":
        a baseline, or an arm before its first draft (n-gram drafts only after a repetition). Positions are
        listed once something was drafted.
        """
        def counter(name: str) -> float | None:
            found = re.search(rf"^llamacpp:spec_decode_num_{name}_total ([0-9.eE+-]+)$", metrics, re.M)
            return float(found[1]) if found else None

        steps, drafted, accepted = counter("drafts"), counter("draft_tokens"), counter("accepted_tokens")
        if steps is None or drafted is None or accepted is None:
            return None
        positions = re.findall(r'^llamacpp:spec_decode_num_accepted_tokens_per_pos_total\{position="(\d+)"\} (\S+)$',
                               metrics, re.M)
        by_position = {int(position): float(value) for position, value in positions}
        deepest = max(by_position, default=-1)
        return Acceptance(steps, drafted, accepted, tuple(by_position.get(i, 0.0) for i in range(deepest + 1)))

    def info_path(self) -> str:
        return ""

    def chunk_is_step(self, exp: Experiment) -> bool:
        """It sends token by token."""
        return False

    def accept_so_far(self, info: dict) -> float | None:
        return None

    def proof(self, prompts: tuple[str, ...]) -> list[tuple[str, dict]]:
        """One short chat: a CPU core gives some 30 tokens a second, and a drafter that is of no use shows at once."""
        return [self.generation(prompts[0], PROOF_TOKENS, stream=False)]

    def proven(self, answer: Any) -> tuple[int, Acceptance | None]:
        """Tokens alone: the counters tell how many drafts were right."""
        return self.generated(answer), None

    def dry_run(self, exp: Experiment, root: str) -> Command | None:
        """None: the launcher refuses a wrong flag within a second, before it loads."""
        return None

    def read_dry_run(self, result: Result, exp: Experiment) -> DryRun:
        return DryRun("", None, "", ())

    def elapsed_s(self, line: str) -> float | None:
        """Seconds since the server's start that a log line carries (min.s.ms.µs); None for a line without.

        >>> ENGINE.elapsed_s("0.01.469.702 I srv          init: model loaded")
        1.469702
        """
        stamp = re.match(r"(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) ", line)
        if not stamp:
            return None
        minutes, seconds, milli, micro = map(int, stamp.groups())
        return minutes * 60 + seconds + (milli * 1000 + micro) / 1e6


ENGINE = LlamaCpp()
