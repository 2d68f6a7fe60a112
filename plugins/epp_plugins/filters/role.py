"""
Keep the endpoints whose role serves one stage of a request: encode, prefill or decode.

Pools that split a request's work over several model servers label each with what it does
(`llm-d.ai/role`). A profile for one stage begins with the filter of that stage.
"""

from collections.abc import Collection, Sequence

from epp.framework import Endpoint, EndpointView, Filter, InferenceRequest

ROLE_LABEL = "llm-d.ai/role"

ENCODES = frozenset({"encode", "encode-prefill", "encode-decode", "encode-prefill-decode"})
PREFILLS = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
)
DECODES = frozenset({"decode", "prefill-decode", "both", "encode-decode", "encode-prefill-decode"})


class EncodeFilter(Filter):
    """
    An endpoint is kept whose role includes encoding: `encode`, alone or with other stages.

    The label is needed. `encode-decode` counts, which the field documents but matches with nothing.
    """

    def __init__(self) -> None:
        self._kept = _Kept(ENCODES)

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints that encode; the same for the same candidates."""
        return self._kept.of(endpoints)


class PrefillFilter(Filter):
    """
    An endpoint is kept whose role includes prefill: `prefill`, `both`, or with other stages.

    The label is needed.
    """

    def __init__(self) -> None:
        self._kept = _Kept(PREFILLS)

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints that prefill; the same for the same candidates."""
        return self._kept.of(endpoints)


class DecodeFilter(Filter):
    """
    An endpoint is kept whose role includes decode, or that has no role: it does the whole work.

    `encode-decode` counts, which the field documents but matches with nothing.
    """

    def __init__(self) -> None:
        self._kept = _Kept({*DECODES, None})

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints that decode; the same for the same candidates."""
        return self._kept.of(endpoints)


class _Kept:
    """The candidates with certain roles, None being no role: found once for a pool as it is."""

    def __init__(self, roles: Collection[str | None]) -> None:
        self._roles = roles
        self._rows: tuple[Endpoint, ...] | None = None
        self._kept: tuple[Endpoint, ...] = ()

    def of(self, endpoints: EndpointView) -> tuple[Endpoint, ...]:
        if endpoints.rows is not self._rows:
            roles = self._roles
            self._kept = tuple([one for one in endpoints if one.labels.get(ROLE_LABEL) in roles])
            self._rows = endpoints.rows
        return self._kept
