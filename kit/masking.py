"""Secrets in what is somebody else's: found by name or by look, and masked before anything is shown or stored."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
# HF_TOKEN, OPENAI_API_KEY, PGPASSWORD; not MAX_TOKENS nor TOKENIZERS_PARALLELISM.
NAME = re.compile(r"(?i)(token|key|secret|password|passwd|pass|credential|credentials)$|"
                  r"(^|_)(token|key|secret|password|passwd|pass|credential|credentials)(_|$)")
FLAG = re.compile(r"(?i)^--?([a-z0-9-]*[-_])?(api[-_]?key|token|secret|password|passwd)$")
PLAIN = ("", "0", "1", "true", "false", "True", "False")      # a switch, no secret
VALUE = re.compile(r"\b(hf_[A-Za-z0-9]{6,}|sk-[A-Za-z0-9_-]{6,}|gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|"
                   r"xox[abp]-[\w-]{8,}|AKIA[A-Z0-9]{12,})|(?<=://)[^/@\s:'\"]+:[^/@\s]+(?=@)")
# In running text: --api-key X, api_key='X', "token": "X", HF_TOKEN=X, Authorization: Bearer X. Not `#token: 12`.
WORD = r"(?:api[-_]?key|token|secret|password|passwd|(?-i:KEY|PASS))"
TEXT = re.compile(rf"""(?i)((?<![\w-])--?[\w-]*{WORD}\s+|(?<![\w-])[\w-]*{WORD}["']?\s*=\s*|"""
                  rf"""["'][\w-]*{WORD}["']\s*:\s*|\bbearer\s+)('[^']*'|"(?:\\.|[^"\\])*"|(?!--)[^\s"',;)]+)""")
ASSIGNED = re.compile(rf"""(?i)(["'])([\w-]*{WORD}=)(?:\\.|(?!\1).)*\1""")      # Environment="API_KEY=two words"
NOTHING = ("None", "none", "null", MASK)


def secret_name(name: str) -> bool:
    """A variable whose value nobody should see.

    >>> secret_name("HF_TOKEN"), secret_name("MAX_NEW_TOKENS")
    (True, False)
    """
    return bool(NAME.search(name))


def secret_variable(name: str, value: str) -> bool:
    """By its name, unless it is only a switch; or by what its value looks like."""
    return secret_name(name) and value not in PLAIN or bool(VALUE.search(value))


def is_secret(name: str, value: str) -> bool:
    """What surely is one: narrower than `secret_variable`, for what is refused and not only masked.

    >>> is_secret("HF_TOKEN", "hf_abcdef"), is_secret("SGLANG_SIMULATE_ACC_TOKEN_MODE", "real")
    (True, False)
    """
    ends = re.search(r"(?i)(^|_)(token|key|secret|password|passwd)$", name)
    return bool(ends and value not in (*PLAIN, MASK) or VALUE.search(value))


def secret_flag(name: str) -> bool:
    """A flag whose value is a secret: --api-key, --admin-api-key, --hf-token."""
    return bool(FLAG.match(name))


def masked(text: str) -> str:
    """Running text (a log line, a unit file, an error) without what follows --api-key, HF_TOKEN= and the like.

    >>> masked("ServerArgs(api_key='abc', port=1)")
    "ServerArgs(api_key='***', port=1)"
    """
    def hidden(found: re.Match[str]) -> str:
        quote = found[2][0] if found[2][0] in "\"'" else ""
        return found[0] if found[2].strip("\"'") in NOTHING else found[1] + quote + MASK + quote

    return TEXT.sub(hidden, ASSIGNED.sub(rf"\1\2{MASK}\1", VALUE.sub(MASK, text)))


def masked_words(words: Iterable[str]) -> list[str]:
    """A command's words, with the values of secret flags, and what looks like a token, masked.

    >>> masked_words(["--api-key", "abc", "--port", "1"])
    ['--api-key', '***', '--port', '1']
    """
    out: list[str] = []
    hide = False
    for word in words:
        name, equals, value = word.partition("=")
        if hide:
            out.append(MASK)
        elif equals and (secret_flag(name) or name.isidentifier() and secret_variable(name, value)):
            out.append(f"{name}={MASK}")
        else:
            out.append(masked(word))
        hide = not hide and not equals and secret_flag(word)
    return out
