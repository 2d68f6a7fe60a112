"""
Keep the endpoints that a request's header names: for conformance tests.

Tests of gateways must know where a request should go. Do not configure it where clients are not to
choose their endpoint.
"""

import ipaddress
from collections.abc import Sequence

from epp.framework import Endpoint, EndpointView, Filter, InferenceRequest

HEADER = "test-epp-endpoint-selection"


class HeaderBasedTestingFilter(Filter):
    """
    The header `test-epp-endpoint-selection` lists who may serve, with commas between.

    An entry is an address, which stands for every port there, or `address:port`, either with IPv6
    in brackets. A request without the header may go anywhere; one whose header names no candidate
    is rejected. The field keeps nobody without the header, which fails the conformance suite's
    plain routing tests.
    """

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints that the header names, all of them without it."""
        entries = [entry.strip() for entry in request.headers.get(HEADER, "").split(",")]
        named = {_split(entry) for entry in entries if entry}
        if not named:
            return endpoints
        kept = []
        for endpoint in endpoints:
            address = _normal(endpoint.address)
            if (address, None) in named or (address, str(endpoint.port)) in named:
                kept.append(endpoint)
        return kept


def _split(entry: str) -> tuple[str, str | None]:
    """Return address and port of `[v6]:port`, `[v6]`, `v4:port`, `v4`, or a bare v6."""
    if entry.startswith("["):
        address, _, rest = entry[1:].partition("]")
        return _normal(address), rest.removeprefix(":") or None
    if entry.count(":") == 1:
        address, _, port = entry.partition(":")
        return _normal(address), port or None
    return _normal(entry), None


def _normal(address: str) -> str:
    """IPv6 has many spellings; anything else stands for itself."""
    try:
        return ipaddress.IPv6Address(address).compressed if ":" in address else address
    except ValueError:
        return address
