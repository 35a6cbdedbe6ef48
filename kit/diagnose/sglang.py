"""What SGLang's lines say, 0.4.6 to 0.5.23: its phases, what it serves, and why it ends.

Older and newer wordings stand side by side; no line means two things in two releases.
Sources: the `logger` calls and `raise`s of those wheels, recorded starts of
0.5.12.post1, and threads of its issue tracker.
"""

from __future__ import annotations

from kit.diagnose.conditions import (
    aux_widths_apart,
    draft_head_on_mla_backend,
    mtp_without_verify,
    prefix_hit_while_speculating,
    speculating,
)
from kit.diagnose.marks import Mark, cause

_SPEC_RULES = ("_handle_speculative_decoding", "_handle_eagle_family", "auto_choose_speculative_params",
               "spec-assertion")

MARKS = (
    Mark("args", "args", r"server_args=ServerArgs\("),
    Mark("begin", "distributed", r"Init torch distributed begin", "processes find each other, NCCL starts"),
    Mark("end", "distributed", r"Init torch distributed ends\.(?: elapsed=([\d.]+) s)?"),
    Mark("begin", "load", r"Load weight begin", "reading weights"),
    Mark("end", "load", r"Load weight end\.(?: elapsed=([\d.]+) s,?)?(?: type=(\w+))?"),
    Mark("begin", "kv-cache", r"Using KV cache dtype", "allocating the key-value cache"),
    Mark("end", "kv-cache", r"KV Cache (?:is )?allocated\.()"),
    Mark("sized", "kv-cache", r"KV Cache (?:is )?allocated\..*?#tokens: (\d+)"),
    Mark("begin", "capture", r"Capture (?:([\w ]+?) )?(?:cuda|CUDA) graph begin", "capturing CUDA graphs"),
    Mark("end", "capture", r"Capture (?:([\w ]+?) )?(?:cuda|CUDA) graph end\.?(?:.*?elapsed[:=] ?([\d.]+) ?s)?"),
    Mark("begin", "warmup", r"Uvicorn running on|Application startup complete", "the port is open, warming up"),
    Mark("ready", "ready", r"The server is fired up and ready to roll", "serving"),
    Mark("prefill", "prefill", r"Prefill batch.*?#new-seq: (\d+).*?#cached-token: (\d+).*?#running-req: (\d+)"),
    Mark("decode", "decode", r"Decode batch.*?#running-req: (\d+),(?:.*?token usage: ([\d.]+),)?"
         r"(?:.*?accept len: ([\d.]+),)?.*?cuda graph: (\w+), gen throughput \(token/s\): ([\d.]+)"
         r"(?:, #queue-req: (\d+))?"),
    Mark("decode", "decode-cut", r"^()()accept len: ([\d.]+), (?:accept rate: [\d.]+, )?cuda graph: (\w+), "
         r"gen throughput \(token/s\): ([\d.]+)(?:, #queue-req: (\d+))?"),
    Mark("accept", "accept", r"accept_len: ([\d.]+)\s*$"),
    Mark("full", "retract", r"KV cache pool is full\. Retract requests"),
    Mark("death", "child", r"Received sigquit from a child process|SIGQUIT received"),
    Mark("death", "scheduler", r"Scheduler hit an exception"),
    Mark("death", "crashed", r"Subprocess \S+ \(pid=\d+\) crashed with exit code (-?\d+)"),
    Mark("death", "warmup", r"Initialization failed\. warmup error"),
    Mark("stop", "sigterm", r"SIGTERM received\."),
    Mark("frame", "spec-assertion", r"speculative_eagle_topk is None|speculative_num_draft_tokens is None"),
    Mark("note", "graph-batches", r"Capture cuda graph bs \[[\d, ]*?(\d+)\]"),
    Mark("note", "spec-concurrency-cap", r"Max running requests is reset to (\d+)",
         "speculation capped the running requests: a baseline without it is not capped"),
    Mark("note", "spec-overlap", r"Spec v1 is used|Overlap scheduler is disabled|Non-overlap \(synchronous\) spec v2",
         "the overlap scheduler is off, which costs speed"),
    Mark("note", "spec-tokens-adjusted", r"speculative_num_draft_tokens is adjusted to",
         "draft tokens were set to steps + 1, as topk is 1"),
    Mark("note", "spec-adaptive", r"speculative_adaptive disabled:", "adaptive speculation fell back to static"),
)

