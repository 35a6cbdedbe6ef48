"""Headers of a checkpoint by HTTP ranges: of a hub repository, or of a folder or file on any web server.

    HttpReader.hub("moonshotai/Kimi-K2.6", revision="main")
    HttpReader("https://models.example/kimi/")

Weights are never fetched. Proxies are taken from the environment, a token from HF_TOKEN; it goes to the hub's own
host only, never to where the hub redirects.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.command import Secret
from kit.errors import CheckError

TIMEOUT_S = 30
LARGEST = 256 << 20
PAGES = 20
INDEX = "model.safetensors.index.json"
PROBED = ("config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja", "tiktoken.model",
          "model.safetensors", INDEX, "README.md")
REASONS = {401: ("private, gated, or not there", "set HF_TOKEN, and check the name"),
           403: ("gated: its terms were not accepted", "accept them on its page, and set HF_TOKEN"),
           404: ("not there", "check the name and the revision")}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class _KeepToken(urllib.request.HTTPRedirectHandler):
    """A redirect to another host must not carry the token."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            follow.remove_header("Authorization")
        return follow


class HttpReader:
    """Reader of `kit.modelfacts` over HTTP. `url` ends in / for a folder, else it is one file."""

    def __init__(self, url: str, listing: str = "", token: Secret | None = None):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise CheckError("not an http or https address", where=url, next="write it as https://host/folder/")
        self.name, self.url, self.listing, self.token = url, url, listing, token
        self._files: dict[str, int] | None = None
        self._opener = urllib.request.build_opener(_KeepToken())

    @classmethod
    def hub(cls, repository: str, revision: str = "main", endpoint: str | None = None) -> HttpReader:
        """A repository of the Hugging Face hub (or of HF_ENDPOINT)."""
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
            raise CheckError(f"{repository!r} is no repository", where="hub", next="write it as org/name")
        root = (endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        at = urllib.parse.quote(revision, safe="")
        token = os.environ.get("HF_TOKEN")
        reader = cls(f"{root}/{repository}/resolve/{at}/", f"{root}/api/models/{repository}/tree/{at}",
                     Secret(token) if token else None)
        reader.name = f"hf://{repository}@{revision}"
        return reader

    def list(self) -> dict[str, int]:
        if self._files is None:
            if not self.url.endswith("/"):
                self._files = {self.url.rsplit("/", 1)[-1]: self._size(self.url, must=True)}
            else:
                self._files = self._hub_listing() if self.listing else self._probe()
        return self._files

    def read(self, name: str, offset: int, size: int) -> bytes:
        size = min(size, self.list().get(name, 0) - offset, LARGEST)
        if size <= 0:
            return b""
        answer = self._get(self._address(name), offset, size)
        if answer.status == 206:
            return answer.body
        if offset + size > LARGEST:
            raise CheckError(f"{name}: the server does not do ranges", where=self.name, next="fetch it first")
        return self._get(self._address(name), 0, offset + size).body[offset:]

    def _address(self, name: str) -> str:
        return self.url + urllib.parse.quote(name) if self.url.endswith("/") else self.url

    def _hub_listing(self) -> dict[str, int]:
        files, page = {}, self.listing
        for _ in range(PAGES):
            answer = self._get(page)
            try:
                files |= {e["path"]: e["size"] for e in json.loads(answer.body)
                          if e["type"] == "file" and "/" not in e["path"]}
            except (ValueError, KeyError, TypeError) as e:
                raise CheckError(f"its listing was not understood: {e}", where=self.name, next="try again") from None
            more = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link", ""))
            if not more or urllib.parse.urlsplit(more[1]).netloc != urllib.parse.urlsplit(page).netloc:
                break
            page = more[1]
        return files

    def _probe(self) -> dict[str, int]:
        """Sizes of the usual names, and of the shards that an index names: a plain server has no listing."""
        self._files = {n: s for n in PROBED if (s := self._size(self.url + n)) is not None}
        if INDEX in self._files:
            try:
                shards = set(json.loads(self.read(INDEX, 0, LARGEST))["weight_map"].values())
            except (ValueError, KeyError, AttributeError, TypeError):
                shards = set()          # the index reader says what is wrong with it
            plain = sorted(s for s in shards if isinstance(s, str) and re.fullmatch(r"[\w.-]+", s))[:4096]
            self._files |= {s: size for s in plain if (size := self._size(self.url + s)) is not None}
        return self._files

    def _size(self, address: str, must: bool = False) -> int | None:
        try:
            headers = self._get(address, 0, 1).headers
        except CheckError:
            if must:
                raise
            return None
        whole = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length", "")
        return int(whole) if whole.isdigit() and len(whole) < 16 else None

    def _get(self, address: str, offset: int = 0, size: int | None = None) -> Answer:
        """At most `size` bytes from `offset`; from the beginning where the server does not do ranges (status 200)."""
        request = urllib.request.Request(address, headers={"Accept-Encoding": "identity"})
        if size is not None:
            request.add_header("Range", f"bytes={offset}-{offset + size - 1}")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token.reveal()}")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return Answer(answer.status, answer.headers, answer.read(LARGEST if size is None else size))
        except urllib.error.HTTPError as e:
            e.close()
            why, then = REASONS.get(e.code, (f"the server answered {e.code}", "try again later"))
            raise CheckError(why, where=address, next=then) from None
        except (OSError, http.client.HTTPException, ValueError) as e:
            reason = getattr(e, "reason", None) or e
            raise CheckError(f"no answer: {reason}", where=address, next="check the network and the proxy") from None
