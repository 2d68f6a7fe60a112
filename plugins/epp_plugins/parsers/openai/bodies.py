"""
Request bodies of the OpenAI APIs: the fields that routing reads, with the types they must have.

A field that is not named here may hold anything and is not even decoded. One that is named with the
wrong type could only be refused by the model server too, so it is refused here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from epp_plugins.parsers.openai import prompt as prompts

Filled = Meta(min_length=1)
TextOrTokens = str | Annotated[list[str | int | list[int]], Filled]


class Body(msgspec.Struct, kw_only=True, gc=False):
    """
    What all APIs share; by itself an API whose prompt says nothing about any cache.

    `needs_model` False says that the API may do without a model.
    """

    needs_model: ClassVar[bool] = True

    model: str | UnsetType = UNSET
    stream: bool | None = None
    cache_salt: str | None = None

    def prompt_bytes(self) -> bytes:
        """Return the prompt as bytes for hashing; raise ValueError where it is none."""
        return b""

    def output_limit(self) -> int | None:
        """Return the largest number of tokens that the client wants to get."""
        return None


class ChatBody(Body):
    """`/v1/chat/completions`: turns of a conversation, and the tools it may use."""

    messages: Annotated[list[prompts.Turn], Filled]
    tools: Any = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None

    def prompt_bytes(self) -> bytes:
        """Return the bytes of the whole conversation."""
        return prompts.of_turns(self.tools, self.messages)

    def output_limit(self) -> int | None:
        """Return the newer field's limit before the older one's."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Body):
    """`/v1/completions`: a text, token ids, or a batch of either; or embeddings instead of them."""

    prompt: TextOrTokens | None = None
    prompt_embeds: Any = None
    max_tokens: int | None = None

    def prompt_bytes(self) -> bytes:
        """Return the bytes of the prompt; of a batch, those of the first."""
        if self.prompt is None and self.prompt_embeds:
            return b""
        return _text_or_tokens("prompt", self.prompt)

    def output_limit(self) -> int | None:
        """Return the limit of each prompt's output."""
        return self.max_tokens


class EmbeddingBody(Body):
    """`/v1/embeddings`: as completions in `input`, or as chat in `messages`."""

    input: TextOrTokens | None = None
    messages: Annotated[list[prompts.Turn], Filled] | None = None

    def prompt_bytes(self) -> bytes:
        """Return the bytes of the input; of a batch, those of the first."""
        if self.input is None and self.messages:
            return prompts.of_turns(None, self.messages)
        return _text_or_tokens("input", self.input)


class ResponseBody(Body):
    """`/v1/responses`: a text, or items of a conversation."""

    input: str | Annotated[list[dict[str, Any]], Filled]
    instructions: Any = None
    tools: Any = None
    max_output_tokens: int | None = None

    def prompt_bytes(self) -> bytes:
        """Return the bytes of what this request brings; earlier responses stay on the server."""
        return prompts.of_items(self.tools, self.input, self.instructions)

    def output_limit(self) -> int | None:
        """Return the limit of the whole response."""
        return self.max_output_tokens


class ImageBody(Body):
    """`/v1/images/generations`: a text; the model is optional."""

    needs_model: ClassVar[bool] = False

    prompt: Annotated[str, Filled]

    def prompt_bytes(self) -> bytes:
        """Return the text's bytes."""
        return self.prompt.encode()


class ConversationBody(Body):
    """`/v1/conversations`: items to keep on the server, and no model."""

    needs_model: ClassVar[bool] = False

    items: list[dict[str, Any]] | None = None


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


def _text_or_tokens(field: str, value: str | list[str | int | list[int]] | None) -> bytes:
    """Return the bytes of a text, of token ids, or of the first in a batch."""
    first: Any = value
    if isinstance(value, list):
        mixed = len(set(map(type, value))) != 1
        first = None if mixed else value if isinstance(value[0], int) else value[0]
    if isinstance(first, str):
        return first.encode()
    if isinstance(first, list) and first:
        return prompts.of_token_ids(first)
    message = f"{field} must be a text, a list of token ids, or a list of either, and not empty"
    raise ValueError(message)
