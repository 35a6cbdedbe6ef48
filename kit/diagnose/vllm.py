"""What vLLM's lines say (V1 engine): its phases, what it serves, and why it ends."""

from __future__ import annotations

from kit.diagnose.marks import Mark, cause

MARKS = (
    Mark("begin", "arguments", r"vLLM API server version|Initializing a V\d LLM engine", "reading its arguments"),
    Mark("end", "arguments", r"Starting to load model|vLLM is using nccl==()"),
    Mark("begin", "load", r"Starting to load model", "reading weights"),
    Mark("end", "load", r"Model loading took [\d.]+ (?:GiB|GB)(?: memory)? and ([\d.]+) ?s"),
    Mark("begin", "compile", r"Start compiling|Using cache directory: .*torch_compile_cache", "compiling"),
    Mark("end", "compile", r"torch\.compile takes ([\d.]+) s in total"),
    Mark("end", "kv-cache", r"GPU KV cache size: [\d,]+ tokens()"),
    Mark("sized", "kv-cache", r"GPU KV cache size: ([\d,]+) tokens"),
    Mark("begin", "capture", r"Capturing CUDA graphs? \(()", "capturing CUDA graphs"),
    Mark("end", "capture", r"Graph capturing finished in ()(\d+) secs"),
    Mark("begin", "listening", r"Starting vLLM API server \d+ on", "opening the port"),
    Mark("ready", "ready", r"Application startup complete", "serving"),
    Mark("rate", "rate", r"Engine \d+: .*?Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs, Waiting: "
         r"(\d+) reqs, GPU KV cache usage: ([\d.]+)%"),
    Mark("drafted", "drafted", r"SpecDecoding metrics: .*?Mean acceptance length: ([\d.]+).*?Drafted: (\d+) tokens"),
    Mark("accept", "accept", r"mean acceptance length: ([\d.]+)"),
    Mark("note", "graphs-partial", r"CUDAGraphMode\.\w+ is not supported with|setting cudagraph_mode=PIECEWISE",
         "the attention backend cannot be captured whole: attention runs eager between partial graphs, "
         "and speculation may be slower than none"),
    Mark("death", "engine-core", r"Engine core initialization failed|EngineDeadError|EngineCore failed to start"
         r"|EngineCore encountered a fatal error"),
    Mark("stop", "shutdown", r"Shutting down(?: FastAPI)? HTTP server|Finished server process"),
)

CAUSES = (
    cause("flag-of-another-engine", r"error: unrecognized arguments:.*--(?:speculative-algorithm"
          r"|speculative-draft-model-path|speculative-eagle-topk|mem-fraction-static|tp-size)",
          "flags of SGLang were given to vLLM", "vLLM has one JSON for speculation, SGLang one flag per number",
          "--speculative-config '{\"method\": …, \"num_speculative_tokens\": SGLang's draft tokens - 1}'"),
    cause("spec-config-key", r"is not a valid argument in the speculative_config"
          r"|validation errors? for SpeculativeConfig", "--speculative-config holds what this release does not take",
          fix="correct that key; lint knows which it has"),
    cause("kv-cache-memory", r"No available memory for the cache blocks|is larger than the available KV cache memory",
          "no memory is left for the key-value cache", fix="a higher --gpu-memory-utilization, a shorter "
          "--max-model-len, more GPUs"),
    cause("gpus-busy", r"Free memory on device .* is less than desired GPU memory utilization",
          "other processes hold memory on the GPU", fix="end them, or a lower --gpu-memory-utilization"),
)
