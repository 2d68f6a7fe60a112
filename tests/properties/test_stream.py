"""
Streams that end anywhere, by any means: what a request took is given back exactly once.

The real director and plugins stand behind the stream; the wire is a script of messages that ends
by a half-close, a cancellation, a failing write, or a peer that never reads.
"""

import asyncio
import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epp.extproc import messages
from epp.extproc.conversation import Conversation
from epp.extproc.exchange import Exchange
from epp.extproc.messages import ProcessingRequest
from epp.extproc.stream import Stream
from epp.framework import TerminationCause
from epp.requestcontrol.director import RoutedRequest
from support import wire
from support.core import LIMIT, Core

CORE = Core([{"name": "a"}, {"name": "b"}])

SCRIPT = [
    wire.headers(),
    wire.body(b'{"model":"m",', end=False),
    wire.body(b'"prompt":"p"}'),
    wire.response_headers({"content-type": "text/event-stream"}),
    wire.response_body(b"data: 1\n\n"),
    wire.response_body(b'data: {"usage":{"prompt_tokens":1}}\n\n'),
    wire.response_body(b"", end=True),
]
ENDS = st.sampled_from(["close", "cancel", "write-fails", "never-reads"])


class Script:
    """A peer that says its lines and then ends as it is told."""

    def __init__(self, lines: list[ProcessingRequest], end: str, writes: int) -> None:
        self._lines = iter(lines)
        self._end = end
        self._writes = writes

    async def read(self) -> ProcessingRequest | None:
        line = next(self._lines, None)
        if line is None and self._end == "cancel":
            await asyncio.Event().wait()
        return line

    async def write(self, _: bytes) -> None:
        self._writes -= 1
        if self._writes >= 0:
            return
        if self._end == "write-fails":
            raise ConnectionResetError
        if self._end == "never-reads":
            await asyncio.Event().wait()


async def converse(core: Core, script: Script) -> list[TerminationCause]:
    """Run a stream to its end as the door does; return the causes its requests finished with."""
    director = core.app.director
    causes: list[TerminationCause] = []
    finish = director.finish

    class Watched:
        """The director, with an eye on `finish`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(director, name)

        def finish(self, routed: RoutedRequest, cause: TerminationCause) -> None:
            causes.append(cause)
            finish(routed, cause)

    watched: Any = Watched()
    stream = Stream(watched, Exchange(max_body_bytes=LIMIT))
    conversation = Conversation(stream, script.read, script.write)

    async def serve() -> None:
        first = await script.read()
        try:
            if first is not None:
                await conversation.run(first)
        finally:
            conversation.close()
            stream.finish(failed=False, stopping=False)

    task = asyncio.create_task(serve())
    for _ in range(100):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ConnectionResetError):
        await task
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return causes


@given(until=st.integers(0, len(SCRIPT)), end=ENDS, writes=st.integers(0, 6))
async def test_a_stream_that_ends_anywhere_leaves_nothing_behind(
    until: int, end: str, writes: int
) -> None:
    causes = await converse(CORE, Script(SCRIPT[:until], end, writes))

    assert CORE.in_flight == 0
    assert CORE.total("epp_requests_running") == 0
    assert len(causes) == (1 if until >= 3 else 0)


@given(
    lines=st.lists(
        st.one_of(
            st.sampled_from(SCRIPT),
            st.builds(wire.headers, mode=st.sampled_from([None, *range(5)]), end=st.booleans()),
            st.builds(wire.body, st.sampled_from([b"", b"{", wire.COMPLETION]), end=st.booleans()),
            st.just(wire.trailers()),
            st.just(wire.response_trailers()),
            st.just(wire.response_headers(status=503, end=True)),
        ),
        max_size=10,
    ),
    end=ENDS,
    writes=st.integers(0, 10),
)
async def test_any_messages_and_any_end_leave_nothing_behind(
    lines: list[ProcessingRequest], end: str, writes: int
) -> None:
    causes = await converse(CORE, Script(lines, end, writes))

    assert CORE.in_flight == 0
    assert CORE.total("epp_requests_running") == 0
    assert len(causes) <= 1


async def test_a_read_that_nobody_waits_for_any_more_is_cancelled() -> None:
    unconfigured = [wire.headers({"host": "x"}, mode=None), wire.body()]

    causes = await converse(CORE, Script(unconfigured, "cancel", 100))

    assert causes == [TerminationCause.RESPONSE_UNSEEN]


async def test_the_causes_tell_how_it_ended() -> None:
    async def cause(lines: list[ProcessingRequest], end: str = "close") -> TerminationCause:
        (found,) = await converse(CORE, Script(lines, end, 100))
        return found

    failed = [*SCRIPT[:3], wire.response_headers(status=502, end=True)]
    lean = [
        wire.headers(mode=messages.BUFFERED, response_mode=messages.NONE),
        wire.body(),
        wire.response_headers(),
    ]

    def blamed_on_the_model_server() -> float:
        return (
            CORE.metric("epp_requests_finished_total", model="m", cause="model-server-error") or 0
        )

    before = blamed_on_the_model_server()

    assert await cause(SCRIPT) is TerminationCause.COMPLETED
    assert await cause(SCRIPT[:5]) is TerminationCause.CLIENT_DISCONNECTED
    assert await cause(SCRIPT[:5], "cancel") is TerminationCause.CLIENT_DISCONNECTED
    assert await cause(SCRIPT[:3]) is TerminationCause.RESPONSE_UNSEEN
    assert await cause(lean) is TerminationCause.COMPLETED
    assert await cause(lean, "cancel") is TerminationCause.COMPLETED
    assert await cause(failed) is TerminationCause.COMPLETED
    assert blamed_on_the_model_server() == before + 1
