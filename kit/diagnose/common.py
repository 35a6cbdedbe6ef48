"""What any server on a GPU host may print: the kernel, systemd, CUDA, NCCL, the hub, the environment."""

from __future__ import annotations

from kit.diagnose.conditions import speculating
from kit.diagnose.marks import Mark, cause

MARKS = (
    Mark("frame", "frame", r"File \"[^\"]*\", line \d+, in (\w+)"),
    Mark("raised", "raised", r"^\s*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure)(?::.*)?)$"),
    Mark("raised", "fatal", r"^\s*([\w./-]+: error: .*|CRITICAL.*|Fatal Python error.*|(?:main: )?error: .*)$"),
    Mark("args", "flags", r"--(?:model|model-path|speculative-[\w-]+|tp-size|attention-backend)[ =]"),
    Mark("progress", "progress", r"\d%[^|]*\|(?:[^|]*\|)? *(\d+/\d+)"),
    Mark("outside", "resource-tracker", r"resource_tracker: There appear to be \d+ leaked"),
    Mark("outside", "interrupted", r"^KeyboardInterrupt"),
    Mark("nccl", "nccl-init", r"using nccl==|NCCL version \d|Init COMPLETE|ncclCommInitRank", "NCCL starts"),
    Mark("nccl", "nccl-rings", r"NCCL INFO Connected all (?:rings|trees)"),
    Mark("transport", "transport", r"NCCL INFO Channel .* via (P2P|SHM|NET)"),
    Mark("restart", "restart", r"Scheduled restart job, restart counter is at (\d+)"),
    Mark("death", "exit", r"[Ww]orker exited during startup with code (-?\d+)|exited with code ([1-9]\d*)"
         r"|exit code (-\d+)"),
    Mark("death", "main-exited", r"Main process exited, code=(\w+), status=(\d+)/([\w-]+)"),
    Mark("death", "result", r"Failed with result '([\w-]+)'"),
    Mark("death", "start-limit", r"Start request repeated too quickly"),
    Mark("stopping", "unit-stop", r"\bStopping \S"),
)

# Drafter checkpoints: whichever program reads them says it in these words.
HEADS = (
    cause("head-width", r"assert hidden_states\.shape\[-1\] == input_embeds\.shape\[-1\]",
          "the head's hidden size differs from the target's, which this release does not expect",
          fix="a release whose fc takes the width from the checkpoint"),
    cause("head-embedding", r"KeyError: 'embed_tokens\.weight'",
          "the head brings an embedding of its own, which this release does not expect",
          "a head whose width differs from the target's cannot share the target's embedding", "a newer release"),
    cause("head-naming", r"There is no module or parameter named '(?:embed_tokens|midlayer|fc)\b",
          "the drafter's weights are named in another tool's way",
          "an original EAGLE checkpoint, where converted names are expected", "a newer release, or convert the checkpoint"),
    cause("vocabulary-padding", r"assert all\(vocab_sizes\[0\] == vocab_size for vocab_size in vocab_sizes\)",
          "target and drafter have vocabularies of different size",
          "in one family only the padding of the embedding differs", "pad the drafter's embedding, or another drafter"),
    cause("head-bias", r"KeyError: 'fc\.bias'", "the converter wants a bias that this head has not",
          fix="a converter that takes it as optional, or another head"),
    cause("head-config", r"KeyError: '(?:d2t|rope_parameters)'", "the loader expects a field that real heads may lack",
          "a full vocabulary has no d2t; rope_theta may stand at the top", "a newer loader"),
    cause("head-eagle1", r"has no attribute 'draft_vocab_size'", "an EAGLE-1 or -2 head was given to EAGLE-3 code",
          fix="the EAGLE-3 checkpoint of this target, or algorithm EAGLE"),
    cause("mtp-missing", r"MTP speculative decoding layer \d+ weights missing from checkpoint",
          "the checkpoint has lost its MTP layer", "quantised uploads often drop it",
          "a checkpoint that kept the layer, or another algorithm"),
)

