"""
Completions and chats as vLLM 0.32 writes them, whole or chunk by chunk.

What is constant in the chunks of a stream is written once a request, so that a chunk costs no more
than joining three pieces; replies are made of words that JSON need not escape.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import msgspec

from epp.simulator.api.errors import APIError
from epp.simulator.api.jobs import Job
from epp.simulator.inbox import Delivery, EndReason
from epp.simulator.tokens import BYTES_PER_TOKEN, spell

_DONE = b"data: [DONE]\n\n"
_UNSAID_MESSAGE = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """What a server's flags decide about its answers."""

    fingerprint: str
    prompt_details: bool = False
    """Whether usage says how many tokens of the prompt were cached."""
    metrics: bool = False
    """Whether whole answers say how long their request took; streams never do."""


class Timings(Protocol):
    """When what happened to a request, in seconds; None what has not happened."""

    @property
    def arrived(self) -> float: ...  # noqa: D102  # the protocol says what they are

    @property
    def admitted(self) -> float | None: ...  # noqa: D102

    @property
    def first_token(self) -> float | None: ...  # noqa: D102

    @property
    def last_token(self) -> float | None: ...  # noqa: D102

    @property
    def generated(self) -> int: ...  # noqa: D102

    @property
    def cached_tokens(self) -> int: ...  # noqa: D102


