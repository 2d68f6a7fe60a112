"""
Request bodies of the OpenAI APIs: the fields that routing reads, with the types they must have.

A field that is not named here may hold anything and is not even decoded; one that is only hashed
stays as it is written. One that is read and has a type that no model server takes is refused.
Model servers are lax about scalars: 16.0 and "16" are numbers to them, 1 and "yes" are true. So are
they here, and a scalar that means nothing is unknown here and for the model server to refuse.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from epp_plugins.parsers.openai import prompt as prompts
from epp_plugins.parsers.openai.prompt import NULL

Turns = Annotated[list[prompts.Turn], Meta(min_length=1)]

TRUE = frozenset({b"true", b"t", b"yes", b"y", b"on", b"1", b"1.0"})
"""What a model server reads as true, in any case."""

MAX_SCALAR_BYTES = 64


class Body(msgspec.Struct, kw_only=True, gc=False):
    """
    What all APIs share; by itself an API whose prompt says nothing about any cache.

    `needs_model` False says that the API may do without a model.
    """

    needs_model: ClassVar[bool] = True

    model: str | UnsetType = UNSET
    stream: Raw = NULL
    cache_salt: str | None = None

    def prompt_bytes(self) -> bytes:
        """Return the prompt as bytes for hashing; raise ValueError where it is none."""
        return b""

    def streams(self) -> bool:
        """
        Return whether the client wants its response piece by piece.

        Raises ValueError where an object or an array stands for it.
        """
        return self.stream is not NULL and _scalar("stream", self.stream).lower() in TRUE

    def output_limit(self) -> int | None:
        """
        Return the largest number of tokens that the client wants to get, None if it is unknown.

        Raises ValueError where an object or an array stands for it.
        """
        return None


class ChatBody(Body):
    """`/v1/chat/completions`: turns of a conversation, and the tools it may use."""

    messages: Turns
    tools: Raw = NULL
    max_completion_tokens: Raw = NULL
    max_tokens: Raw = NULL

    def prompt_bytes(self) -> bytes:
        """Return the bytes of the whole conversation."""
        return prompts.of_turns(self.tools, self.messages)

    def output_limit(self) -> int | None:
        """Return the newer field's limit before the older one's."""
        older = _limit("max_tokens", self.max_tokens)
        newer = _limit("max_completion_tokens", self.max_completion_tokens)
        return newer if prompts.given(self.max_completion_tokens) else older


class CompletionBody(Body):
    """`/v1/completions`: a text, token ids, or a batch of either; or embeddings instead of them."""

    prompt: Raw = NULL
    prompt_embeds: Raw = NULL
    max_tokens: Raw = NULL

    def prompt_bytes(self) -> bytes:
        """Return the bytes of the prompt; of a batch, those of the first."""
        if self.prompt == NULL and prompts.given(self.prompt_embeds):
            return b""
        return prompts.of_text_or_tokens("prompt", self.prompt)

    def output_limit(self) -> int | None:
        """Return the limit of each prompt's output."""
        return _limit("max_tokens", self.max_tokens)


class EmbeddingBody(Body):
    """`/v1/embeddings`: as completions in `input`, or as chat in `messages`."""

    input: Raw = NULL
    messages: Turns | None = None

    def prompt_bytes(self) -> bytes:
        """Return the bytes of the input; of a batch, those of the first."""
        if self.input == NULL and self.messages:
            return prompts.of_turns(NULL, self.messages)
        return prompts.of_text_or_tokens("input", self.input)


class ResponseBody(Body):
    """`/v1/responses`: a text, or items of a conversation."""

    input: Raw
    instructions: Raw = NULL
    tools: Raw = NULL
    max_output_tokens: Raw = NULL

    def prompt_bytes(self) -> bytes:
        """Return the bytes of what this request brings; earlier responses stay on the server."""
        return prompts.of_items(self.tools, self.input, self.instructions)

    def output_limit(self) -> int | None:
        """Return the limit of the whole response."""
        return _limit("max_output_tokens", self.max_output_tokens)


class ImageBody(Body):
    """`/v1/images/generations`: a text; the model is optional."""

    needs_model: ClassVar[bool] = False

    prompt: Annotated[str, Meta(min_length=1)]

    def prompt_bytes(self) -> bytes:
        """Return the text's bytes."""
        return self.prompt.encode()


class ConversationBody(Body):
    """`/v1/conversations`: items to keep on the server, and no model."""

    needs_model: ClassVar[bool] = False


BODIES: Mapping[str, type[Body]] = {
    "v1/chat/completions": ChatBody,
    "v1/chat/completions/render": ChatBody,
    "v1/completions": CompletionBody,
    "v1/completions/render": CompletionBody,
    "v1/conversations": ConversationBody,
    "v1/embeddings": EmbeddingBody,
    "v1/images/generations": ImageBody,
    "v1/rerank": Body,
    "v1/responses": ResponseBody,
    "v1/score": Body,
}
"""What each API takes, by the end of its path."""


def _limit(field: str, value: Raw) -> int | None:
    """Return the number of tokens that a model server reads in a value, None where in none."""
    if value is NULL:
        return None
    written = _scalar(field, value)
    try:
        number = float(written)
    except ValueError:
        return None
    return int(number) if number >= 0 and number.is_integer() else None


def _scalar(field: str, value: Raw) -> bytes:
    """Return what is written, without quotes, b"" where that is too long to mean anything."""
    written = bytes(value)
    if written.startswith((b"{", b"[")):
        message = f"{field} must be neither an object nor an array"
        raise ValueError(message)
    return written.strip(b'"') if len(written) <= MAX_SCALAR_BYTES else b""
