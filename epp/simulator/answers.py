"""
Answers: completions as vLLM 0.32 writes them, whole or chunk by chunk.

What is constant in the chunks of a stream is written once a request, so that a chunk costs no more
than joining three pieces; replies are made of words that JSON need not escape.
"""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from epp.simulator.dialect import VERSION, Job
from epp.simulator.engine import FinishReason
from epp.simulator.tokens import spell

DONE = b"data: [DONE]\n\n"

_FINGERPRINT = f"vllm-{VERSION}-51a10a7e"
_CACHED = {"cached_tokens": 0, "created_cache_tokens": None, "multimodal_tokens": None}
_UNSAID_MESSAGE = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
_WHOLE_TAIL = {
    "service_tier": None,
    "system_fingerprint": _FINGERPRINT,
    "usage": None,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "metrics": None,
}


class Answer:
    """The bytes of one answer to a completion: whole, or chunk by chunk."""

    object_whole = "text_completion"
    object_chunk = "text_completion"
    id_prefix = "cmpl-"
    _before_text = '"text":"'
    _after_text = '","logprobs":null,'
    _tail = ',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
    _last_tail = _tail
    _unsaid: Mapping[str, object] = MappingProxyType({})

    def __init__(self, job: Job, request_id: str) -> None:
        self.id = self.id_prefix + request_id
        self._job = job
        self._created = int(time.time())
        self._chunk_head = b"data: " + _json(self._head(self.object_chunk))[:-1] + b',"choices":['
        self._before = [
            self._chunk_head + f'{{"index":{index},{self._before_text}'.encode()
            for index in range(len(job.choices))
        ]
        self._after = f'{self._after_text}"finish_reason":null{self._tail}}}\n\n'.encode()

    def opening(self) -> Sequence[bytes]:
        """Return the chunks that come before the first token."""
        return ()

    def chunk(self, index: int, token: int, finish_reason: FinishReason | None) -> bytes:
        """Return the chunk of one token."""
        if finish_reason is None:
            return self._before[index] + spell(token) + self._after
        end = f'{self._after_text}"finish_reason":"{finish_reason}"{self._last_tail}'
        if not self._job.include_usage:
            end += f',"system_fingerprint":"{_FINGERPRINT}"'
        return self._before[index] + spell(token) + end.encode() + b"}\n\n"

    def usage_chunk(self, generated_tokens: int, cached_tokens: int) -> bytes:
        """Return the chunk that closes a stream whose usage was asked for."""
        usage = self._usage(generated_tokens, {"cached_tokens": cached_tokens})
        more = _json({"usage": usage, "system_fingerprint": _FINGERPRINT})
        return self._chunk_head + b"]," + more[1:] + b"\n\n"

    def whole(
        self, tokens: Sequence[tuple[int, int, FinishReason | None]], cached_tokens: int
    ) -> bytes:
        """Return the body of an answer that is no stream."""
        texts = [bytearray() for _ in self._job.choices]
        reasons: list[FinishReason | None] = [None] * len(texts)
        for index, token, finish_reason in tokens:
            texts[index] += spell(token)
            reasons[index] = finish_reason
        choices = [
            {
                "index": index,
                **self._said(text.decode()),
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        usage = self._usage(len(tokens), _CACHED | {"cached_tokens": cached_tokens})
        return _json(
            {
                **self._head(self.object_whole),
                "choices": choices,
                **_WHOLE_TAIL,
                **self._unsaid,
                "usage": usage | {"completion_tokens_details": None},
            }
        )

    def _head(self, object_name: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self._created,
            "model": self._job.model,
        }

    def _said(self, text: str) -> dict[str, Any]:
        return {"text": text, "prompt_logprobs": None, "prompt_token_ids": None}

    def _usage(self, generated: int, details: dict[str, int | None]) -> dict[str, object]:
        return {
            "prompt_tokens": self._job.prompt_tokens,
            "total_tokens": self._job.prompt_tokens + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": details,
        }


class ChatAnswer(Answer):
    """The bytes of one answer to a chat completion."""

    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"
    id_prefix = "chatcmpl-"
    _before_text = '"delta":{"content":"'
    _after_text = '"},"logprobs":null,'
    _tail = ',"token_ids":null}]'
    _last_tail = ',"stop_reason":null,"token_ids":null}]'
    _unsaid = MappingProxyType(
        dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
    )

    def opening(self) -> Sequence[bytes]:
        """Return the chunks that give each choice its role."""
        return [
            self._chunk_head
            + f'{{"index":{index},'
            '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            "}\n\n".encode()
            for index in range(len(self._job.choices))
        ]

    def _said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text} | _UNSAID_MESSAGE}


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
