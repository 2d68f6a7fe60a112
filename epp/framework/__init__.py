"""
The SDK: all that a plugin author imports, without I/O and without asyncio.

Data first (endpoints, requests, attributes, errors), then the protocols of the extension points,
then the machinery that turns an entry point and its parameters into an instance.
"""

from epp.framework.attributes import (
    INFLIGHT_LOAD,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    AttributeKey,
    Attributes,
    InFlightLoad,
    PrefixMatch,
)
from epp.framework.datalayer import (
    DataSource,
    EndpointDiscovery,
    EndpointEvent,
    EndpointRemoved,
    EndpointUpdate,
    EndpointUpserted,
    Extractor,
    Synced,
)
from epp.framework.endpoint import (
    Endpoint,
    EndpointId,
    EndpointLoad,
    EndpointMetrics,
    EndpointView,
    LoadChanges,
)
from epp.framework.errors import (
    BadRequest,
    BodyTooLarge,
    ConfigError,
    EPPError,
    NoEndpoints,
    PluginFailed,
    Rejected,
    Saturated,
    ScrapeError,
    Unavailable,
)
from epp.framework.plugin import PluginContext, PluginInstance, StateDumper
from epp.framework.registry import Registry
from epp.framework.request import FlowKey, InferenceRequest, RawRequest
from epp.framework.requestcontrol import (
    DataProducer,
    FirstByteObserver,
    PreRequest,
    ResponseCompletionObserver,
    ResponseHeaderProvider,
    TerminationCause,
)
from epp.framework.requesthandling import ParsedRequest, Parser, Usage
from epp.framework.scheduling import (
    Filter,
    Picker,
    ProfileHandler,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    ScoredView,
    Scorer,
)

__all__ = [
    "INFLIGHT_LOAD",
    "PREFIX_MATCH",
    "PROMPT_TOKENS",
    "AttributeKey",
    "Attributes",
    "BadRequest",
    "BodyTooLarge",
    "ConfigError",
    "DataProducer",
    "DataSource",
    "EPPError",
    "Endpoint",
    "EndpointDiscovery",
    "EndpointEvent",
    "EndpointId",
    "EndpointLoad",
    "EndpointMetrics",
    "EndpointRemoved",
    "EndpointUpdate",
    "EndpointUpserted",
    "EndpointView",
    "Extractor",
    "Filter",
    "FirstByteObserver",
    "FlowKey",
    "InFlightLoad",
    "InferenceRequest",
    "LoadChanges",
    "NoEndpoints",
    "ParsedRequest",
    "Parser",
    "Picker",
    "PluginContext",
    "PluginFailed",
    "PluginInstance",
    "PreRequest",
    "PrefixMatch",
    "ProfileHandler",
    "ProfileResult",
    "RawRequest",
    "Registry",
    "Rejected",
    "ResponseCompletionObserver",
    "ResponseHeaderProvider",
    "Saturated",
    "SchedulingResult",
    "ScoredEndpoint",
    "ScoredView",
    "Scorer",
    "ScrapeError",
    "StateDumper",
    "Synced",
    "TerminationCause",
    "Unavailable",
    "Usage",
]
