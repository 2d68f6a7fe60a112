"""
Responses: the OpenAI Responses API, whole or event by event.

One message of text is all that is ever said. Nothing is stored, so a response cannot be fetched
again or continued by its id. A reply cut by `max_output_tokens` makes the response incomplete.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from epp.simulator.api.completions import AnswerOptions, Timings
from epp.simulator.api.errors import APIError
from epp.simulator.api.jobs import ResponsesJob
from epp.simulator.inbox import Delivery, EndReason
from epp.simulator.tokens import spell

_UNSAID = dict.fromkeys(
    ("error", "previous_response_id", "prompt", "reasoning", "text", "user", "max_tool_calls")
)


class ResponsesAnswer:
    """The bytes of one response."""

    def __init__(self, job: ResponsesJob, options: AnswerOptions) -> None:
        self.id = f"resp_{job.request_id}"
        self.kv_transfer_params: dict[str, Any] | None = None
        """Goes into a whole answer as it is."""
        self._job = job
        self._options = options
        self._created = int(time.time())
        self._item_id = f"msg_{job.request_id}"
        self._numbers = itertools.count()
        self._text = bytearray()
        self._end_reason: EndReason | None = None

    def opening(self) -> Sequence[bytes]:
        """Return the events that come before the first token."""
        item = self._item("in_progress", [])
        return [
            self._event("response.created", response=self._response("in_progress")),
            self._event("response.in_progress", response=self._response("in_progress")),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place(), part=_part("")),
        ]

    def event(self, _index: int, token: int | None, end_reason: EndReason | None) -> bytes:
        """Return the event of one token; none for the end of a request that was taken out."""
        self._end_reason = end_reason
        if token is None:
            return b""
        self._text += spell(token)
        return self._event(
            "response.output_text.delta",
            **self._place(),
            delta=spell(token).decode(),
            logprobs=[],
        )

    def closing(self, timings: Sequence[Timings]) -> Sequence[bytes]:
        """Return the events that come after the last token."""
        text = self._text.decode()
        status = self._status(self._end_reason)
        item = self._item(status, [_part(text)])
        place = self._place()
        whole = self._finished(text, self._end_reason, timings)
        return [
            self._event("response.output_text.done", **place, text=text, logprobs=[]),
            self._event("response.content_part.done", **place, part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=whole),
        ]

    def broken(self, error: APIError) -> bytes:
        """Return the events that end a stream which cannot go on."""
        return error.event + b"data: [DONE]\n\n"

    def whole(self, deliveries: Sequence[Delivery], timings: Sequence[Timings]) -> bytes:
        """Return the body of an answer that is no stream."""
        text = b"".join(spell(token) for _, token, _ in deliveries if token is not None)
        return msgspec.json.encode(self._finished(text.decode(), deliveries[-1][2], timings))

    def _event(self, kind: str, **fields: object) -> bytes:
        fields = {"type": kind, "sequence_number": next(self._numbers)} | fields
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(fields))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
        }

    def _status(self, end_reason: EndReason | None) -> str:
        return "completed" if end_reason == "stop" else "incomplete"

    def _finished(
        self, text: str, end_reason: EndReason | None, timings: Sequence[Timings]
    ) -> dict[str, Any]:
        status = self._status(end_reason)
        cut = end_reason == "length"
        details = {"reason": "max_output_tokens"} if cut else None
        return self._response(status) | {
            "incomplete_details": details,
            "output": [self._item(status, [_part(text)])],
            "usage": self._usage(timings[0]),
        }

    def _response(self, status: str) -> dict[str, Any]:
        job = self._job
        return {
            "id": self.id,
            "created_at": self._created,
            "object": "response",
            "status": status,
            "model": job.model,
            "incomplete_details": None,
            "instructions": job.instructions,
            "metadata": job.metadata,
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0 if job.temperature is None else job.temperature,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if job.top_p is None else job.top_p,
            "background": False,
            "max_output_tokens": job.max_output_tokens,
            "service_tier": "auto",
            "truncation": "disabled",
            "usage": None,
            **_UNSAID,
        }

    def _usage(self, timings: Timings) -> dict[str, Any]:
        cached = timings.cached_tokens if self._options.prompt_details else 0
        return {
            "input_tokens": self._job.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": timings.generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._job.prompt_tokens + timings.generated,
        }


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