CAUSES = (
    *HEADS,
    cause("host-memory", r"oom-kill:constraint|Out of memory: Killed process|emory cgroup out of memory"
          r"|Failed with result 'oom-kill'|A process of this unit has been killed by the OOM killer",
          "the kernel's OOM killer ended it: the host's memory ran out, not the GPU's",
          fix="more host memory or a higher MemoryMax; fewer loading threads; no pinned or hierarchical cache"),
    cause("gpu-fault", r"NVRM: Xid \([^)]*\): (\d+)", "the GPU driver reported a fault of the device",
          "the number after Xid tells which; 79 is a GPU that fell off the bus",
          "look the Xid up, check power and slot, restart the host"),
    cause("start-timeout", r"start operation timed out|Failed with result 'timeout'",
          "systemd ended the start at its time limit", "loading took longer than TimeoutStartSec, nothing else is shown",
          "a longer TimeoutStartSec (and TimeoutStopSec)"),
    cause("exec-failed", r"status=203/EXEC|Failed to (?:execute|locate executable)", "the unit's program cannot be run",
          fix="an absolute path that exists and is executable in ExecStart"),
    cause("unit-user", r"status=217/USER|status=200/CHDIR|status=209/STDOUT",
          "the unit's user, folder or log file does not exist", fix="create it, or correct the unit"),
    cause("flag", r"error: (?:unrecognized arguments|argument [^:]+: |ambiguous option|the following arguments are "
          r"required)|invalid choice: ", "the engine refuses a flag; the line names it",
          fix="correct the flag for this release; lint knows which it has"),
    cause("no-gpu", r"No accelerator \(|nvidia-smi (?:failed|not found)|No CUDA GPUs are available|Found no NVIDIA driver"
          r"|CUDA driver version is insufficient", "no usable GPU is visible",
          fix="driver, CUDA_VISIBLE_DEVICES, --gpus of the container"),
    cause("remote-code", r"contains custom code which must be executed|requires you to execute the configuration "
          r"file|argument `trust_remote_code=True`", "the checkpoint brings code that must be trusted first",
          fix="--trust-remote-code, with a pinned revision that you have read"),
    cause("architecture-unknown", r"does not recognize this architecture",
          "transformers does not know the model type", fix="the engine release that supports it"),
    cause("custom-all-reduce", r"peer access is not supported between",
          "the custom all-reduce needs peer access, which these GPUs do not have", fix="--disable-custom-all-reduce"),
    cause("nccl-error", r"ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError|DistBackendError"
          r"|Watchdog caught collective operation timeout", "NCCL failed: the GPUs could not talk to each other",
          fix="NCCL_DEBUG=INFO; try NCCL_P2P_DISABLE=1; check /dev/shm and the network interface"),
    cause("ninja-missing", r"No such file or directory: '(?:\S*/)?ninja'", "ninja is not on the PATH",
          "kernels are compiled at the first start; a unit that names its python absolutely has not that folder on PATH",
          "put the environment's bin folder first on PATH"),
    cause("cache-folder", r"Permission denied: '/\.cache|Operation not permitted \(os error \d+\)"
          r"|Read-only file system: '[^']*cache", "a cache folder cannot be written",
          "HOME is unset or not writable, and caches default to ~/.cache",
          "set HOME, HF_HOME, HF_XET_CACHE, XDG_CACHE_HOME and TRITON_CACHE_DIR to a writable folder"),
    cause("disk-full", r"No space left on device", "the disk is full", fix="make room, or move the cache"),
    cause("weights-not-there", r"Error while deserializing header: \w+|safetensors_rust\.SafetensorError",
          "a weight file is not a whole safetensors file", "a Git LFS pointer (cloned without git-lfs) or a copy that broke "
          "off", "fetch it again with the hub client and compare the sha256"),
    cause("hub-access", r"40[13] Client Error: (?:Forbidden|Unauthorized)|GatedRepoError|Access to model .* is restricted",
          "the hub refuses this account", "a gated repository, no token, or one without the right; old clients do not say "
          "which", "accept the licence with the same account, use a token that may read gated repositories"),
    cause("config-missing", r"does not appear to have a file named config\.json",
          "the path holds no model", fix="correct the path; fetch the checkpoint"),
    cause("module-missing", r"ModuleNotFoundError: No module named", "a Python package is missing",
          fix="install it in the environment that serves"),
    cause("port-busy", r"\[Errno 98\] |Port is already in use|at \S+ is not available in \d+ seconds"
          r"|address already in use", "the port is in use",
          "another server, or the last one's port that is not free yet (TIME_WAIT, about a minute)",
          "stop it, choose another port, or wait (RestartSec)"),
    cause("port-internal", r"ZMQError: Address already in use", "an internal port is in use",
          "whose it is the log does not say", "give each server its own block of ports", verdict="unknown"),
    cause("weights-memory", r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
          "the target's weights do not fit on the GPUs",
          fix="more GPUs (--tp-size), a quantised checkpoint, or free memory that others hold", phase="^load-target"),
    cause("drafter-memory", r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
          "no memory is left for the drafter", "it comes on top of the share of --mem-fraction-static: its weights, and "
          "a cache of as many tokens as the target's", "a lower --mem-fraction-static", phase="^load-drafter"),
    cause("graph-capture-memory", r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
          "no memory is left to capture CUDA graphs", "graphs take memory beside the share that weights and cache have",
          "a lower --mem-fraction-static, a smaller --cuda-graph-max-bs", phase="^capture"),
    cause("serving-memory", r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
          "the GPU ran out of memory while serving", fix="a lower --mem-fraction-static, smaller prefill chunks",
          phase="^(ready|warmup)"),
    cause("drafter-not-budgeted", r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
          "the GPU ran out of memory with a drafter beside the target",
          "in older releases --mem-fraction-static governs the target's cache alone; the drafter's weights and a cache of "
          "as many tokens come on top", "a lower --mem-fraction-static", when=speculating),
    cause("gpu-memory", r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
          "the GPU ran out of memory", "in which phase the log does not show",
          "a lower memory share, a smaller batch or context, more GPUs"),
    cause("index-past-table", r"srcIndex < srcSelectDimSize|index out of bounds|Out Of Bound Tensor access",
          "an index ran past the end of a table", "several causes print this: a position beyond the drafter's "
          "max_position_embeddings, a draft id beyond the vocabulary (d2t), a row of NaN",
          "check d2t against the vocabulary and the drafter's context; then rerun with CUDA_LAUNCH_BLOCKING=1",
          verdict="unknown"),
    cause("cuda-fault", r"device-side assert triggered|illegal memory access|misaligned address",
          "a CUDA kernel failed", "the line that reports it is not the one that failed",
          "rerun with CUDA_LAUNCH_BLOCKING=1 and read the first assertion", verdict="unknown"),
    cause("ssh-banner", r"Error reading SSH protocol banner", "the SSH server did not greet in time",
          "an overloaded sshd, MaxStartups, a wrong port or a proxy", "fewer parallel connections, a longer wait"),
    cause("widget-extension", r"Error displaying widget: model not found",
          "the widget extension is missing where JupyterLab runs, or is of another version",
          fix="install matching versions where JupyterLab runs"),
)
