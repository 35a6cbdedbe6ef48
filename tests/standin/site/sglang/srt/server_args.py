"""SGLang's arguments: the flags of the release it stands in for, and the rules that end a launch before it begins."""

import argparse
import copy
import json
import logging
import os
import re

from sglang.srt.configs.model_config import ModelConfig
from sglang.version import __version__

logger = logging.getLogger(__name__)
RELEASE = tuple(int(part) for part in re.findall(r"\d+", __version__)[:3])
FIELDS = {"--tensor-parallel-size": "tp_size", "--tp-size": "tp_size", "--model": "model_path",
          "--pipeline-parallel-size": "pp_size", "--pp-size": "pp_size",
          "--speculative-draft-model": "speculative_draft_model_path"}
DEFAULTS = {"host": "127.0.0.1", "port": 30000, "tp_size": 1, "page_size": 1, "pp_size": 1,
            "attention_backend": "triton", "chunked_prefill_size": 8192, "mem_fraction_static": 0.88,
            "sampling_backend": "flashinfer", "device": "cuda", "kv_cache_dtype": "auto"}
TYPES = {"int": int, "float": float, "size": int}


def field_of(names):
    """The attribute that a flag fills."""
    known = [FIELDS[n] for n in names if n in FIELDS]
    return known[0] if known else names[0].lstrip("-").replace("-", "_")


def parser():
    p = argparse.ArgumentParser(prog="sglang serve" if RELEASE >= (0, 5, 12) else "launch_server.py")
    with open(os.path.join(os.path.dirname(__file__), "..", "recorded", "flags.json")) as f:
        flags = json.load(f)
    for flag in flags:
        field, more = field_of(flag["names"]), {}
        if flag["kind"] == "flag":
            more = {"action": "store_true"}
        elif flag["kind"] == "bool":
            more = {"action": argparse.BooleanOptionalAction}
        elif flag["kind"] != "gone":
            more = {"type": TYPES.get(flag["kind"], str), "nargs": flag["nargs"], "choices": flag["choices"] or None,
                    "default": DEFAULTS.get(field)}
        p.add_argument(*flag["names"], dest=field, required=field == "model_path", **more)
    return p


class ServerArgs:
    def __init__(self, **given):
        self.speculative_algorithm = self.speculative_draft_model_path = None
        self.speculative_num_steps = self.speculative_eagle_topk = self.speculative_num_draft_tokens = None
        self.disable_overlap_schedule, self.max_running_requests, self._resolved = False, None, None
        self.__dict__.update(given)
        if RELEASE < (0, 5, 19):
            self.__post_init__()

    def __post_init__(self):
        ModelConfig(self.model_path, context_length=self.context_length)
        if self.speculative_algorithm:
            self.speculative_algorithm = self.speculative_algorithm.upper().replace("NEXTN", "EAGLE")
        if RELEASE >= (0, 5, 13):
            from sglang.srt.arg_groups.speculative_hook import handle_speculative_decoding
            handle_speculative_decoding(self)
        else:
            self._handle_speculative_decoding()

    def _handle_speculative_decoding(self):
        if self.speculative_algorithm not in ("EAGLE", "EAGLE3", "STANDALONE"):
            return
        if self.max_running_requests is None:
            self.max_running_requests = 48
        if self.speculative_num_steps is None:
            assert (
                self.speculative_eagle_topk is None
                and self.speculative_num_draft_tokens is None
            )
            self.speculative_num_steps = 3
            self.speculative_eagle_topk = 1
            self.speculative_num_draft_tokens = 4
        if (
            self.speculative_eagle_topk > 1
            and self.page_size > 1
            and self.attention_backend != "flashinfer"
        ):
            raise ValueError("speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results "
                             "for paged attention backends. This combination is only supported for the 'flashinfer' "
                             "backend.")
        if self.speculative_eagle_topk > 1 or RELEASE < (0, 5, 11):
            self.disable_overlap_schedule = True
        if self.speculative_eagle_topk == 1 and self.speculative_num_draft_tokens != self.speculative_num_steps + 1:
            logger.warning("speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when "
                           "speculative_eagle_topk == 1")
            self.speculative_num_draft_tokens = self.speculative_num_steps + 1

    def check_server_args(self):
        if RELEASE < (0, 5, 21) and self.pp_size > 1 and self.speculative_algorithm:
            raise AssertionError("Pipeline parallelism is not compatible with overlap schedule, speculative decoding, "
                                 "mixed chunked prefill.")


def _resolve_once(self):
    self._resolved = copy.copy(self)
    self._resolved.__post_init__()


if RELEASE >= (0, 5, 19):
    ServerArgs.resolve_once = _resolve_once


def prepare_server_args(argv):
    return ServerArgs(**vars(parser().parse_args(argv)))
