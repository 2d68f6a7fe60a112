"""
Spread prompts that nobody has cached: prefer the endpoint that was seeded with one longest ago.

Where a new prompt goes, its continuations follow. Giving each to the endpoint whose turn it is
spreads the caches of the pool over what is asked, which load alone does not do: the endpoint that
is least busy now may have been seeded a moment ago.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from epp.framework import (
    PREFIX_MATCH,
    AttributeKey,
    EndpointLoad,
    EndpointView,
    InferenceRequest,
    PreRequest,
    SchedulingResult,
    Scorer,
    StateDumper,
)

MATCHED_BY = "approx-prefix-cache-producer"
LARGEST = 2**31


class NoHitLRUScorer(Scorer, PreRequest, StateDumper):
    """
    The candidate seeded longest ago scores 1, the latest 0, the others evenly between them.

    Endpoints that were never seeded come before all others, in their order. A prompt of which any
    candidate holds a block scores 0.5 everywhere and seeds nobody; a prompt of which nothing is
    known counts as new. Whatever endpoints a request is sent to, in all its profiles, are seeded.
    One that refused or failed it, or whose request the gateway took elsewhere, has had its turn all
    the same: kept first in turn, it would be sent every new prompt until it works again.

    Ranks are among the candidates alone, so that the scale is always whole; the field counts
    endpoints that are no candidates too. `lruSize` bounds how many endpoints are remembered, each
    for its life: one that leaves and returns was never seeded. `prefixPluginType` and
    `prefixPluginName` are accepted and have no effect, as in the field.
    """

    consumes = (PREFIX_MATCH,)

    def __init__(
        self,
        *,
        lru_size: int = 1024,
        prefix_match_info_producer_name: str = MATCHED_BY,
        prefix_plugin_type: str = "",
        prefix_plugin_name: str = "",
    ) -> None:
        if not 1 <= lru_size <= LARGEST:
            message = f"parameters.lruSize must be from 1 to {LARGEST}, got {lru_size}"
            raise ValueError(message)
        name = prefix_match_info_producer_name
        self.producers: Mapping[AttributeKey[Any], str] = (
            {} if name == MATCHED_BY else {PREFIX_MATCH: name}
        )
        self._size = lru_size
        # By the object that all snapshots of one life share: when it was seeded, in seeds; the
        # last one is the latest.
        self._seeded: dict[EndpointLoad, int] = {}
        self._seeds = 0
        self._rows: Sequence[object] | None = None
        self._loads: list[EndpointLoad] = []
        self._ranks: list[float] = []

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the place of each endpoint between the first in turn (1) and the last (0)."""
        count = len(endpoints)
        match = request.attributes.get(PREFIX_MATCH)
        if match is not None and any(match.blocks_of(endpoints)):
            return [0.5] * count
        if count <= 1:
            return [1.0] * count
        if endpoints.rows is not self._rows:
            self._rows, self._loads = endpoints.rows, [one.load for one in endpoints]
            self._ranks = [1.0 - rank / (count - 1) for rank in range(count)]
        seeded = [self._seeded.get(load, 0) for load in self._loads]
        scores = [0.0] * count
        for at, score in zip(
            sorted(range(count), key=seeded.__getitem__), self._ranks, strict=True
        ):
            scores[at] = score
        return scores

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Put whoever gets a new prompt last in turn; add no headers."""
        match = request.attributes.get(PREFIX_MATCH)
        for profile in result.profiles.values():
            if match is None or not any(match.blocks_of(profile.candidates)):
                self._seed(profile.picked[0].endpoint.load)
        return {}

    def _seed(self, load: EndpointLoad) -> None:
        self._seeds += 1
        self._seeded.pop(load, None)
        self._seeded[load] = self._seeds
        if len(self._seeded) > self._size:
            del self._seeded[next(iter(self._seeded))]

    def dump_state(self) -> Mapping[str, int]:
        """Return how many endpoints are remembered, and how often one was seeded."""
        return {"endpoints": len(self._seeded), "seeds": self._seeds}
