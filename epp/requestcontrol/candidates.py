"""
Candidates: the endpoints of the pool that the gateway's subset hint allows.
"""

import ipaddress
from collections.abc import Iterable, Sequence

from epp.framework import Endpoint, NoEndpoints


def locate(endpoints: Sequence[Endpoint], subset_hint: Iterable[str] | None) -> Sequence[Endpoint]:
    """
    Return the endpoints within the hint, in their order; all of them where there is no hint.

    An entry is `address`, `address:port`, or either with IPv6 in brackets; one without a port
    allows every port of its address. Raises NoEndpoints where nothing is left.
    """
    if not endpoints:
        raise NoEndpoints("no endpoint of the pool is ready to serve the request")
    if subset_hint is None:
        return endpoints
    allowed = {_split(entry) for entry in subset_hint}
    kept = []
    for endpoint in endpoints:
        address = _normal(endpoint.address)
        if (address, endpoint.port) in allowed or (address, None) in allowed:
            kept.append(endpoint)
    if not kept:
        raise NoEndpoints("no endpoint of the gateway's subset is ready to serve the request")
    return kept


def _split(entry: str) -> tuple[str, int | None]:
    """`[v6]:port`, `[v6]`, `v4:port`, `v4`, or a bare v6; a port that is none matches nothing."""
    address, port = entry, ""
    if entry.startswith("["):
        address, _, rest = entry[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else rest
    elif entry.count(":") == 1:
        address, _, port = entry.partition(":")
    if not port:
        return _normal(address), None
    return _normal(address), int(port) if port.isdecimal() and len(port) < 6 else -1


def _normal(address: str) -> str:
    """IPv6 has many spellings; anything else stands for itself."""
    if ":" not in address:
        return address
    try:
        return ipaddress.IPv6Address(address).compressed
    except ValueError:
        return address
