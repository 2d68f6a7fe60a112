"""
Attributes: typed facts that data producers attach to a request for scorers and filters to read.

A key is a constant shared by the producer and its consumers; the value's type travels with it. An
attribute may always be absent: a producer can fail or not be configured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    from epp.framework.endpoint import Endpoint

T = TypeVar("T")


@dataclass(frozen=True)
class AttributeKey(Generic[T]):
    """The name of an attribute, with the type of its value."""

    name: str


class Attributes:
    """What is known about one request: each key is written once, and only by the framework."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def get(self, key: AttributeKey[T]) -> T | None:
        """Return the value under the key, or None where no producer wrote it."""
        return cast("T | None", self._values.get(key.name))

    def put(self, key: AttributeKey[T], value: T) -> None:
        """Write the value; raise ValueError where the key is taken."""
        if key.name in self._values:
            message = f"attribute {key.name!r} is already written"
            raise ValueError(message)
        self._values[key.name] = value


class PrefixMatch(msgspec.Struct, frozen=True):
    """
    How much of a request's prompt each candidate is expected to hold in its KV cache.

    `matched_blocks` counts leading blocks, one number per endpoint of `candidates`, in their order;
    `total_blocks` is the number of blocks of the prompt, `block_bytes` the size of one.
    """

    matched_blocks: Sequence[int]
    total_blocks: int
    block_bytes: int
    candidates: Sequence["Endpoint"] = ()

    def blocks_of(self, endpoints: Sequence["Endpoint"]) -> Sequence[int]:
        """Return the matched blocks of these endpoints, which filters may have made fewer."""
        # Filters keep the order and only remove, so equal lengths mean the same endpoints.
        if len(endpoints) == len(self.matched_blocks):
            return self.matched_blocks
        blocks = {
            id(one): blocks
            for one, blocks in zip(self.candidates, self.matched_blocks, strict=False)
        }
        return [blocks.get(id(endpoint), 0) for endpoint in endpoints]


PREFIX_MATCH: AttributeKey[PrefixMatch] = AttributeKey("prefix-match")
