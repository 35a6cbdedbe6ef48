"""llama.cpp's own HTTP server, out of the `xllamacpp` wheel, behind llama-server's flags.

Runs on the host, in the engine's interpreter; one file, and nothing but the
standard library beside the wheel. Flags mean what they mean in llama-server.
Exit status: 0 after SIGTERM or SIGINT, 1 when the server failed or stopped,
2 for a flag that cannot be right; then the last line says why, as `error: …`.
"""

import argparse
import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request

GGUF_MAGIC = b"GGUF"


def fail(message, status=1):
    """One line, then out at once: llama.cpp's threads would keep a plain exit waiting."""
    print("error: " + " ".join(str(message).split()), flush=True)
    os._exit(status)


def at_least(least, most=2**31 - 1):
    """An argparse type: a whole number between the two."""
    def number(text):
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError("%d is not between %d and %d" % (value, least, most))
        return value
    number.__name__ = "number"
    return number


def parser():
    p = argparse.ArgumentParser(prog="llamacpp_server", allow_abbrev=False, description=__doc__.splitlines()[0])
    p.add_argument("-m", "--model", required=True, help="GGUF of the target")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=at_least(1, 65535), default=8080)
    p.add_argument("-a", "--alias", default="")
    p.add_argument("-c", "--ctx-size", type=at_least(1), default=4096, help="of all slots together, as in llama-server")
    p.add_argument("-np", "--parallel", type=at_least(1), default=1, help="slots: requests served at once")
    p.add_argument("-t", "--threads", type=at_least(1), default=1)
    p.add_argument("--poll", type=at_least(0, 100), default=0,
                   help="how hard waiting threads spin; 0 leaves the cores to others")
    p.add_argument("-b", "--batch-size", type=at_least(1), default=2048)
    p.add_argument("-ub", "--ubatch-size", type=at_least(1), default=512)
    p.add_argument("--cache-ram", type=at_least(0), default=0, help="MiB of memory for earlier prompts")
    p.add_argument("--spec-type", default="none", help="comma-separated; what is on offer is told when it is wrong")
    p.add_argument("-md", "--model-draft", default="", help="GGUF of the draft model or head")
    p.add_argument("--spec-draft-n-max", type=at_least(1), help="tokens drafted per step")
    p.add_argument("--spec-draft-n-min", type=at_least(0))
    p.add_argument("--spec-draft-p-min", type=float)
    p.add_argument("--spec-draft-backend-sampling", action="store_true",
                   help="pick drafted tokens in the compute graph; off, as with two slots at work it drafts worse")
    p.add_argument("--spec-ngram-simple-size-n", type=at_least(1), help="tokens that must match")
    p.add_argument("--spec-ngram-simple-size-m", type=at_least(1), help="tokens drafted after a match")
    p.add_argument("-lv", "--verbosity", type=int, default=3)
    p.add_argument("--metrics", action="store_true", help="serve /metrics")
    return p


def check_gguf(path, what):
    """Fail for what cannot be a model; llama.cpp says only that it could not load it."""
    try:
        with open(path, "rb") as f:
            magic = f.read(4)
    except OSError as e:
        fail("cannot read the %s: %s: %s" % (what, e.strerror, path))
    if magic != GGUF_MAGIC:
        fail("the %s is not a GGUF file (it begins with %r): %s" % (what, magic, path))


def check_port(host, port):
    """Fail while somebody else listens there; the server's own complaint does not name the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
            s.listen(1)
        except OSError as e:
            fail("cannot listen on %s:%d: %s" % (host, port, e.strerror or e))


def speculative_types(x, wanted):
    """llama.cpp's enum values for a comma-separated list of names."""
    prefix = "COMMON_SPECULATIVE_TYPE_"
    known = {n[len(prefix):].lower().replace("_", "-"): v for n, v in x.common_speculative_type.__members__.items()
             if n != prefix + "COUNT"}
    for name in wanted.split(","):
        if name not in known:
            fail("unknown --spec-type %r; this build has %s" % (name, ", ".join(sorted(known))), 2)
    return [known[name] for name in wanted.split(",")]


