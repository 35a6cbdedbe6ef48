"""SGLang's flags by release, 0.4.6 to 0.5.23: what an algorithm is called, since when, and what was renamed.

Sources: the argparse calls and field definitions of the released wheels. What a release refuses beyond this is for
`kit.lint` to say, which has every flag of every release.
"""

from __future__ import annotations

import re

from kit.errors import SpecError

TYPES = {"none": "", "ngram": "NGRAM", "draft": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN",
         "dflash": "DFLASH", "dspark": "DSPARK"}
SINCE = {"draft": (0, 5, 3), "ngram": (0, 5, 3), "dflash": (0, 5, 11), "dspark": (0, 5, 16)}

# (name before, name from that release on): written under either name, rendered under the one that the release has.
# Between a new name's first release and an old one's last, both work; the new one is taken.
RENAMED = (
    ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", (0, 5, 14)),
    ("--cuda-graph-bs", "--cuda-graph-bs-decode", (0, 5, 14)),
    ("--speculative-dflash-draft-window-size", "--speculative-draft-window-size", (0, 5, 12)),
    ("--nsa-prefill-backend", "--dsa-prefill-backend", (0, 5, 13)),
    ("--nsa-decode-backend", "--dsa-decode-backend", (0, 5, 13)),
)
SECRETS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")


def release(version: str | None) -> tuple[int, int, int] | None:
    """(0, 5, 12) of "0.5.12.post1"; None where the config names no version."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def algorithm(name: str, version: str | None) -> str:
    """SGLang's name of `name`; `SpecError` where it, or that release, does not have it."""
    if name not in TYPES:
        raise SpecError(f"algorithm {name}: SGLang does not have it", where="engine sglang",
                        next=f"it has: {', '.join(TYPES)}")
    since, now = SINCE.get(name), release(version)
    if since and now and now < since:
        first = ".".join(map(str, since))
        raise SpecError(f"algorithm {name}: SGLang has {TYPES[name]} from {first} on, engine.version is {version}",
                        where="engine sglang", next=f"a newer SGLang, or one of: {', '.join(known(version))}")
    return TYPES[name]


def known(version: str | None) -> list[str]:
    """Algorithms of a release, by our names."""
    now = release(version)
    return [name for name in TYPES if not now or now >= SINCE.get(name, (0,))]


def is_secret(flag: str) -> bool:
    """Also as argparse reads it: `--api` is --api-key, where nothing else begins so."""
    return len(flag) > 3 and not "--ssl-keyfile".startswith(flag) and any(s.startswith(flag) for s in SECRETS)


def rendered(args: tuple[str, ...], version: str | None) -> tuple[str, ...]:
    """`args` under the names of that release; `SpecError` for a secret, which every user of the host could read.

    >>> rendered(("--cuda-graph-max-bs", "8"), "0.5.23")
    ('--cuda-graph-max-bs-decode', '8')
    """
    secret = next((word for word in args if is_secret(word.partition("=")[0])), None)
    if secret:
        flag = secret.partition("=")[0]
        raise SpecError(f"engine.args: {flag} would put a secret where every user of the host reads it", where=flag,
                        next="leave it out (127.0.0.1 is reached through SSH), or write it into a YAML file of mode "
                             "0600 on the host and name that: --config FILE (0.5.3 on)")
    now = release(version)
    if not now:
        return tuple(args)
    names = {(old if now >= since else new): (new if now >= since else old) for old, new, since in RENAMED}
    return tuple(equals.join((names.get(name, name), value)) if equals else names.get(name, name)
                 for name, equals, value in (word.partition("=") for word in args))
