"""Safetensors headers: 8 bytes of length, then JSON. The weights behind it are never read.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import cached_property

from kit.modelfacts.bounded import HUGE, Malformed, parse_object
from kit.modelfacts.facts import Problem, Tensor
from kit.modelfacts.readers import Reader

FORMAT_LIMIT = 100_000_000        # of a header, by the format
LARGEST_HEADER = 64 << 20         # that is read here: 400,000 tensors
LARGEST_TOGETHER = 192 << 20      # of all headers of a folder
FIRST = 256 * 1024                # one guess: covers any head, and most shards
LARGEST_INDEX = 64 << 20
MOST_SHARDS = 4096
STAND_IN = ".header.json"         # a header kept as a file of its own, without the weights
INDEX = ".safetensors.index.json"
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}

# Parts of names that decide something; of a large model only the shards that hold one of these are opened.
TELLING = ("embed_tokens.", "tok_embeddings.", "wte.", "lm_head.", "fc.", "d2t", "t2d", "midlayer.",
           "layers.0.self_attn.")


@dataclass(frozen=True)
class Header:
    tensors: dict[str, Tensor]
    starts: dict[str, int]        # absolute offset of each tensor's first byte
    bytes: int                    # of the header itself


class Names(tuple):
    """Tensor names of a checkpoint: a million of them are searched as one text, not one by one."""

    @cached_property
    def _text(self) -> str:
        # single experts are nine names in ten of a large model, and decide nothing
        return "\n" + "\n".join(n for n in self if ".experts." not in n) + "\n"

    @cached_property
    def _found(self) -> dict[str, list[str]]:
        return {}

    def having(self, part: str) -> list[str]:
        """Names that contain `part`, at most a few thousand.

        >>> Names(["model.lm_head.weight", "norm.weight"]).having("lm_head.")
        ['model.lm_head.weight']
        """
        if part in self._found:
            return self._found[part]
        text, found, at = self._text, [], 0
        while len(found) < 4096 and (at := text.find(part, at)) >= 0:
            end = text.index("\n", at)
            found.append(text[text.rindex("\n", 0, at) + 1:end])
            at = end
        self._found[part] = found
        return found


@dataclass
class Weights:
    """What a folder's headers say. `names` is complete where an index or every header was read."""

    names: Names = Names()
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
    if length > FORMAT_LIMIT:
        raise Malformed(f"its header claims {length} bytes; the format allows {FORMAT_LIMIT}")
    if 8 + length > file_size:
        raise Malformed(f"its header claims {length} bytes, the file has {file_size}: cut short, or not safetensors")
    if length > LARGEST_HEADER:
        raise Malformed(f"its header has {length} bytes, more than is read here")
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
            bits, size = BITS.get(dtype), _elements(shape)
            if type(begin) is not int or type(stop) is not int or not 0 <= begin <= stop or type(dtype) is not str:
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise Malformed(f"tensor {name[:80]!r} has no believable dtype, shape and offsets") from None
        if bits and size * bits != (stop - begin) * 8:
            raise Malformed(f"tensor {name[:80]!r}: {dtype} {shape} does not fill its byte range")
        if stop > covered:
            covered = stop
        tensors[name], starts[name] = Tensor(dtype, tuple(shape)), end + begin
    if file_size is not None and end + covered > file_size:
        raise Malformed(f"its tensors need {end + covered} bytes, the file holds {file_size}: cut short")
    return Header(tensors, starts, len(data))


def _elements(shape: list) -> int:
    """Of a tensor; ValueError for what is no shape."""
    size = 1
    if type(shape) is not list or len(shape) > 16:
        raise ValueError
    for n in shape:
        if type(n) is not int or not 0 <= n < HUGE:
            raise ValueError
        size *= n
    return size


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
            weights.names = Names(placed)
            missing = sorted(set(placed.values()) - files.keys() - {s.removesuffix(STAND_IN) for s in shards})
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                weights.problems.append(Problem(missing[0], f"named by {index} but not there{more}"))
            telling = (n for part in TELLING for n in weights.names.having(part))
            named = set(placed.values()) if every else {placed[n] for n in telling}
            wanted = [s for s in shards if s.removesuffix(STAND_IN) in named]
    elif len(shards) > 1:
        weights.problems += _gaps(shards)
    together = 0
    for shard in wanted[:MOST_SHARDS]:
        try:
            header = read_header(reader, shard)
            together += header.bytes
            if together > LARGEST_TOGETHER:
                raise Malformed("the headers are too large together; this one and those after it were not read")
        except Malformed as e:
            weights.problems.append(Problem(shard, str(e)))
            if together > LARGEST_TOGETHER:
                break
            continue
        weights.tensors |= header.tensors
        weights.place |= {n: (shard, header.starts[n]) for n in header.tensors if n.rsplit(".", 1)[-1] == "d2t"}
    if not index:
        weights.names = Names(weights.tensors)
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
    if not isinstance(placed, dict) or {type(v) for v in placed.values()} - {str}:
        weights.problems.append(Problem(name, "has no weight_map of tensor to file"))
        return None
    strange = sorted(v for v in set(placed.values()) if not v.endswith(".safetensors") or "/" in v or "\\" in v)
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
