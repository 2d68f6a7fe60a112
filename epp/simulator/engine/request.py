"""
Requests: what an engine is asked for, and what it keeps of each while it works on it.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length"]


class Adapter(NamedTuple):
    """A LoRA adapter: its name, where the server loaded it from, and its number there."""

    name: str
    path: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """
    A request as the engine needs it, with the tokens it will say.

    It ends with its reply: by itself (`stops`), or because it was given no more room. `arrival` is
    in seconds on whatever clock drives the engine; of equal priorities the earlier is more urgent.
    """

    id: str
    prompt: Sequence[int]
    reply: Sequence[int]
    adapter: Adapter | None = None
    cache_salt: str = ""
    stops: bool = False
    priority: int = 0
    arrival: float = 0.0
    session_id: str | None = None


class ActiveRequest:
    """A request inside the engine: its tokens, how many are computed, the blocks they live in."""

    __slots__ = (
        "adapter", "arrival", "blocks", "cache_salt", "computed", "deferred", "filled",
        "finish_reason", "forced_out", "gone", "hashes", "id", "limit", "preemptions", "priority",
        "produced", "prompt_tokens", "reply", "session_id", "swapped_blocks", "tokens",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, max_model_len: int) -> None:
        self.id = request.id
        self.adapter = request.adapter
        self.cache_salt = request.cache_salt
        self.session_id = request.session_id
        self.priority = request.priority
        self.arrival = request.arrival
        self.tokens = array("I", request.prompt)
        self.prompt_tokens = len(self.tokens)
        self.reply = request.reply
        self.limit = min(len(request.reply), max_model_len - self.prompt_tokens)
        by_itself = request.stops and self.limit == len(request.reply)
        self.finish_reason: FinishReason = "stop" if by_itself else "length"
        self.produced = 0
        self.computed = 0
        self.blocks: list[int] = []
        self.filled = 0
        """How many of the blocks carry a hash."""
        self.hashes: list[bytes] = []
        self.swapped_blocks = 0
        """How many blocks lie in the CPU's memory."""
        self.preemptions = 0
        self.forced_out = 0
        """How often it lost its seat to a more urgent request, blocks or no blocks."""
        self.deferred = False
        self.gone = False
        """Whether it was aborted: a step under way has nothing to say of it."""
