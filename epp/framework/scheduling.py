"""
Scheduling: the protocols of filters, scorers, pickers and profile handlers, and their results.

A profile run is filter, then score, then pick. Filters are constraints: one that raises fails the
request. Scorers are preferences: one that raises counts 0 for every endpoint.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, overload, runtime_checkable

import msgspec

from epp.framework.endpoint import Endpoint, EndpointView
from epp.framework.request import InferenceRequest


class ScoredEndpoint(NamedTuple):
    """A candidate with the weighted sum of its scores."""

    endpoint: Endpoint
    score: float


class ScoredView(Sequence[ScoredEndpoint]):
    """
    Scored candidates as rows (it is a sequence of ScoredEndpoint) and as the column `scores`.

    Rows are made when asked for: a picker that looks for the best score needs but one of them.
    """

    __slots__ = ("_endpoints", "scores")

    def __init__(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> None:
        self._endpoints = endpoints
        self.scores = scores
        """The weighted sums, in the order of the endpoints; must not be changed."""

    @overload
    def __getitem__(self, index: int) -> ScoredEndpoint: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ScoredEndpoint]: ...
    def __getitem__(self, index: int | slice) -> ScoredEndpoint | Sequence[ScoredEndpoint]:
        if isinstance(index, slice):
            return ScoredView(self._endpoints[index], self.scores[index])
        return ScoredEndpoint(self._endpoints[index], self.scores[index])

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[ScoredEndpoint]:
        return map(ScoredEndpoint, self._endpoints, self.scores)


class ProfileResult(msgspec.Struct, frozen=True):
    """
    What one profile run chose, best first and never empty, and the scores behind it.

    `scores` maps each scorer's name to its unweighted scores, in the order of `candidates`, which
    are those that the filters kept; `removed` maps a filter's name to those that it did not.
    """

    picked: Sequence[ScoredEndpoint]
    candidates: Sequence[Endpoint]
    scores: Mapping[str, Sequence[float]]
    removed: Mapping[str, Sequence[Endpoint]] = msgspec.field(default_factory=dict)


class SchedulingResult(msgspec.Struct, frozen=True):
    """The results of all profiles that ran, and the name of the one whose endpoint is routed to."""

    profiles: Mapping[str, ProfileResult]
    primary: str

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint the request goes to."""
        return self.profiles[self.primary].picked[0].endpoint


@runtime_checkable
class Filter(Protocol):
    """
    Keeps the endpoints that may serve a request: a constraint.

    Called in the order of configuration, each with what the one before it kept.
    """

    @abstractmethod
    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return those that may serve, in their order; an empty result rejects with 429."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """
    Says how good each endpoint would be for a request: a preference.

    Called once a profile run with the endpoints that the filters kept.
    """

    @abstractmethod
    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """
        Return one score an endpoint, in their order, in [0, 1]: 1 is best.

        A scorer with nothing to say gives every endpoint the same score. What was returned must not
        be changed later; returning the same sequence again, where nothing has changed, is quickest.
        """
        ...


@runtime_checkable
class Picker(Protocol):
    """Chooses among scored endpoints; the only plugin that may be random."""

    @abstractmethod
    def pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        """Return the chosen ones, best first, at least one; those after the first are fallbacks."""
        ...


@runtime_checkable
class ProfileHandler(Protocol):
    """Decides which profiles run for a request, and which of their results is routed to."""

    @abstractmethod
    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Collection[str],
        results: Mapping[str, ProfileResult],
    ) -> Collection[str]:
        """Return the names of the profiles to run next; called again until it returns none."""
        ...

    @abstractmethod
    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileResult]
    ) -> SchedulingResult:
        """Return the result of the whole run, made of the results of the profiles."""
        ...
