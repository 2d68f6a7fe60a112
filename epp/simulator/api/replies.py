"""
Replies: what will be said to one prompt, and where it ends.

A simulated reply is known before its first token, and so is its end: at the number of tokens asked
for, or earlier where a stop string or a stop token comes first. As in vLLM the token that completes
a stop string is generated, counted and listed, while the text ends before the string. Where no
length is asked for, the reply ends by itself; where one is asked for, the model is taken to have
that much to say, so that a load's lengths are what its author wrote.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epp.simulator.api.bodies import GenerationBody
from epp.simulator.api.errors import APIError, of_parameter
from epp.simulator.tokens import BYTES_PER_TOKEN, VOCABULARY_SIZE, Reply, spell


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request says about the end of its replies."""

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    keep_stop: bool = False
    """Whether the text ends behind the stop string or token instead of before it."""


def limits_of(asked: GenerationBody, max_tokens: int | None) -> Limits:
    """Read them from a body; APIError where they contradict each other."""
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if "" in stop:
        raise APIError("stop cannot contain an empty string.", param="stop")
    min_tokens = asked.min_tokens or 0
    if min_tokens < 0:
        raise of_parameter(
            f"min_tokens must be greater than or equal to 0, got {min_tokens}.",
            "min_tokens",
            min_tokens,
        )
    if max_tokens is not None and 0 < max_tokens < min_tokens:
        raise of_parameter(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
            "min_tokens",
            min_tokens,
        )
    return Limits(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(asked.ignore_eos),
        stop=stop,
        stop_token_ids=asked.stop_token_ids or (),
        keep_stop=bool(asked.include_stop_str_in_output),
    )


class Prompt(NamedTuple):
    """The tokens of a prompt, and whether it came as text."""

    tokens: "array[int]"
    of_text: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One reply to give: its prompt, the tokens to say, and how it ends."""

    prompt: "array[int]"
    reply: Sequence[int]
    stops: bool
    stop_reason: str | int | None = None
    hidden_bytes: int = 0
    """How much of the text's end belongs to what stopped it, and is not shown."""

    @property
    def shown_bytes(self) -> int:
        """How long the text is that is shown."""
        return len(self.reply) * BYTES_PER_TOKEN - self.hidden_bytes


class _Stop(NamedTuple):
    """Where a reply is stopped: after so many tokens, and how much of its text is shown."""

    tokens: int
    shown_bytes: int
    reason: str | int


def choose(prompt: Prompt, limits: Limits, *, max_model_len: int, seed: int) -> Choice:
    """
    Return one reply to a prompt, as long as asked for and as there is room.

    APIError where there is no room at all.
    """
    room = _room(prompt, max_model_len)
    reply = Reply(prompt.tokens, seed)
    wanted = limits.max_tokens
    if wanted is None:
        by_itself = max(reply.natural_length, limits.min_tokens)
        wanted = room if limits.ignore_eos else by_itself
    length = min(wanted, room)
    if length < 1:
        raise of_parameter(f"max_tokens must be at least 1, got {length}.", "max_tokens", length)
    if limits.stop or limits.stop_token_ids:
        stop = _stop(reply.text(length), limits)
        if stop is not None:
            hidden = stop.tokens * BYTES_PER_TOKEN - stop.shown_bytes
            return Choice(
                prompt.tokens,
                reply.tokens(stop.tokens),
                stops=True,
                stop_reason=stop.reason,
                hidden_bytes=hidden,
            )
    stops = limits.max_tokens is None and not limits.ignore_eos and length == wanted
    return Choice(prompt.tokens, reply.tokens(length), stops)


def _room(prompt: Prompt, max_model_len: int) -> int:
    """Return how many tokens fit behind a prompt; of text, no more are counted than must be."""
    prompt_tokens = len(prompt.tokens)
    if prompt_tokens > max_model_len:
        at_least = ""
        if prompt.of_text:
            at_least, prompt_tokens = "at least ", max_model_len + 1
        raise of_parameter(
            f"This model's maximum context length is {max_model_len} tokens. However,"
            f" your prompt contains {at_least}{prompt_tokens} input tokens, which exceeds this"
            " limit even without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    return max_model_len - prompt_tokens


def _stop(text: bytes, limits: Limits) -> _Stop | None:
    """Return the first stop; at the same token, one of its id goes before one of its text."""
    found = [stop for stop in (_stop_token(text, limits), _stop_string(text, limits)) if stop]
    return min(found, key=lambda stop: stop.tokens, default=None)


def _stop_token(text: bytes, limits: Limits) -> _Stop | None:
    """Return the first stop token."""
    found = []
    for token in limits.stop_token_ids:
        if 0 <= token < VOCABULARY_SIZE:
            raw, at = spell(token), max(0, limits.min_tokens - 1) * BYTES_PER_TOKEN
            while (at := text.find(raw, at)) % BYTES_PER_TOKEN and at >= 0:
                at += 1
            if at >= 0:
                end = at + BYTES_PER_TOKEN
                shown = end if limits.keep_stop else at
                found.append(_Stop(end // BYTES_PER_TOKEN, shown, token))
    return min(found, key=lambda stop: stop.tokens, default=None)


def _stop_string(text: bytes, limits: Limits) -> _Stop | None:
    """Return the first stop string's end; of several within one token, the one listed first."""
    earliest = limits.min_tokens * BYTES_PER_TOKEN + 1
    found = []
    for stop in limits.stop:
        raw = stop.encode()
        at = text.find(raw, max(0, earliest - len(raw)))
        if at >= 0:
            end = at + len(raw)
            shown = end if limits.keep_stop else at
            found.append(_Stop(-(-end // BYTES_PER_TOKEN), shown, stop))
    return min(found, key=lambda stop: stop.tokens, default=None)
