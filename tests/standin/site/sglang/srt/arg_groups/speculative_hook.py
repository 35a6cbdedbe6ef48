"""The speculative rules of 0.5.13 and later, under the names that their tracebacks show."""

import logging

logger = logging.getLogger(__name__)


def handle_speculative_decoding(server_args):
    if server_args.speculative_algorithm in ("EAGLE", "EAGLE3", "STANDALONE"):
        _handle_eagle_family(server_args)


def _handle_eagle_family(server_args):
    if server_args.max_running_requests is None:
        server_args.max_running_requests = 48
    if server_args.speculative_num_steps is None:
        assert (
            server_args.speculative_eagle_topk is None
            and server_args.speculative_num_draft_tokens is None
        )
        server_args.speculative_num_steps = 3
        server_args.speculative_eagle_topk = 1
        server_args.speculative_num_draft_tokens = 4
    if (
        server_args.speculative_eagle_topk > 1
        and server_args.page_size > 1
        and server_args.attention_backend not in ("flashinfer", "fa3", "triton")
    ):
        raise ValueError("speculative_eagle_topk > 1 with page_size > 1 is only supported on (flashinfer, fa3, triton)")
    if (
        server_args.speculative_eagle_topk == 1
        and server_args.speculative_num_draft_tokens != server_args.speculative_num_steps + 1
    ):
        logger.warning("speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when "
                       "speculative_eagle_topk == 1")
        server_args.speculative_num_draft_tokens = server_args.speculative_num_steps + 1
