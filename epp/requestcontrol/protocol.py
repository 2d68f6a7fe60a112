"""
The keys of the Endpoint Picker Protocol: header names, metadata namespaces, and who owns which.

Names are those of the Gateway API Inference Extension (proposal 004) and of llm-d-router, whose
newer `x-llm-d-*` headers win over their older aliases.
"""

import re
from collections.abc import Iterable, Mapping

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
METADATA_NAMESPACE = "envoy.lb"
DROP_REASON = "x-llm-d-request-dropped-reason"
REQUEST_ID = "x-request-id"
EXPLAIN = "x-epp-explain"
"""1 on a request asks for the decision's scores in the same header of the response."""

OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
TTFT_SLO = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_SLO = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")

CONTROL_HEADERS = frozenset(
    {
        DESTINATION,
        SERVED,
        SUBSET,
        DROP_REASON,
        *OBJECTIVE,
        *FAIRNESS_ID,
        *MODEL_REWRITE,
        *TTFT_SLO,
        *TPOT_SLO,
        "x-data-parallel-host-port",
        "x-encoder-hosts-ports",
        "x-kv-cache-source-host-port",
        "x-prefiller-host-port",
    }
)
"""Headers that gateways, the picker and clients talk by; no model server gets them."""

STRIPPED_HEADERS = CONTROL_HEADERS - {DESTINATION}
"""What is removed from a request; the destination is overwritten."""


def is_system_owned(name: str) -> bool:
    """Say whether a header is the picker's to set, in any letter case (content-length included)."""
    lower = name.lower()
    return lower in CONTROL_HEADERS or lower == "content-length"


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def may_be_set(name: str, value: str) -> bool:
    """Say whether a plugin may set a header: one as HTTP has them, and not the picker's own."""
    routing = {"x-data-parallel-host-port", "x-prefiller-host-port", "x-encoder-hosts-ports"}
    return (
        _TOKEN.fullmatch(name) is not None
        and _UNPRINTABLE.search(value) is None
        and (name.lower() in routing or not is_system_owned(name))
    )


def first_of(headers: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return the value of the first of the names that is there and not empty."""
    for name in names:
        value = headers.get(name)
        if value:
            return value
    return None
