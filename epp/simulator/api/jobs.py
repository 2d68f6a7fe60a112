"""
Jobs: bodies understood, or refused in vLLM's words.

Unknown fields are ignored and a reply that would exceed the context is cut, both without a word,
as the real server does. What one body asks for is bounded more tightly than there, where choices
are a matter of memory: here they all enter the engine at once, and meanwhile nobody else is served.
"""

import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epp.simulator.api import bodies
from epp.simulator.api.bodies import Body, ChatBody, CompletionBody, GenerationBody
from epp.simulator.api.catalog import Catalog
from epp.simulator.api.decoding import check_echo, decode, decoder_of
from epp.simulator.api.errors import APIError, of_parameter
from epp.simulator.api.headers import RequestHeaders
from epp.simulator.api.replies import Choice, Limits, Prompt, choose, limits_of
from epp.simulator.engine import Adapter
from epp.simulator.tokens import encode, encode_chat

_COMPLETION_MAX_TOKENS = 16
_MAX_LOGPROBS = 20
_MAX_CHOICES = 1024
"""How many replies one request may ask for: vLLM takes 16,384 unless told otherwise."""
_MAX_DIMENSIONS = 4096
_MAX_VALUES = 2**18
"""How many numbers the vectors of one request may have together: a fraction of a second's work."""
_DIMENSIONS = 64
_LONGEST_SALT = 1024

