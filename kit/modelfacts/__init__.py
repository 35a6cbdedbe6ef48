"""What a checkpoint is, from its metadata alone: GGUF files and Hugging Face folders, one `ModelFacts`.

    facts = read_model(LocalReader("data/models/micro-llama/eagle3"))
    facts.packaging, facts.aux_layer_ids          # "eagle3", (1, 3, 4)
"""

from __future__ import annotations

import re

from kit.errors import CheckError
from kit.modelfacts.facts import DraftMap, ModelFacts, Packaging, Problem, Rope, Tensor, Tokenizer, default_aux_layers
from kit.modelfacts.ggufmodel import read_file
from kit.modelfacts.hfconfig import read_folder
from kit.modelfacts.hostreader import HostReader
from kit.modelfacts.readers import LocalReader, Reader

__all__ = ["DraftMap", "HostReader", "LocalReader", "ModelFacts", "Packaging", "Problem", "Reader", "Rope", "Tensor",
           "Tokenizer", "default_aux_layers", "read_model"]


def read_model(reader: Reader, every_header: bool = False, tokenizer: bool = True) -> ModelFacts:
    """Facts of the checkpoint behind `reader`; weights are never read.

    every_header   open each shard's header (sizes of all weights), not only the telling ones
    tokenizer      read the vocabulary too: megabytes, and only whole models that draft need it
    Raises `CheckError` when there is no model or its main metadata is broken. Lesser damage (a missing shard, a
    header that lies) is listed in `problems`.

    >>> read_model(LocalReader("data/models/micro-llama/eagle3.q8_0.gguf")).aux_layer_ids
    (1, 3, 4)
    """
    files = reader.list()
    if "config.json" in files:
        return read_folder(reader, every_header, tokenizer)
    ggufs = sorted(f for f in files if f.lower().endswith(".gguf"))
    first = [f for f in ggufs if re.search(r"-0*1-of-\d+\.gguf$", f, re.I)]     # of a split file, the one with metadata
    if len(ggufs) == 1 or len(first) == 1:
        return read_file(reader, (first or ggufs)[0])
    if ggufs:
        raise CheckError(f"{len(ggufs)} GGUF files here", where=reader.name, next=f"name one, e.g. {ggufs[0]}")
    if len(files) == 1 and (name := next(iter(files))) and not name.endswith((".json", ".safetensors")):
        return read_file(reader, name)      # a GGUF under another name, as in a blob store
    return read_folder(reader, every_header, tokenizer)
