"""The d2t table of a head: an index of a few hundred kilobytes, read whole to check its range."""

from __future__ import annotations

import sys
from array import array

from kit.modelfacts.facts import DraftMap
from kit.modelfacts.readers import Reader
from kit.modelfacts.safetensors import Weights

MOST = 1 << 20
WIDTHS = {"I64": "q", "I32": "i"}


def read_draft_map(weights: Weights, reader: Reader | None, offsets: bool) -> DraftMap | None:
    """`offsets`: the table holds target id minus draft id (Hugging Face heads). None when there is no table."""
    name = next((n for n in weights.tensors if n.rsplit(".", 1)[-1] == "d2t"), None)
    if name is None:
        return None
    tensor, (file, start) = weights.tensors[name], weights.place.get(name, ("", 0))
    length = tensor.shape[0] if len(tensor.shape) == 1 else 0
    code = WIDTHS.get(tensor.dtype)
    if reader is None or not code or not 0 < length <= MOST or not file or file.endswith(".json"):
        return DraftMap(length)
    table = array(code)
    data = reader.read(file, start, length * table.itemsize)
    if len(data) < length * table.itemsize:
        return DraftMap(length)
    table.frombytes(data)
    if sys.byteorder == "big":
        table.byteswap()
    targets = [v + i for i, v in enumerate(table)] if offsets else table.tolist()
    return DraftMap(length, min(targets), max(targets), len(set(targets)) == length)
