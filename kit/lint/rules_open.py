"""Rules about who can reach the server, what it may run, and what it tells: both engines."""

from __future__ import annotations

import re

from kit.lint.case import rule

BOTH = ("sglang", "vllm")
LOOPBACK = re.compile(r"^(127(\.\d+){3}|localhost|::1|\[::1\])$")
SECRET_NAME = re.compile(r"(TOKEN|API_?KEY|SECRET|PASSWORD)$", re.I)
SECRET_VALUE = re.compile(r"^(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9-]{8,})$")


def _host(case) -> str:
    """Where it listens: SGLang on loopback unless told, vLLM everywhere unless told."""
    return case.text("--host") or ("127.0.0.1" if case.engine == "sglang" else "0.0.0.0")


@rule("open-to-the-world", *BOTH)
def open_to_the_world(case, say):
    host = _host(case)
    has_key = case.has("--api-key") or (case.engine == "vllm" and case.env.get("VLLM_API_KEY"))
    uds = case.has("--uds")
    if LOOPBACK.match(host) or has_key or uds or not (case.whole or case.has("--host")):
        return
    where = "every interface" if host in ("0.0.0.0", "::", "[::]") else host
    default = "" if case.has("--host") else " (vLLM's default)"
    yield say("warn", f"listens on {where}{default} and asks for no key",
              "whoever reaches the port can use the model, read its metrics and, with SGLang, flush or reconfigure it",
              "--host 127.0.0.1 and an SSH tunnel; open it only by choice, with a key and a firewall", f"--host {host}")


@rule("key-on-argv", *BOTH)
def key_on_argv(case, say):
    for name in ("--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password"):
        got = case.last(name)
        if got and got.words and got.words[-1]:
            other = "VLLM_API_KEY in an environment file" if case.engine == "vllm" and name == "--api-key" else \
                "a config file with mode 0600 (--config), if the release has one"
            yield say("warn", f"{got.flag.name} puts a secret on the command line",
                      "every user of the host sees it in `ps`; it also lands in the unit, the journal and "
                      + ("the server_args line of the log" if case.engine == "sglang" else "shell histories"),
                      f"use {other}", f"{got.flag.name} ***")
            return


@rule("secret-in-environment", *BOTH)
def secret_in_environment(case, say):
    for name, value in sorted(case.env.items()):
        if value and (SECRET_NAME.search(name) or SECRET_VALUE.match(value)) and case.env_written:
            yield say("warn", f"{name} is written into the command or unit", "unit files are readable by every user",
                      "EnvironmentFile= with mode 0600", f"{name}=***")


@rule("trust-remote-code", *BOTH)
def trust_remote_code(case, say):
    if case.has("--trust-remote-code"):
        yield say("warn", "--trust-remote-code runs Python that comes with the checkpoint",
                  "as the server's user, at load time" + (": root" if case.user == "root" else ""),
                  "pin a revision you have read, and run as a user that owns nothing else; "
                  "drop the flag if the engine has a built-in class")


@rule("runs-as-root", *BOTH)
def runs_as_root(case, say):
    if case.user == "root":
        yield say("warn", "the unit runs as root",
                  "User= is missing or root; a hole in the server is a hole in the host",
                  "User=<a service account> with access to the model folder and the GPUs")


@rule("log-requests", "sglang")
def log_requests(case, say):
    if case.has("--log-requests") and (case.number("--log-requests-level", 0) or 0) >= 2:
        yield say("warn", "requests are written to the log with their text",
                  f"--log-requests-level {int(case.number('--log-requests-level'))} logs prompts and answers",
                  "level 0 or 1 outside a test")
