"""GGUF metadata (versions 2 and 3, little-endian): key-values and tensor infos, never the weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kit.modelfacts.bounded import Malformed
from kit.modelfacts.facts import Tensor
from kit.modelfacts.readers import Reader

FIRST = 2 << 20                 # metadata of a 50k vocabulary is 1.8 MiB
LARGEST = 128 << 20
MOST_ITEMS = 2_000_000          # strings in arrays, all together; tokens and merges of the largest are 800k
MOST_SCALARS = 1 << 20          # longer numeric arrays are stepped over
MOST_KEYS, MOST_TENSORS = 65_536, 1_000_000
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
         13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16"}


@dataclass(frozen=True)
class Gguf:
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    starts: dict[str, int]      # absolute offset of each tensor's first byte
    end: int                    # where the tensor data begins


class _More(Exception):
    """The bytes ran out before the header did."""


def read_gguf(reader: Reader, name: str) -> Gguf:
    """In one read for most files, else a second with room to spare. `Malformed` says what is wrong."""
    size = reader.list()[name]
    data, want = b"", FIRST
    while True:
        data += reader.read(name, len(data), min(want, LARGEST) - len(data))
        try:
            return _parse(data, size)
        except _More:
            if len(data) >= size:
                raise Malformed("cut short inside its metadata") from None
            if len(data) >= LARGEST or len(data) < min(want, size):
                raise Malformed(f"its metadata does not end within {len(data)} bytes") from None
            want = min(want * 16, LARGEST)


class _Cursor:
    def __init__(self, data: bytes):
        self.data, self.at, self.items = data, 0, 0

    def take(self, form: str) -> tuple:
        size = struct.calcsize(form)
        if self.at + size > len(self.data):
            raise _More
        values = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return values

    def skip(self, size: int) -> int:
        """Steps over `size` bytes; where they began."""
        begin = self.at
        if size > LARGEST:
            raise Malformed(f"claims a string or array of {size} bytes")
        if begin + size > len(self.data):
            raise _More
        self.at += size
        return begin

    def string(self) -> str:
        (length,) = self.take("<Q")
        begin = self.skip(length)
        return self.data[begin:self.at].decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(depth)
        if kind not in SCALARS:
            raise Malformed(f"unknown value type {kind}")
        return self.take("<" + SCALARS[kind])[0]

    def array(self, depth: int) -> tuple:
        kind, length = self.take("<IQ")
        if kind in SCALARS:
            begin = self.skip(length * struct.calcsize("<" + SCALARS[kind]))
            return struct.unpack_from(f"<{length}{SCALARS[kind]}", self.data, begin) if length <= MOST_SCALARS else ()
        self.items += length
        if self.items > MOST_ITEMS or depth > 2:
            raise Malformed(f"claims an array of {length} items")
        if kind == STRING:
            return self.strings(length)
        return tuple(self.value(kind, depth + 1) for _ in range(length))

    def strings(self, many: int) -> tuple[str, ...]:
        """`string()`, for the hundreds of thousands of a tokenizer."""
        data, at, have, length_at, found = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from, []
        for _ in range(many):
            if at + 8 > have:
                raise _More
            begin = at + 8
            at = begin + length_at(data, at)[0]
            if at > have:
                raise Malformed("claims a string of more bytes than any") if at - begin > LARGEST else _More
            found.append(data[begin:at])
        self.at = at
        return tuple(b.decode("utf-8", "replace") for b in found)


def _parse(data: bytes, file_size: int) -> Gguf:
    c = _Cursor(data)
    magic, version = c.take("<4sI")
    if magic != b"GGUF":
        raise Malformed("not a GGUF file")
    if version not in (2, 3):
        big = version in (2 << 24, 3 << 24)
        raise Malformed("a big-endian GGUF, which is not read" if big else f"GGUF version {version} is not known")
    n_tensors, n_keys = c.take("<QQ")
    if n_keys > MOST_KEYS or n_tensors > MOST_TENSORS:
        raise Malformed(f"claims {n_keys} keys and {n_tensors} tensors")
    metadata = {}
    for _ in range(n_keys):
        key = c.string()
        metadata[key[:200]] = c.value(c.take("<I")[0])
    tensors, offsets = {}, {}
    for _ in range(n_tensors):
        name = c.string()
        (rank,) = c.take("<I")
        if rank > 8:
            raise Malformed(f"tensor {name[:80]!r} claims {rank} dimensions")
        shape = c.take(f"<{rank}Q")
        kind, offset = c.take("<IQ")
        # ggml lists the fastest dimension first; [out, in] elsewhere
        tensors[name], offsets[name] = Tensor(TYPES.get(kind, f"type{kind}"), tuple(reversed(shape))), offset
    step = metadata.get("general.alignment", 32)
    if type(step) is not int or not 0 < step <= 1 << 20:
        raise Malformed(f"alignment {step!r}")
    end = -(-c.at // step) * step
    furthest = max(offsets.values(), default=0)
    if tensors and end + furthest >= file_size:
        raise Malformed(f"its tensors reach beyond {end + furthest} bytes, the file holds {file_size}: cut short")
    return Gguf(metadata, tensors, {n: end + o for n, o in offsets.items()}, end)