_COMPLETION = decoder_of(CompletionBody)
_CHAT = decoder_of(ChatBody)
_RESPONSES = decoder_of(bodies.ResponsesBody)
_EMBEDDING = decoder_of(bodies.EmbeddingBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A body understood: the choices asked for, and how to answer."""

    request_id: str
    model: str
    adapter: Adapter | None
    choices: Sequence[Choice]
    choices_per_prompt: int = 1
    max_tokens: int | None = None
    priority: int = 0
    session_id: str | None = None
    cache_salt: str = ""
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompts have, each counted once however many replies it gets."""
        return sum(len(choice.prompt) for choice in self.choices[:: self.choices_per_prompt])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesJob(Job):
    """A response asked for, with what its answer repeats."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingJob(Job):
    """Embeddings asked for: one for each prompt."""

    base64: bool = False
    dimensions: int = _DIMENSIONS


@dataclass(frozen=True, slots=True)
class JobReader:
    """Reads the bodies of one server's requests; APIError where one cannot be served."""

    catalog: Catalog
    seed: int
    force_usage: bool = False

    def completion(self, body: bytes, headers: RequestHeaders) -> Job:
        """Read a completion."""
        asked = decode(_COMPLETION, body)
        common = self._common(asked, headers)
        if asked.logprobs is not None and asked.logprobs > _MAX_LOGPROBS:
            raise _too_many_logprobs("logprobs", asked.logprobs)
        limit = _COMPLETION_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
        return self._generation(asked, common, prompts(asked.prompt), limit)

    def chat(self, body: bytes, headers: RequestHeaders) -> Job:
        """Read a chat completion."""
        asked = decode(_CHAT, body)
        common = self._common(asked, headers)
        if not asked.messages:
            raise APIError("messages must not be empty (parameter=messages)", param="messages")
        if asked.top_logprobs is not None and asked.top_logprobs > _MAX_LOGPROBS:
            raise _too_many_logprobs("top_logprobs", asked.top_logprobs)
        limit = asked.max_completion_tokens
        limit = asked.max_tokens if limit is None else limit
        return self._generation(
            asked, common, [Prompt(chat_prompt(asked.messages), of_text=True)], limit
        )

    def response(self, body: bytes, headers: RequestHeaders) -> ResponsesJob:
        """Read a response."""
        asked = decode(_RESPONSES, body)
        common = self._common(asked, headers)
        check_echo(asked.metadata, "metadata")
        turns = [("system", asked.instructions)] if asked.instructions else []
        if isinstance(asked.input, str):
            turns.append(("user", asked.input))
        else:
            turns += [(item.role, bodies.text_of(item.content)) for item in asked.input]
        limits = Limits(max_tokens=asked.max_output_tokens)
        return ResponsesJob(
            **common,
            choices=[self._choice(Prompt(encode_chat(turns), of_text=True), limits, 0)],
            max_tokens=asked.max_output_tokens,
            stream=bool(asked.stream),
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            metadata=asked.metadata,
        )

    def embedding(self, body: bytes, headers: RequestHeaders) -> EmbeddingJob:
        """Read an embedding; each prompt is computed, and its one token is not shown."""
        asked = decode(_EMBEDDING, body)
        common = self._common(asked, headers)
        dimensions = _DIMENSIONS if asked.dimensions is None else asked.dimensions
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise of_parameter(
                f"dimensions must be between 1 and {_MAX_DIMENSIONS}.", "dimensions", dimensions
            )
        given = prompts(asked.input)
        _check_count(len(given), 1)
        if len(given) * dimensions > _MAX_VALUES:
            most = f"at most {_MAX_VALUES // len(given)} for {len(given)} inputs"
            raise of_parameter(f"dimensions must be {most}.", "dimensions", dimensions)
        limits = Limits(max_tokens=1)
        return EmbeddingJob(
            **common,
            choices=[self._choice(prompt, limits, 0) for prompt in given],
            max_tokens=1,
            base64=asked.encoding_format == "base64",
            dimensions=dimensions,
        )

    def _common(self, asked: Body, headers: RequestHeaders) -> dict[str, Any]:
        """Read what all requests have; the model is looked up before anything is refused."""
        adapter = self.catalog.adapter(asked.model)
        if asked.temperature is not None and asked.temperature < 0:
            raise of_parameter(
                f"temperature must be non-negative, got {asked.temperature}.",
                "temperature",
                asked.temperature,
            )
        _check_salt(asked.cache_salt)
        priority = asked.priority if headers.priority is None else headers.priority
        return {
            "request_id": headers.request_id or asked.request_id or uuid.uuid4().hex[:16],
            "model": self.catalog.model if adapter is None else adapter.name,
            "adapter": adapter,
            "priority": priority or 0,
            "session_id": headers.session_id or asked.session_id,
            "cache_salt": asked.cache_salt or "",
        }

    def _generation(
        self,
        asked: GenerationBody,
        common: dict[str, Any],
        given: Sequence[Prompt],
        max_tokens: int | None,
    ) -> Job:
        n = 1 if asked.n is None else asked.n
        _check_count(len(given), n)
        check_echo(asked.kv_transfer_params, "kv_transfer_params")
        check_echo(asked.ec_transfer_params, "ec_transfer_params")
        limits = limits_of(asked, max_tokens)
        options = asked.stream_options or bodies.StreamOptions()
        return Job(
            **common,
            choices=[self._choice(prompt, limits, at) for prompt in given for at in range(n)],
            choices_per_prompt=n,
            max_tokens=max_tokens,
            stream=bool(asked.stream),
            include_usage=self.force_usage or options.include_usage,
            continuous_usage=self.force_usage
            or (options.include_usage and options.continuous_usage_stats),
            return_token_ids=bool(asked.return_token_ids),
            kv_transfer_params=asked.kv_transfer_params,
            ec_transfer_params=asked.ec_transfer_params,
        )

    def _choice(self, prompt: Prompt, limits: Limits, at: int) -> Choice:
        return choose(prompt, limits, max_model_len=self.catalog.max_model_len, seed=self.seed + at)


def prompts(prompt: bodies.Prompt | None) -> Sequence[Prompt]:
    """Return the tokens of each prompt: of a text, of tokens, or of a list of either."""
    if prompt is None or isinstance(prompt, str):
        return [_prompt(prompt)]
    if not prompt:
        raise APIError("You must pass at least one prompt")
    token_ids = [one for one in prompt if isinstance(one, int)]
    if len(token_ids) == len(prompt):
        return [Prompt(array("I", token_ids))]
    if token_ids:
        raise APIError("prompt mixes tokens with prompts (parameter=prompt)", param="prompt")
    return [_prompt(one) for one in prompt if not isinstance(one, int)]


def chat_prompt(messages: Sequence[bodies.Message]) -> "array[int]":
    """Return the tokens of a chat, up to where the assistant's next turn begins."""
    return encode_chat([(message.role, message.text()) for message in messages])


def _prompt(prompt: str | list[int] | None) -> Prompt:
    if not prompt:
        raise APIError(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    if isinstance(prompt, str):
        return Prompt(encode(prompt), of_text=True)
    return Prompt(array("I", prompt))


def _check_count(num_prompts: int, n: int) -> None:
    """Refuse more replies than one request may have."""
    if n < 1:
        raise of_parameter(f"n must be at least 1, got {n}.", "n", n)
    if n > _MAX_CHOICES:
        raise of_parameter(f"n must be at most {_MAX_CHOICES}, got {n}.", "n", n)
    if num_prompts * n > _MAX_CHOICES:
        asked = f"{num_prompts} prompts with n={n}"
        raise APIError(
            f"A request may ask for at most {_MAX_CHOICES} replies, got {asked}.", param="prompt"
        )


def _check_salt(salt: str | None) -> None:
    if salt is None or 1 <= len(salt) <= _LONGEST_SALT:
        return
    wanted = f"of at most {_LONGEST_SALT} characters" if salt else "if provided"
    raise APIError(
        f"Parameter 'cache_salt' must be a non-empty string {wanted}. (parameter=cache_salt)",
        param="cache_salt",
    )


def _too_many_logprobs(name: str, value: int) -> APIError:
    return of_parameter(
        f"Requested sample logprobs of {value}, which is greater than max allowed: {_MAX_LOGPROBS}",
        name,
        value,
    )
