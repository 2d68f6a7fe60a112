"""
Headers: what a request says beside its body.

A header wins over the field of the same meaning. vLLM ignores a data-parallel rank that is no
number, and so does this. A header may hold any bytes, while ids go into answers and KV events that
must be UTF-8; what is no UTF-8 in it becomes question marks here, before anybody else sees it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from epp.simulator.api.errors import APIError

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The headers that are honoured, of one request."""

    request_id: str | None = None
    priority: int | None = None
    session_id: str | None = None
    rank: int | None = None
    load_format: str | None = None
    """The form in which the response's header is to tell the engines' load: TEXT or JSON."""


def read(headers: Mapping[str, str]) -> RequestHeaders:
    """Return what the headers of a request say; APIError for a priority that is none."""
    return RequestHeaders(
        request_id=text(headers, "X-Request-Id"),
        priority=_priority(headers.get("X-Vllm-Priority")),
        session_id=text(headers, "X-Session-ID"),
        rank=_rank(headers.get("X-data-parallel-rank", "")),
        load_format=headers.get("endpoint-load-metrics-format"),
    )


def text(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header as text that can be written again."""
    given = headers.get(name)
    return None if given is None else given.encode(errors="replace").decode()


def _rank(given: str) -> int | None:
    if not (given.isascii() and given.isdigit()):
        return None
    try:
        return int(given)
    except ValueError:  # Python reads no number of more than some thousand digits
        return None


def _priority(given: str | None) -> int | None:
    if given is None:
        return None
    try:
        priority = int(given)
    except ValueError as error:
        raise _bad_priority() from error
    if not -_INT64 <= priority < _INT64:
        raise _bad_priority()
    return priority


def _bad_priority() -> APIError:
    return APIError("The header X-Vllm-Priority must be a 64-bit integer.", param="priority")


def load_header(load_format: str | None, *, waiting: int, kv_usage: float) -> str | None:
    """Return the value of endpoint-load-metrics; None where no known format was asked for."""
    metrics = {"num_requests_waiting": float(waiting), "kv_cache_usage_perc": kv_usage}
    if load_format == "TEXT":
        return "TEXT " + ", ".join(f"named_metrics.{name}={it}" for name, it in metrics.items())
    if load_format == "JSON":
        named = ", ".join(f'"{name}": {it}' for name, it in metrics.items())
        return f'JSON {{"named_metrics": {{{named}}}}}'
    return None