CAUSES = (
    cause("spec-steps-missing", r"^AssertionError\s*$", "the speculative flags are incomplete",
          "--speculative-num-steps is unset while topk or draft tokens are set: SGLang asserts all three or none",
          "give steps, topk and draft tokens together (3, 1, 4 is its own choice), or none of them",
          trace=_SPEC_RULES, only_traced=True),
    cause("spec-topk-missing", r"TypeError: '>' not supported between instances of 'NoneType' and 'int'",
          "the speculative flags are incomplete", "--speculative-num-steps is given without --speculative-eagle-topk",
          "give steps, topk and draft tokens together (topk 1, draft tokens = steps + 1), or none of them",
          trace=(*_SPEC_RULES, "__post_init__")),
    cause("flag-of-another-engine", r"error: unrecognized arguments:.*--(?:num-speculative-tokens|speculative-config"
          r"|speculative-model(?: |=)|gpu-memory-utilization|ngram-prompt-lookup-max|max-num-seqs)",
          "flags of vLLM were given to SGLang", "SGLang has one flag per speculative number, vLLM one JSON",
          "translate: --speculative-algorithm, --speculative-draft-model-path, --speculative-num-steps, "
          "--speculative-eagle-topk 1, --speculative-num-draft-tokens = vLLM's tokens + 1"),
    cause("spec-algorithm-unknown", r"Unknown speculative algorithm name: ",
          "this release does not know the speculative algorithm", fix="choose one it has; lint lists them"),
    cause("spec-multi-layer", r"multi-layer EAGLE requires speculative_num_draft_tokens ==",
          "--enable-multi-layer-eagle needs draft tokens = steps + 1",
          "the numbers chosen automatically (5, 4, 8 for Llama) do not fit the flag",
          "leave the flag out for a plain target; else set draft tokens = steps + 1"),
    cause("spec-topk-page", r"speculative_eagle_topk > 1 with page_size > 1 is",
          "topk above 1 with a page size above 1 is refused for this attention backend",
          fix="topk 1, page size 1, or flashinfer"),
    cause("spec-attention-topk", r"trtllm_mha backend only supports topk = 1",
          "trtllm_mha cannot verify a tree", fix="topk 1, or another attention backend"),
    cause("gpu-backend", r"TRTLLM M[HL]A backend (?:for \w+ )?(?:is only supported on|requires) ",
          "the attention backend is not built for this GPU's compute capability",
          "sm_120 and sm_121 are not sm_100, though sold as Blackwell too",
          "--attention-backend flashinfer or triton"),
    cause("mla-prefill-kernel", r"TllmGenFmhaRunner", "the MLA prefill kernel is not built for this GPU",
          "TensorRT-LLM's kernels are for sm_100; on sm_120 the automatic choice goes there",
          "--prefill-attention-backend flashinfer (or triton)"),
    cause("spec-attention-backend", r"not supported in decode attention backend |Speculative decoding is currently not "
          r"supported with (?:torch_native|flex_attention)", "the attention backend cannot draft or verify",
          fix="flashinfer, triton or fa3"),
    cause("spec-attention-backend", r"AttributeError: 'NoneType' object has no attribute 'shape'",
          "the attention backend cannot verify drafts", "torch_native and flex_attention have no target verification; "
          "no check existed, so it ended in warm-up", "flashinfer, triton or fa3", when=mtp_without_verify),
    cause("spec-disaggregation", r"has no attribute 'prepare_for_decode'",
          "DFLASH has no prefill/decode disaggregation", fix="DFLASH without disaggregation, or another algorithm"),
    cause("spec-pipeline", r"Pipeline parallelism (?:is not compatible with overlap|currently only supports EAGLE)",
          "pipeline parallelism does not go with this speculation", fix="--pp-size 1"),
    cause("spec-dp-attention", r"speculative decoding does not support dp attention",
          "this algorithm does not go with DP attention", fix="leave --enable-dp-attention out"),
    cause("spec-lora", r"LoRA is only compatible with NGRAM", "this release speculates with LoRA by NGRAM only",
          fix="SGLang 0.5.19 or newer, or no speculation"),
    cause("draft-attention-backend", r"^(?:\w+\.)*\w+(?:Error|Exception)\b",
          "the drafter was given the target's MLA attention backend",
          "trtllm_mla serves MLA only, and this drafter has ordinary heads",
          "--speculative-draft-attention-backend trtllm_mha, or an MLA drafter",
          trace=("maybe_init_draft_worker",), only_traced=True, when=draft_head_on_mla_backend),
    cause("transformers-too-new", r"is already used by a Transformers config",
          "transformers is too new for this SGLang",
          "its own model names collide with those that transformers has by now", "install the transformers it pins"),
    cause("kernel-package", r"sglang-kernel with minimum required version|is less than the minimum required version"
          r"|Could not load any common_ops library", "sglang-kernel is missing or does not fit",
          fix="install the kernel package that this SGLang release pins, for this CUDA"),
    cause("architecture-unsupported", r"Model architectures .* are not supported for now",
          "this release does not know the model's class", fix="a newer SGLang, or another checkpoint"),
    cause("eagle3-target-unsupported", r"has no attribute 'set_eagle3_layers_to_capture'"
          r"|does not implement set_eagle3_layers_to_capture",
          "this release cannot capture EAGLE-3 layers of the target's class",
          "it is found out only after the target was loaded",
          "a newer SGLang (Kimi K2.5 and K2.6: 0.5.10), or serve without speculation"),
    cause("context-length", r"ValueError: .*is greater than the derived context_length",
          "the context asked for is longer than the model's own",
          "after the target was loaded it is the drafter's: it gets the target's effective context",
          "--context-length of at most the smaller one, or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"),
    cause("head-layers", r"EAGLE3 currently only supports \d+ layer", "the drafter's config names more than one layer",
          "mostly num_hidden_layers copied from the target's config",
          "num_hidden_layers 1 in the drafter's config.json"),
    cause("aux-layers", r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton",
          "fewer auxiliary layers were captured than the head expects",
          "the widths are two multiples of one hidden size: an id in eagle_aux_hidden_state_layer_ids is no layer "
          "that the engine can capture, or is named by another engine's convention",
          "correct the ids; SGLang names the layer whose output is taken", when=aux_widths_apart),
    cause("head-hidden-size", r"mat1 and mat2 shapes cannot be multiplied",
          "the head was made for another hidden size or number of auxiliary layers",
          fix="the drafter that belongs to this target", when=speculating),
    cause("spec-tree-too-wide", r"selected index k out of range", "more draft tokens than the tree has candidates",
          "draft tokens - 1 must not exceed topk + (steps - 1) · topk²", "fewer draft tokens, or more topk or steps"),
    cause("gpus-busy", r"The memory capacity is unbalanced", "other processes hold memory on some of the GPUs",
          fix="end them (nvidia-smi names them), or choose free GPUs"),
    cause("custom-all-reduce", r"peer access is not supported between these two devices",
          "the custom all-reduce needs peer access, which these GPUs do not have", fix="--disable-custom-all-reduce"),
    cause("verify-kernel-hang", r"tree_speculative_sampling_target_only \(",
          "the kernel that verifies drafts never returned", "seen on Ampere: full utilisation at idle power, /health "
          "answers 200 until the watchdog ends it", "no speculation there, or another sampling path"),
    cause("kv-cache-memory", r"Not enough memory\. Please try to increase --mem-fraction-static",
          "no memory is left for the key-value cache", "weights (and drafter) fill the share that "
          "--mem-fraction-static gives", "a higher fraction, more GPUs, or a smaller or quantised model"),
    cause("graph-capture-memory", r"Capture (?:cuda|CUDA) graph failed|Capture \w+ cuda graph failed",
          "CUDA graphs could not be captured, mostly for lack of memory",
          "verification multiplies the rows of a batch by the draft tokens, and graphs take memory beside the share of "
          "--mem-fraction-static", "a smaller --cuda-graph-max-bs, a lower --mem-fraction-static"),
    cause("serving-memory", r"Prefill out of memory|Decode out of memory|Out of memory even after retracting",
          "the key-value cache ran out while serving",
          fix="fewer --max-running-requests, a shorter context, or more memory for the cache"),
    cause("nan-after-prefix-hit", r"NaN in the logits", "NaN after a prefix hit while speculating",
          "the drafter's own cache slots of a reused prefix hold nothing yet; an FP4 GEMM race prints the same",
          "first try --disable-radix-cache; then another FP4 GEMM backend with a wiped JIT cache",
          when=prefix_hit_while_speculating),
    cause("nan-logits", r"NaN in the logits|probability tensor contains either", "the logits hold NaN",
          "kernel, quantisation or weights: the log does not say which",
          "try in turn: no speculation, another attention backend, unquantised weights", verdict="unknown"),
    cause("watchdog", r"Scheduler watchdog timeout", "the scheduler made no step for minutes and was ended",
          "a kernel or a collective never returned; the stacks printed with it show where",
          "read the py-spy dump; try without speculation, then NCCL_P2P_DISABLE=1"),
    cause("detokenizer-silent", r"Health check failed\. Server couldn't get a response from detokenizer",
          "the server did not answer its own health check", fix="look above for what blocked it"),
)
