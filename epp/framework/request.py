"""
Requests: the raw one as the gateway sent it, and the one the scheduler sees.

Both are frozen but for the request's attributes, which data producers fill in. Here and wherever
something is made for each request, a frozen Struct stands for a frozen dataclass: it is made in a
tenth of the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from epp.framework.attributes import Attributes

DEFAULT_FAIRNESS_ID = "default-flow"


class RawRequest(msgspec.Struct, frozen=True):
    """
    A request as it came: lower-case headers, the whole body, and the gateway's subset hint.

    `body` is None where the picker does not get to see one: a request without a body, or a gateway
    that keeps it. `subset_hint` is None where the gateway sent none; an empty one allows no
    endpoint.
    """

    headers: Mapping[str, str]
    body: bytes | None
    subset_hint: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class FlowKey:
    """What flow control queues by: requests of one fairness id and one priority are one flow."""

    fairness_id: str
    priority: int


class InferenceRequest(msgspec.Struct, frozen=True):
    """
    What the scheduler and its plugins know of a request.

    `model` is the name the model server will see (an adapter's name selects the adapter) and is ""
    where the request names none. `prompt` is the prompt as bytes, for hashing only: equal prompts
    give equal bytes, a prompt that continues another starts with its bytes. `cache_salt` separates
    prefix caches. `max_output_tokens` is None where the client set no limit.
    """

    request_id: str
    headers: Mapping[str, str]
    model: str = ""
    prompt: bytes = b""
    cache_salt: str = ""
    stream: bool = False
    max_output_tokens: int | None = None
    size_bytes: int = 0
    priority: int = 0
    fairness_id: str = DEFAULT_FAIRNESS_ID
    attributes: Attributes = msgspec.field(default_factory=Attributes)

    @property
    def flow_key(self) -> FlowKey:
        """The flow this request queues in."""
        return FlowKey(self.fairness_id, self.priority)
