"""A fingerprint of a vocabulary, so that two tokenizers can be called equal.

Sizes are not enough: 256,000 and 49,152 ids are told apart by size, but two
vocabularies of 32,000 are not. The fingerprint is over the texts in id order,
the same for a tokenizer.json and for GGUF.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kit.modelfacts.bounded import Malformed, count, parse_object
from kit.modelfacts.facts import Tokenizer
from kit.modelfacts.readers import Reader

LARGEST = 64 << 20
MOST_TOKENS = 2_000_000
BINARY = ("tiktoken.model", "tokenizer.model", "vocab.json")    # compared byte by byte


def of_tokens(kind: str, tokens: Sequence[str]) -> Tokenizer:
    """>>> of_tokens("gguf", ["a", "b"]).size
    2
    """
    digest = hashlib.sha256("\0".join(tokens).encode("utf-8", "surrogatepass")).hexdigest()
    return Tokenizer(kind, "tokens", digest, len(tokens), tuple(tokens))


def of_folder(reader: Reader) -> Tokenizer | None:
    """Of tokenizer.json, else of the file that engines would read. `Malformed` when tokenizer.json is broken."""
    files = reader.list()
    if "tokenizer.json" in files:
        if files["tokenizer.json"] > LARGEST:
            raise Malformed("too large for a tokenizer")
        return _of_json(reader.read("tokenizer.json", 0, LARGEST))
    for name in BINARY:
        if files.get(name, LARGEST) < LARGEST:
            return Tokenizer(name, "file", hashlib.sha256(reader.read(name, 0, LARGEST)).hexdigest())
    return None


def _of_json(data: bytes) -> Tokenizer:
    whole = parse_object(data)
    model = whole.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):         # unigram: [[token, score], …]
        pairs = [(v[0], i) for i, v in enumerate(vocab) if isinstance(v, list) and v]
    elif isinstance(vocab, dict):
        pairs = list(vocab.items())
    else:
        raise Malformed("has no model.vocab")
    added = whole.get("added_tokens")
    pairs += [(t.get("content"), t.get("id")) for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    if not all(type(t) is str and count(i) is not None and i < MOST_TOKENS for t, i in pairs):
        raise Malformed("its vocabulary is not text to id")
    texts = [""] * (max((i for _, i in pairs), default=-1) + 1)
    for token, i in pairs:
        texts[i] = token
    return of_tokens("tokenizer.json", texts)
