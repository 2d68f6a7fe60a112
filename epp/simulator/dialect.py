"""
The OpenAI dialect as vLLM 0.32 understands it: bodies read into jobs, or refused in its words.

Unknown fields are ignored and a reply that would exceed the context is cut, both without a word,
as the real server does. What sampling parameters ask for makes no difference to a model that is
none, so they are not read. Clients tell refusals apart by status, `type` and `param`; the messages
are the real ones wherever they do not quote that server's own parser.
"""

import json
import re
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from epp.simulator.tokens import Reply, encode, encode_chat

VERSION = "0.32.0"
_COMPLETION_MAX_TOKENS = 16
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class APIError(Exception):
    """An answer other than 200, in the shape that vLLM gives it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode(
            {"error": {"message": message, "type": kind, "param": param, "code": status}}
        )


class StreamOptions(msgspec.Struct):
    """How a stream is to be."""

    include_usage: bool = False


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    ignore_eos: bool = False


class CompletionBody(_Body, kw_only=True):
    """The fields of a completion that matter here; all others are ignored, as in vLLM."""

    prompt: str | list[str | _TokenId | list[_TokenId]] | None = None


class ContentPart(msgspec.Struct):
    """One part of a message; only text has tokens here."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """One turn of a chat."""

    role: str
    content: str | list[ContentPart] | None = None

    def text(self) -> str:
        """Return all of its text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(_Body, kw_only=True):
    """The fields of a chat completion that matter here."""

    messages: list[Message]
    max_completion_tokens: int | None = None


_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)


@dataclass(frozen=True, slots=True)
class Choice:
    """One reply to give: its prompt, and the tokens to say."""

    prompt: "array[int]"
    reply: Sequence[int]
    stops: bool


@dataclass(frozen=True, slots=True)
class Job:
    """A body understood: the choices asked for, and how to answer."""

    model: str
    adapter: str | None
    choices: Sequence[Choice]
    prompt_tokens: int
    cache_salt: str
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models a server has, and what it lets a request ask for."""

    model: str
    adapters: Sequence[str]
    max_model_len: int
    seed: int

    def completion_job(self, body: bytes) -> Job:
        """Read a completion's body; APIError where it cannot be served."""
        asked = _decode(_COMPLETION, body)
        adapter = self._adapter(asked.model)
        limit = _COMPLETION_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
        return self._job(asked, adapter, _prompts(asked.prompt), limit)

    def chat_job(self, body: bytes) -> Job:
        """Read a chat completion's body; APIError where it cannot be served."""
        asked = _decode(_CHAT, body)
        adapter = self._adapter(asked.model)
        if not asked.messages:
            raise APIError("messages must not be empty (parameter=messages)", param="messages")
        prompt = encode_chat([(message.role, message.text()) for message in asked.messages])
        limit = asked.max_completion_tokens
        return self._job(asked, adapter, [prompt], asked.max_tokens if limit is None else limit)

    def models(self) -> bytes:
        """Return the list of models, the base first."""
        cards = [self._card(self.model, None)]
        cards += [self._card(adapter, self.model) for adapter in self.adapters]
        return msgspec.json.encode({"object": "list", "data": cards})

    def _adapter(self, model: str | None) -> str | None:
        if model is None or model == self.model:
            return None
        if model in self.adapters:
            return model
        raise APIError(
            f"The model `{model}` does not exist. Valid aliases: {self.model}.",
            status=404,
            kind="NotFoundError",
            param="model",
        )

    def _job(
        self, asked: _Body, adapter: str | None, prompts: Sequence["array[int]"], limit: int | None
    ) -> Job:
        if asked.cache_salt == "":
            raise APIError(
                "Parameter 'cache_salt' must be a non-empty string if provided."
                " (parameter=cache_salt)",
                param="cache_salt",
            )
        choices = [
            self._choice(prompt, at, limit, ignore_eos=asked.ignore_eos)
            for prompt in prompts
            for at in range(asked.n)
        ]
        return Job(
            model=adapter or self.model,
            adapter=adapter,
            choices=choices,
            prompt_tokens=sum(map(len, prompts)),
            cache_salt=asked.cache_salt or "",
            stream=asked.stream,
            include_usage=asked.stream_options is not None and asked.stream_options.include_usage,
        )

    def _choice(
        self, prompt: "array[int]", at: int, limit: int | None, *, ignore_eos: bool
    ) -> Choice:
        """
        Return one reply to a prompt, as long as asked for and as there is room.

        Where no length is asked for, the reply ends by itself.
        """
        room = self.max_model_len - len(prompt)
        if room < 0:
            raise APIError(
                f"This model's maximum context length is {self.max_model_len} tokens. However,"
                f" your prompt contains {len(prompt)} input tokens, which exceeds this limit even"
                " without any output tokens. Please reduce the length of the input prompt."
                f" (parameter=input_tokens, value={len(prompt)})",
                param="input_tokens",
            )
        reply = Reply(prompt, self.seed + at)
        wanted = limit
        if wanted is None:
            wanted = room if ignore_eos else reply.natural_length
        length = min(wanted, room)
        if length < 1:
            raise APIError(
                f"max_tokens must be at least 1, got {length}."
                f" (parameter=max_tokens, value={length})",
                param="max_tokens",
            )
        by_itself = limit is None and not ignore_eos and length == wanted
        return Choice(prompt, reply.tokens(length), by_itself)

    def _card(self, name: str, parent: str | None) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": None if parent else self.max_model_len,
            "permission": [],
        }


_BodyT = TypeVar("_BodyT", bound=_Body)


def _decode(decoder: msgspec.json.Decoder[_BodyT], body: bytes) -> _BodyT:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        field = re.search(r"at `\$\.?([^`]*)`$|field `([^`]*)`", str(error))
        name = (field[1] or field[2]) if field else None
        raise APIError(
            f"1 validation error:\n  {error}",
            kind="Bad Request",
            param=f"body.{name}" if name else "body",
        ) from error
    except msgspec.DecodeError as error:
        raise _malformed(body) from error


def _malformed(body: bytes) -> APIError:
    """Return the refusal of what is no JSON; the standard library knows where it goes wrong."""
    at, reason = len(body), "Invalid JSON"
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        at, reason = error.pos, error.msg
    except ValueError:
        reason = "Invalid UTF-8"
    return APIError(
        f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode"
        f" error', 'input': '<dict of 0 items>', 'ctx': {{'error': '{reason}'}}}}",
        kind="Bad Request",
        param=f"body.{at}",
    )


def _prompts(prompt: str | list[str | int | list[int]] | None) -> Sequence["array[int]"]:
    """Return the tokens of each prompt: of a text, of tokens, or of a list of either."""
    if prompt is None or isinstance(prompt, str):
        return [_prompt(prompt)]
    if not prompt:
        raise APIError("You must pass at least one prompt")
    token_ids = [one for one in prompt if isinstance(one, int)]
    if len(token_ids) == len(prompt):
        return [array("I", token_ids)]
    if token_ids:
        raise APIError("prompt mixes tokens with prompts (parameter=prompt)", param="prompt")
    return [_prompt(one) for one in prompt if not isinstance(one, int)]


def _prompt(prompt: str | list[int] | None) -> "array[int]":
    if not prompt:
        raise APIError(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    return encode(prompt) if isinstance(prompt, str) else array("I", prompt)