class Answer:
    """The bytes of one answer to a completion: whole, or chunk by chunk."""

    object_whole = "text_completion"
    object_chunk = "text_completion"
    id_prefix = "cmpl-"
    _before_text = '"text":"'
    _after_text = '","logprobs":null,'
    _tail = ',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
    _created_cache_tokens: ClassVar[Mapping[str, int]] = MappingProxyType({})

    def __init__(self, job: Job, options: AnswerOptions) -> None:
        self.id = self.id_prefix + job.request_id
        self.kv_transfer_params: dict[str, Any] | None = None
        """Goes into a whole answer as it is."""
        self._job = job
        self._options = options
        self._created = int(time.time())
        self._chunk_head = b"data: " + _json(self._head(self.object_chunk))[:-1] + b',"choices":['
        self._before = [
            self._chunk_head + f'{{"index":{index},{self._before_text}'.encode()
            for index in range(len(job.choices))
        ]
        self._after = f'{self._after_text}"finish_reason":null{self._tail}}}\n\n'.encode()
        self._generated = [0] * len(job.choices)
        self._plain = not (
            job.continuous_usage
            or job.return_token_ids
            or any(choice.hidden_bytes for choice in job.choices)
        )

    def opening(self) -> Sequence[bytes]:
        """Return the events that come before the first token."""
        return ()

    def event(self, index: int, token: int | None, end_reason: EndReason | None) -> bytes:
        """Return the event of one token."""
        if self._plain and token is not None and end_reason is None:
            self._generated[index] += 1
            return self._before[index] + spell(token) + self._after
        return self._particular_event(index, token, end_reason)

    def closing(self, timings: Sequence[Timings]) -> Sequence[bytes]:
        """Return the events that come after the last token."""
        if not self._job.include_usage:
            return (_DONE,)
        usage = self._usage(sum(self._generated))
        if self._options.prompt_details:
            cached = {"cached_tokens": self._cached_tokens(timings)}
            usage["prompt_tokens_details"] = {**cached, **self._created_cache_tokens}
        more = _json({"usage": usage, "system_fingerprint": self._options.fingerprint})
        return (self._chunk_head + b"]," + more[1:] + b"\n\n", _DONE)

    def broken(self, error: APIError) -> bytes:
        """Return the events that end a stream which cannot go on."""
        return error.event + _DONE

    def whole(self, deliveries: Sequence[Delivery], timings: Sequence[Timings]) -> bytes:
        """Return the body of an answer that is no stream."""
        replies: list[list[int]] = [[] for _ in self._job.choices]
        reasons: list[EndReason | None] = [None] * len(replies)
        for index, token, end_reason in deliveries:
            if token is not None:
                replies[index].append(token)
            reasons[index] = end_reason
        choices = [
            self._whole_choice(index, reply, reason)
            for index, (reply, reason) in enumerate(zip(replies, reasons, strict=True))
        ]
        return _json(
            {
                **self._head(self.object_whole),
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": self._options.fingerprint,
                "usage": self._whole_usage(sum(map(len, replies)), timings),
                **self._prompt_said(),
                "kv_transfer_params": self.kv_transfer_params,
                "ec_transfer_params": self._job.ec_transfer_params,
                "metrics": _metrics(timings[0]) if self._options.metrics else None,
            }
        )

    def _particular_event(
        self, index: int, token: int | None, end_reason: EndReason | None
    ) -> bytes:
        """Return the event of a token that ends a reply, or of a request that asks for more."""
        job = self._job
        at = self._generated[index]
        text = b""
        if token is not None:
            self._generated[index] = at + 1
            text = spell(token)[: max(0, job.choices[index].shown_bytes - at * BYTES_PER_TOKEN)]
        tail = b'%b"finish_reason":%b%b' % (
            self._after_text.encode(),
            _json(end_reason),
            self._particular_tail(index, token, end_reason, first=at == 0).encode(),
        )
        if job.continuous_usage:
            prompt_tokens = len(job.choices[index].prompt)
            tail += b',"usage":' + _json(_counts(prompt_tokens, self._generated[index]))
        if end_reason is not None and not job.include_usage:
            tail += b',"system_fingerprint":' + _json(self._options.fingerprint)
        return self._before[index] + text + tail + b"}\n\n"

    def _particular_tail(
        self, index: int, token: int | None, end_reason: EndReason | None, *, first: bool
    ) -> str:
        return (
            f',"stop_reason":{_text(self._stop_reason(index, end_reason))}'
            f',"prompt_token_ids":{_text(self._asked_prompt(index) if first else None)}'
            f',"token_ids":{_text(self._asked_ids([token]))}}}]'
        )

    def _asked_ids(self, tokens: Sequence[int | None]) -> Sequence[int | None] | None:
        """Return tokens where they were asked for."""
        return [one for one in tokens if one is not None] if self._job.return_token_ids else None

    def _asked_prompt(self, index: int) -> Sequence[int] | None:
        """Return the tokens of a choice's prompt, likewise."""
        return self._job.choices[index].prompt.tolist() if self._job.return_token_ids else None

    def _stop_reason(self, index: int, end_reason: EndReason | None) -> str | int | None:
        return self._job.choices[index].stop_reason if end_reason == "stop" else None

    def _whole_choice(
        self, index: int, reply: Sequence[int], reason: EndReason | None
    ) -> dict[str, Any]:
        choice = self._job.choices[index]
        text = b"".join(map(spell, reply))[: choice.shown_bytes].decode()
        return {
            "index": index,
            **self._said(text),
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": self._stop_reason(index, reason),
            "token_ids": self._asked_ids(reply),
            **self._said_of_prompt(index),
            "routed_experts": None,
        }

    def _head(self, object_name: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self._created,
            "model": self._job.model,
        }

    def _said(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _said_of_prompt(self, index: int) -> dict[str, Any]:
        return {"prompt_logprobs": None, "prompt_token_ids": self._asked_prompt(index)}

    def _prompt_said(self) -> dict[str, Any]:
        """Return what a whole answer says about the prompt as such."""
        return {}

    def _cached_tokens(self, timings: Sequence[Timings]) -> int:
        """How many tokens of the prompts were cached; each prompt counts with its first reply."""
        return sum(one.cached_tokens for one in timings[:: self._job.choices_per_prompt])

    def _usage(self, generated: int) -> dict[str, Any]:
        return _counts(self._job.prompt_tokens, generated)

    def _whole_usage(self, generated: int, timings: Sequence[Timings]) -> dict[str, Any]:
        details = None
        if self._options.prompt_details:
            details = {
                "cached_tokens": self._cached_tokens(timings),
                "created_cache_tokens": self._created_cache_tokens.get("created_cache_tokens"),
                "multimodal_tokens": None,
            }
        return self._usage(generated) | {
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }


class ChatAnswer(Answer):
    """The bytes of one answer to a chat completion."""

    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"
    id_prefix = "chatcmpl-"
    _before_text = '"delta":{"content":"'
    _after_text = '"},"logprobs":null,'
    _tail = ',"token_ids":null}]'
    _created_cache_tokens = MappingProxyType({"created_cache_tokens": 0})

    def opening(self) -> Sequence[bytes]:
        """Return the chunks that give each choice its role."""
        end = f'"prompt_token_ids":{_text(self._asked_prompt(0))},"prompt_text":null'
        if self._job.continuous_usage:
            end += f',"usage":{_text(self._usage(0))}'
        return [
            self._chunk_head
            + f'{{"index":{index},'
            '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
            f"{end}}}\n\n".encode()
            for index in range(len(self._job.choices))
        ]

    def _particular_tail(
        self, index: int, token: int | None, end_reason: EndReason | None, *, first: bool
    ) -> str:
        stop_reason = ""
        if end_reason is not None:
            stop_reason = f',"stop_reason":{_text(self._stop_reason(index, end_reason))}'
        return f'{stop_reason},"token_ids":{_text(self._asked_ids([token]))}}}]'

    def _said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text} | _UNSAID_MESSAGE}

    def _said_of_prompt(self, _index: int) -> dict[str, Any]:
        return {}

    def _prompt_said(self) -> dict[str, Any]:
        return {
            "prompt_logprobs": None,
            "prompt_token_ids": self._asked_prompt(0),
            "prompt_text": None,
        }


def _counts(prompt_tokens: int, generated: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + generated,
        "completion_tokens": generated,
    }


def _metrics(timings: Timings) -> dict[str, float | None] | None:
    """Return how long a request took; the first token's time counts from its seat, as in vLLM."""
    seated, first, last = timings.admitted, timings.first_token, timings.last_token
    if seated is None or first is None or last is None:
        return None
    between = (last - first) / (timings.generated - 1) if timings.generated > 1 else None
    taken = last - seated
    return {
        "time_to_first_token_ms": (first - seated) * 1e3,
        "generation_time_ms": (last - first) * 1e3,
        "queue_time_ms": (seated - timings.arrived) * 1e3,
        "mean_itl_ms": None if between is None else between * 1e3,
        "tokens_per_second": timings.generated / taken if taken > 0 else None,
        "speculative_decoding": None,
    }


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _text(value: object) -> str:
    return _json(value).decode()
