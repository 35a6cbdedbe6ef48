"""Sends the headers of a checkpoint in one answer. Standard library only, Python >= 3.9.

    python3 - PATH < model_peek.py

Prints one JSON line {"folder", "files": {name: size}, "chunks": [[name, offset, size], ...], "error"}, then the
chunks, joined and zlib-compressed. Weights are never sent: of a safetensors file only its header, of a GGUF its
first few MiB, of the rest the small files that describe a model.
"""

import json
import os
import stat
import struct
import sys
import zlib

SMALL = ("config.json", "tokenizer_config.json", "tokenizer.json", "tiktoken.model", "tokenizer.model", "vocab.json")
LARGEST_SMALL, LARGEST_INDEX, LARGEST_HEADER, GGUF_HEAD = 64 << 20, 64 << 20, 64 << 20, 4 << 20
LARGEST_ANSWER = 256 << 20


def snapshot(path):
    """A hub cache entry (models--org--name) stands for its main revision."""
    revisions = os.path.join(path, "snapshots")
    if not os.path.isdir(revisions) or os.path.exists(os.path.join(path, "config.json")):
        return path
    try:
        with open(os.path.join(path, "refs", "main")) as f:
            commit = os.path.basename(f.read(64).strip())
    except (OSError, UnicodeDecodeError):
        found = os.listdir(revisions)
        commit = found[0] if len(found) == 1 else ""
    chosen = os.path.join(revisions, commit)
    return chosen if commit and os.path.isdir(chosen) else path


def size_of(path):
    """Of a regular file, through links; None for folders, pipes, dangling and cyclic links."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def wanted(name, size, path):
    """Bytes to send from the beginning of a file."""
    if name in SMALL or name.endswith(".safetensors.header.json"):
        return size if size <= LARGEST_SMALL else 0
    if name == "README.md":
        return min(size, 8192)
    if name.endswith(".safetensors.index.json"):
        return size if size <= LARGEST_INDEX else 0
    if name.endswith(".safetensors"):
        with open(path, "rb") as f:
            head = f.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        return min(size, 8 + length) if length <= LARGEST_HEADER else min(size, 8)
    return min(size, GGUF_HEAD) if name.endswith(".gguf") else 0


def main(path):
    answer = {"folder": False, "path": path, "files": {}, "chunks": [], "error": ""}
    body = []
    try:
        path = answer["path"] = snapshot(os.path.expanduser(path))
        answer["folder"] = os.path.isdir(path)
        os.stat(path)
        names = sorted(os.listdir(path)) if answer["folder"] else [os.path.basename(path)]
        total = 0
        for name in names:
            full = os.path.join(path, name) if answer["folder"] else path
            size = size_of(full)
            if size is None:
                continue
            answer["files"][name] = size
            try:
                much = wanted(name, size, full)
                if much and total + much <= LARGEST_ANSWER:
                    with open(full, "rb") as f:
                        body.append(f.read(much))
                    answer["chunks"].append([name, 0, len(body[-1])])
                    total += len(body[-1])
            except OSError:
                pass            # it is asked for again, and then the reason is told
    except OSError as e:
        answer["error"] = e.strerror or str(e)
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    pack = zlib.compressobj(1)
    for piece in body:
        sys.stdout.buffer.write(pack.compress(piece))
    sys.stdout.buffer.write(pack.flush())


if __name__ == "__main__":
    main(sys.argv[1])
