"""
The handoff of a prefill: what P/D disaggregation puts into requests and answers.

A request whose `kv_transfer_params` say `do_remote_decode` is the first of two: its answer carries
the parameters that the second, on another server, takes over word for word to find the blocks. Here
no block ever travels, so ids are made up, one for each block of the prompt, and the second request
computes its prompt itself. Any other `kv_transfer_params`, and all `ec_transfer_params`, are given
back as they came, so that a test sees that they arrived. Only whole answers carry them.
"""

from typing import Any


def answered(
    params: dict[str, Any] | None,
    *,
    request_id: str,
    engine_id: str,
    prompt_tokens: int,
    block_size: int,
    host: str,
) -> dict[str, Any] | None:
    """Return the kv_transfer_params of an answer."""
    if params is None or not params.get("do_remote_decode"):
        return params
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": list(range(1, -(-prompt_tokens // block_size) + 1)),
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": host,
        "remote_port": 5600,
        "tp_size": 1,
    }
