"""Stands in for SGLang: see standin.py."""

from sglang.version import __version__  # noqa: F401
