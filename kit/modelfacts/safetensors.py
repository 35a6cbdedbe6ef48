"""Safetensors headers: 8 bytes of length, then JSON. The weights behind it are never read.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field

from kit.modelfacts.bounded import HUGE, Malformed, parse_object
from kit.modelfacts.facts import Problem, Tensor
from kit.modelfacts.readers import Reader

LARGEST_HEADER = 100_000_000      # the format's own limit
FIRST = 256 * 1024                # one guess: covers any head, and most shards
LARGEST_INDEX = 256 << 20
MOST_SHARDS = 4096
STAND_IN = ".header.json"         # a header kept as a file of its own, without the weights
INDEX = ".safetensors.index.json"
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}

# Names that decide something; of a large model only the shards that hold one of these are opened.
TELLING = re.compile(r"(^|\.)(embed_tokens|lm_head|fc|d2t|t2d)(\.|$)|(^|\.)(midlayer|layers\.0)\.self_attn\.")


@dataclass(frozen=True)
class Header:
    tensors: dict[str, Tensor]
    starts: dict[str, int]        # absolute offset of each tensor's first byte
    covered: int                  # weight bytes


@dataclass
class Weights:
    """What a folder's headers say. `names` is complete where an index or every header was read."""

    names: frozenset[str] = frozenset()
    tensors: dict[str, Tensor] = field(default_factory=dict)
    place: dict[str, tuple[str, int]] = field(default_factory=dict)    # tensor → (file, offset)
    weight_bytes: int | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def known(self) -> bool:
        return bool(self.names)


def header_end(first: bytes, file_size: int) -> int:
    """Offset of the first weight byte. `Malformed` when the length cannot be true."""
    if len(first) < 8:
        raise Malformed(f"cut short: {len(first)} bytes, a header begins with 8")
    length = struct.unpack("<Q", first[:8])[0]
    if length > LARGEST_HEADER:
        raise Malformed(f"its header claims {length} bytes; the format allows {LARGEST_HEADER}")
    if 8 + length > file_size:
        raise Malformed(f"its header claims {length} bytes, the file has {file_size}: cut short, or not safetensors")
    return 8 + length


def read_header(reader: Reader, name: str) -> Header:
    """Of one file, in at most two reads."""
    size = reader.list()[name]
    if name.endswith(STAND_IN):
        return parse_header(reader.read(name, 0, LARGEST_HEADER), 0, None)
    first = reader.read(name, 0, FIRST)
    end = header_end(first, size)
    data = first[8:end] if end <= len(first) else first[8:] + reader.read(name, len(first), end - len(first))
    if len(data) < end - 8:
        raise Malformed("cut short inside its header")
    return parse_header(data, end, size)


def parse_header(data: bytes, end: int, file_size: int | None) -> Header:
    """Header JSON; each tensor is checked against its byte range, and all against the file's size."""
    tensors, starts, covered = {}, {}, 0
    for name, entry in parse_object(data).items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            good = type(begin) is int and type(stop) is int and 0 <= begin <= stop and type(dtype) is str
            good = good and type(shape) is list and len(shape) <= 16
            good = good and all(type(n) is int and 0 <= n < HUGE for n in shape)
        except (TypeError, KeyError, ValueError):
            good = False
        if not good:
            raise Malformed(f"tensor {name[:80]!r} has no believable dtype, shape and offsets")
        bits = BITS.get(dtype)
        if bits and math.prod(shape) * bits != (stop - begin) * 8:
            raise Malformed(f"tensor {name[:80]!r}: {dtype} {shape} does not fill its byte range")
        covered = max(covered, stop)
        tensors[name], starts[name] = Tensor(dtype, tuple(shape)), end + begin
    if file_size is not None and end + covered > file_size:
        raise Malformed(f"its tensors need {end + covered} bytes, the file holds {file_size}: cut short")
    return Header(tensors, starts, covered)


def read_weights(reader: Reader, every: bool = False) -> Weights:
    """Headers of a folder. With an index only the telling shards are opened, unless `every`."""
    files = reader.list()
    shards = sorted(f for f in files if f.endswith((".safetensors", ".safetensors" + STAND_IN)))
    shards = [s for s in shards if not s.endswith(STAND_IN) or s.removesuffix(STAND_IN) not in files]
    weights = Weights()
    wanted = shards
    index = next((f for f in sorted(files) if f.endswith(INDEX)), None)
    if index:
        placed = _read_index(reader, index, weights)
        if placed is not None:
            weights.names = frozenset(placed)
            missing = sorted(set(placed.values()) - files.keys() - {s.removesuffix(STAND_IN) for s in shards})
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                weights.problems.append(Problem(missing[0], f"named by {index} but not there{more}"))
            wanted = [s for s in shards if s.removesuffix(STAND_IN) in set(placed.values())]
            if not every:
                telling = {placed[n] for n in placed if TELLING.search(n)}
                wanted = [s for s in wanted if s.removesuffix(STAND_IN) in telling]
    elif len(shards) > 1:
        weights.problems += _gaps(shards)
    for shard in wanted[:MOST_SHARDS]:
        try:
            header = read_header(reader, shard)
        except Malformed as e:
            weights.problems.append(Problem(shard, str(e)))
            continue
        weights.tensors |= header.tensors
        weights.place |= {n: (shard, header.starts[n]) for n in header.tensors if n.rsplit(".", 1)[-1] == "d2t"}
    if not index:
        weights.names = frozenset(weights.tensors)
    if shards:
        weights.weight_bytes = sum(files[s] for s in shards if not s.endswith(STAND_IN)) or None
    return weights


def _read_index(reader: Reader, name: str, weights: Weights) -> dict[str, str] | None:
    if reader.list()[name] > LARGEST_INDEX:
        weights.problems.append(Problem(name, "too large for an index"))
        return None
    try:
        placed = parse_object(reader.read(name, 0, LARGEST_INDEX)).get("weight_map")
    except Malformed as e:
        weights.problems.append(Problem(name, str(e)))
        return None
    if not isinstance(placed, dict) or not all(type(v) is str for v in placed.values()):
        weights.problems.append(Problem(name, "has no weight_map of tensor to file"))
        return None
    strange = sorted({v for v in placed.values() if not v.endswith(".safetensors") or "/" in v or "\\" in v})
    if strange:
        weights.problems.append(Problem(name, f"points at {strange[0][:80]!r}, which is no shard of this folder"))
        placed = {k: v for k, v in placed.items() if v not in strange}
    return placed or None


def _gaps(shards: list[str]) -> list[Problem]:
    """`model-00002-of-00003.safetensors` says how many there should be."""
    numbered = [m for s in shards if (m := re.search(r"-(\d{1,6})-of-(\d{1,6})\.safetensors", s))]
    if not numbered:
        return []
    have, total = {int(m[1]) for m in numbered}, min(max(int(m[2]) for m in numbered), MOST_SHARDS)
    absent = sorted(set(range(1, total + 1)) - have)
    return [Problem(shards[0], f"shard {absent[0]} of {total} is not there")] if absent else []
