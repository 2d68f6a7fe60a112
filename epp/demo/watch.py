"""
The watch: what the picker's own pages say about its endpoints and its latest decisions.
"""

from collections.abc import Mapping, Sequence

import aiohttp
import msgspec


class EndpointState(msgspec.Struct, frozen=True):
    """An endpoint as the picker sees it now."""

    id: str
    in_flight: int
    queue: int
    running: int
    kv_usage: float
    running_adapters: Sequence[str]

    @property
    def name(self) -> str:
        """The endpoint's name without its namespace."""
        return short_name(self.id)


class Candidate(msgspec.Struct, frozen=True):
    """What the scorers said of an endpoint for one request, and the weighted sum of it."""

    endpoint: str
    total: float
    scores: Mapping[str, float]

    @property
    def name(self) -> str:
        """The endpoint's name without its namespace."""
        return short_name(self.endpoint)


class Profile(msgspec.Struct, frozen=True):
    """One profile run: its candidates, best first."""

    candidates: Sequence[Candidate]


class Decision(msgspec.Struct, frozen=True):
    """Where a request went."""

    request_id: str
    model: str
    endpoint: str
    primary: str
    profiles: Mapping[str, Profile]

    @property
    def name(self) -> str:
        """The name of the endpoint it went to, without its namespace."""
        return short_name(self.endpoint)

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Those among which the endpoint was chosen, best first."""
        return self.profiles[self.primary].candidates


Weights = Mapping[str, float]
"""The weight of each scorer by name."""


class _StatePage(msgspec.Struct):
    endpoints: Sequence[EndpointState]


class _DecisionsPage(msgspec.Struct):
    recorded: int
    weights: Mapping[str, Weights]
    decisions: Sequence[Decision]


class Watch:
    """Looks at a picker's pages again and again, and tells what is new."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._seen = 0

    async def endpoints(self) -> Sequence[EndpointState]:
        """Return all endpoints, in the pool's order."""
        return msgspec.json.decode(await self._page("state"), type=_StatePage).endpoints

    async def decisions(self) -> tuple[Sequence[Decision], Weights]:
        """Return the decisions since the last call, oldest first, and what scores weigh in them."""
        page = msgspec.json.decode(await self._page("decisions"), type=_DecisionsPage)
        new = min(page.recorded - self._seen, len(page.decisions))
        self._seen = page.recorded
        weights: dict[str, float] = {}
        for of_profile in page.weights.values():
            weights |= of_profile
        return page.decisions[len(page.decisions) - new :], weights

    async def _page(self, name: str) -> bytes:
        async with self._session.get(f"{self._url}/debug/{name}") as response:
            return await response.read()


def short_name(endpoint_id: str) -> str:
    """Return an endpoint's name without its namespace."""
    return endpoint_id.rpartition("/")[2]
