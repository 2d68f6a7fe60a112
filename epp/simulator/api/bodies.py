"""
Bodies: the fields of requests that matter here; all others are ignored, as in vLLM.

What sampling parameters ask for makes no difference to a model that is none, so only those are read
that the real server refuses or that decide where a reply ends.
"""

from typing import Annotated, Any, Literal

import msgspec

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that an engine can take; the real one's are of 64 bits."""
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Prompt = str | list[str | TokenId | list[TokenId]]


class StreamOptions(msgspec.Struct):
    """How a stream is to be."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(msgspec.Struct, kw_only=True):
    """What all generation requests have in common."""

    model: str | None = None
    request_id: str | None = None
    stream: bool | None = False
    priority: Integer | None = 0
    session_id: str | None = None
    cache_salt: str | None = None
    temperature: float | None = None


class GenerationBody(Body, kw_only=True):
    """What completions and chats have in common."""

    max_tokens: Integer | None = None
    min_tokens: Integer | None = 0
    n: Integer | None = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """A completion."""

    prompt: Prompt | None = None
    logprobs: Integer | None = None


class ContentPart(msgspec.Struct):
    """One part of a message; only text has tokens here."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One turn of a chat."""

    role: str
    content: str | list[ContentPart] | None = None

    def text(self) -> str:
        """Return all of its text."""
        return text_of(self.content)


class ChatBody(GenerationBody, kw_only=True):
    """A chat completion."""

    messages: list[Message]
    max_completion_tokens: Integer | None = None
    top_logprobs: Integer | None = None


class InputItem(msgspec.Struct):
    """One item of a response's input; those that are no messages say nothing here."""

    role: str = "user"
    content: str | list[ContentPart] | None = None


class ResponsesBody(Body, kw_only=True):
    """A response."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: Integer | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None


class EmbeddingBody(Body, kw_only=True):
    """An embedding."""

    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Integer | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A text or a chat whose tokens are wanted."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Tokens whose text is wanted."""

    model: str | None = None
    tokens: list[TokenId]


class LoadAdapterBody(msgspec.Struct, kw_only=True):
    """An adapter to load."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterBody(msgspec.Struct, kw_only=True):
    """An adapter to unload."""

    lora_name: str


class AbortBody(msgspec.Struct, kw_only=True):
    """Requests to take out, by the ids in their answers."""

    request_ids: list[str]


def text_of(content: str | list[ContentPart] | None) -> str:
    """Return all the text of a message's content."""
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""
