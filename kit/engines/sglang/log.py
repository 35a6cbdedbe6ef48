"""SGLang's log as data: the phases of a start, and the lines that explain its end. Fixtures: tests/fixtures/sglang."""

from __future__ import annotations

from kit.seams import Phase

# Every rank of a tensor-parallel group loads: one of them is enough, or its second load would look like the drafter's.
FIRST_RANK = r"^\[[-\d]+ [\d:.,]+(?: (?:DP0 )?(?:PP0 )?TP0\b[^\]]*)?\] "

# After one of these the main process sends SIGKILL to itself and its children: no sign of the kernel's memory killer.
OWN_KILL = (r"Received sigquit from a child process|SIGQUIT received\..*It usually means|Scheduler hit an exception|"
            r"Subprocess \w+ \(pid=\d+\) crashed|Scheduler watchdog timeout")

PHASES = (
    Phase("arguments", r"server_args=ServerArgs\(", "the flags were accepted"),
    Phase("distributed", r"Init torch distributed begin|Memory baseline taken", "its processes meet, NCCL starts"),
    Phase("load-target", rf"{FIRST_RANK}Load weight begin", "reading the target's weights"),
    Phase("kv-cache", r"KV Cache (is )?allocated", "the target is loaded, its key-value cache is allocated"),
    Phase("load-drafter", rf"{FIRST_RANK}Load weight begin", "reading the drafter's weights", nth=2),
    Phase("drafter", r"Load weight end\..* type=\w*(Eagle|NextN|MTP|DFlash|DSpark)", "the drafter is loaded too"),
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
    Phase("scheduler", r"Scheduler hit an exception|Subprocess scheduler\w* \(pid=\d+\) crashed",
          "A scheduler failed; the traceback says why. A SIGKILL after it is SGLang ending itself, not the kernel."),
)
