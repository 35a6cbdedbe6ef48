"""Headers of a checkpoint on a host: one round trip for the listing and every header, a second where one is long."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

from kit import shipping
from kit.command import Command
from kit.errors import CheckError, NoSuchFile, ParseError

if TYPE_CHECKING:
    from kit.seams import Host

LARGEST_ANSWER = 256 << 20


class HostReader:
    """A folder or file on `host`, read through `kit/remote/model_peek.py`.

    >>> read_model(HostReader(host, "/models/Kimi-K2.6")).num_layers
    61
    """

    def __init__(self, host: Host, path: str, python: str = "python3"):
        self.host, self.path, self.python = host, path, python
        self.name = f"{host.name}:{path}"
        self._files: dict[str, int] | None = None
        self._heads: dict[str, bytes] = {}

    def list(self) -> dict[str, int]:
        if self._files is None:
            self._peek()
        return self._files

    def _peek(self) -> None:
        program = Command((self.python, "-", self.path), shipping.content("model_peek.py"), limit_s=120)
        said = self.host.run(program).check("reading the model's headers", next=f"is {self.python} there?").stdout
        line, _, body = said.partition(b"\n")
        try:
            answer = json.loads(line)
            whole = zlib.decompressobj().decompress(body, LARGEST_ANSWER)
            files, chunks, error = answer["files"], answer["chunks"], answer["error"]
        except (ValueError, KeyError, TypeError, zlib.error) as e:
            raise ParseError(f"the host's answer about the model was not understood: {e}", where=self.name,
                             next="does its login shell print something by itself?") from None
        if error:
            raise NoSuchFile(f"no model to read: {error}", where=self.name, next="fetch it first, or mend the path")
        self.path, self.folder, self._files = answer["path"], answer["folder"], files
        at = 0
        for name, _, size in chunks:
            self._heads[name] = whole[at:at + size]
            at += size

    def read(self, name: str, offset: int, size: int) -> bytes:
        files = self.list()
        if name not in files:
            raise CheckError(f"{name}: no such file", where=self.name, next="fetch the checkpoint again")
        head = self._heads.get(name, b"")
        size = min(size, files[name] - offset)
        if size <= 0 or offset + size <= len(head):
            return head[offset:offset + max(size, 0)]
        known = head[offset:]
        full = f"{self.path}/{name}" if self.folder else self.path
        return known + self.host.read(full, offset + len(known), size - len(known))