def params(x, a):
    """The flags as the wheel's CommonParams."""
    p = x.CommonParams()
    p.model.path, p.hostnames, p.port = a.model, [a.host], a.port
    if a.alias:
        p.model_alias = {a.alias}
    p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch = a.ctx_size, a.parallel, a.batch_size, a.ubatch_size
    p.endpoint_metrics, p.endpoint_slots = a.metrics, True
    p.cors_origins, p.cors_origins_explicit = "", True      # no web page may use a model through a visitor's browser
    p.ui, p.verbosity, p.cache_ram_mib = False, a.verbosity, a.cache_ram
    p.fit_params = False                    # it would change the context length to fit, without a word
    s = p.speculative
    s.types = speculative_types(x, a.spec_type)
    s.draft.mparams.path = a.model_draft
    s.draft.backend_sampling = a.spec_draft_backend_sampling
    for cpu in (p.cpuparams, p.cpuparams_batch, s.draft.cpuparams, s.draft.cpuparams_batch):
        cpu.n_threads, cpu.poll = a.threads, a.poll     # else some of them take every core
    for place, name, value in ((s.draft, "n_max", a.spec_draft_n_max), (s.draft, "n_min", a.spec_draft_n_min),
                               (s.draft, "p_min", a.spec_draft_p_min),
                               (s.ngram_simple, "size_n", a.spec_ngram_simple_size_n),
                               (s.ngram_simple, "size_m", a.spec_ngram_simple_size_m)):
        if value is not None:
            setattr(place, name, value)
    return p


def ask(a, path):
    """JSON of one of the server's own pages."""
    host = "127.0.0.1" if a.host == "0.0.0.0" else "[::1]" if a.host == "::" else a.host
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open("http://%s:%d%s" % (host, a.port, path), timeout=30) as answer:
        return json.load(answer)


def check_speculates(a):
    """Fail where llama.cpp could not set up the drafter: it logs that and serves without one."""
    if a.spec_type != "none" and not all(slot["speculative"] for slot in ask(a, "/slots")):
        fail("--spec-type %s is not in force: llama.cpp could not use the draft model; the lines above say why"
             % a.spec_type)


def watch(a, ended):
    """Wait for the end; fail when the server inside stops without being asked to."""
    while not ended.wait(5):
        try:
            ask(a, "/health")
        except urllib.error.URLError as e:
            if isinstance(e.reason, ConnectionRefusedError) and not ended.is_set():
                fail("the server stopped listening on %s:%d" % (a.host, a.port))
        except OSError:                     # busy is not gone
            pass


def main(argv=None):
    a = parser().parse_args(argv)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")     # a debugger's dump would bury the failed assertion
    try:
        import xllamacpp as x
    except ImportError as e:
        fail("this interpreter has no usable xllamacpp: %s" % e)
    print("xllamacpp %s" % x.__version__, flush=True)
    wanted = params(x, a)
    if a.spec_type.startswith("draft-") and not a.model_draft:
        fail("--spec-type %s needs --model-draft" % a.spec_type, 2)     # llama.cpp would serve without a drafter
    check_gguf(a.model, "model")
    if a.model_draft:
        check_gguf(a.model_draft, "draft model")
    check_port(a.host, a.port)
    try:
        server = x.Server(wanted)           # noqa: F841 - kept alive; returns when loaded; holds the interpreter, so a signal ends us by default
    except Exception as e:                  # the wheel documents no type of its own
        fail("llama.cpp did not start (%s); the lines above say why" % e)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    check_speculates(a)
    print("serving %s" % a.model, flush=True)
    watch(a, ended)
    print("stopped", flush=True)
    os._exit(0)             # the wheel's own ending waits for ever while a request is in flight


if __name__ == "__main__":
    main()
