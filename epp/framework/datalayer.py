"""
The data layer: where endpoints come from, where their samples come from, and who reads them.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from epp.framework.endpoint import Endpoint, EndpointId

S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class EndpointUpdate:
    """
    What one sample says; None means that it does not say, and the earlier value stays.

    The fields are those of EndpointMetrics. `missing` names the wanted signals that the sample
    lacks and `parse_errors` counts values that could not be read.
    """

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    running_adapters: frozenset[str] | None = None
    waiting_adapters: frozenset[str] | None = None
    max_adapters: int | None = None
    base_models: frozenset[str] | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    missing: frozenset[str] = frozenset()
    parse_errors: int = 0


@runtime_checkable
class DataSource(Protocol[S_co]):
    """Fetches one sample of an endpoint's state: one round trip."""

    @abstractmethod
    async def poll(self, endpoint: Endpoint) -> S_co:
        """Return a sample; raise ScrapeError where there is none to be had."""
        ...

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class Extractor(Protocol[S_contra]):
    """Reads a sample into an update; pure."""

    @abstractmethod
    def extract(self, endpoint: Endpoint, sample: S_contra) -> EndpointUpdate:
        """Return what the sample says; raise ScrapeError where it holds nothing usable."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointUpserted:
    """An endpoint is there, or its address, port or labels changed."""

    id: EndpointId
    address: str
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointRemoved:
    """An endpoint is gone."""

    id: EndpointId


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything that exists has been reported once: the picker may become ready."""


EndpointEvent = EndpointUpserted | EndpointRemoved | Synced


@runtime_checkable
class EndpointDiscovery(Protocol):
    """Reports which endpoints exist."""

    @abstractmethod
    def discover(self) -> AsyncIterator[EndpointEvent]:
        """
        Yield every endpoint, then Synced once, then changes for ever.

        Raises ConfigError where it cannot begin; once synced it keeps the last good state instead.
        """
        ...
