"""
Request control: what plugins may do before a request leaves and after it ended.

Producers gather facts before the choice; PreRequest sees the choice; observers see the response
pass by. What observers do changes nothing of the request, and their failures are only counted.
"""

from abc import abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol, TypeVar, runtime_checkable

from epp.framework.attributes import AttributeKey
from epp.framework.endpoint import EndpointView
from epp.framework.request import InferenceRequest
from epp.framework.requesthandling import Usage
from epp.framework.scheduling import SchedulingResult

T = TypeVar("T")


class TerminationCause(StrEnum):
    """Why a routed request ended, as far as the picker saw it."""

    COMPLETED = "completed"
    """The response came to its end."""
    MODEL_SERVER_ERROR = "model-server-error"
    """The response came to its end, with a status of 500 or more."""
    REFUSED = "refused"
    """The model server refused the request, with a status of 400 to 499: it computed nothing."""
    MOVED = "moved"
    """
    The gateway had another endpoint serve it; `pre_request` is called for that one next.

    Metrics never show it: it ends what plugins remember of the first choice, not the request.
    """
    CLIENT_DISCONNECTED = "client-disconnected"
    """The stream ended before the response did: the client left, or the gateway reset."""
    RESPONSE_UNSEEN = "response-unseen"
    """The gateway shows no responses, so nothing is known of this one."""
    DRAINED = "drained"
    """The picker stopped before the response ended."""
    FAILED = "failed"
    """The picker itself failed while the response passed by."""


@runtime_checkable
class DataProducer(Protocol[T]):
    """
    Computes one attribute of each request before the choice.

    Called once a request with all candidates, after the producers of what it consumes. Raising
    leaves the attribute absent, which every consumer must be able to bear.
    """

    @property
    @abstractmethod
    def produces(self) -> AttributeKey[T]:
        """The key under which the result is kept."""
        ...

    @abstractmethod
    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> T:
        """Return the attribute's value for this request and these candidates."""
        ...


@runtime_checkable
class PreRequest(Protocol):
    """Sees the choice before the request leaves: the place to remember it."""

    @abstractmethod
    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Return the headers to set on the request to the model server, usually none."""
        ...


@runtime_checkable
class ResponseHeaderProvider(Protocol):
    """Tells the client something in the headers of its response: a session's token, say."""

    @abstractmethod
    def response_headers(
        self, request: InferenceRequest, result: SchedulingResult
    ) -> Mapping[str, str]:
        """Return the headers to set on the response, as far as the choice determines them."""
        ...


@runtime_checkable
class FirstByteObserver(Protocol):
    """
    Sees a routed request's response begin, at most once.

    It is the first piece of the body, or the response's head where the gateway shows no body.
    """

    @abstractmethod
    def on_first_byte(self, request: InferenceRequest, result: SchedulingResult) -> None:
        """Take note of it; a request that fails or is cancelled may end without."""
        ...


@runtime_checkable
class ResponseCompletionObserver(Protocol):
    """Sees the end of each routed request, exactly once, whatever its cause."""

    @abstractmethod
    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Take note of it; what pre_request added for this request is to be undone here."""
        ...
