"""The `openai` package against a served simulator: what a real client makes of it."""

import base64
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai import AsyncOpenAI

from epp.simulator.faults import Faults
from epp.simulator.server import SimulatorOptions, serve
from support.simulated import HELLO, OPTIONS, options

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

MODEL = "tiny-llama"


@asynccontextmanager
async def connected(served: SimulatorOptions = OPTIONS) -> AsyncIterator[AsyncOpenAI]:
    async with (
        serve(served) as simulator,
        AsyncOpenAI(base_url=f"{simulator.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_a_completion_is_read():
    async with connected() as client:
        answer = await client.completions.create(model=MODEL, prompt="x" * 40, max_tokens=5)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 5)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert (answer.choices[0].finish_reason, len(answer.choices[0].text)) == ("length", 20)


async def test_a_chat_with_two_replies_is_read():
    async with connected() as client:
        answer = await client.chat.completions.create(
            model="a", messages=HELLO, max_completion_tokens=4, n=2
        )

    said = [choice.message.content for choice in answer.choices]
    assert answer.model == "a"
    assert [len(one or "") for one in said] == [16, 16]
    assert said[0] != said[1]


async def test_a_chat_ends_by_itself():
    async with connected() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO)

    assert answer.choices[0].finish_reason == "stop"


async def test_a_stream_with_usage_is_read():
    async with connected() as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

    usage = chunks[-1].usage
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert usage is not None
    assert (usage.completion_tokens, len("".join(texts))) == (6, 24)
    assert ends == [None] * 6 + ["length"]


async def test_a_stream_of_a_completion_is_read():
    async with connected() as client:
        stream = await client.completions.create(model=MODEL, prompt="x", max_tokens=3, stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]

    assert [len(text) for text in texts] == [4, 4, 4]


@pytest.mark.parametrize(
    ("limit", "status", "reason"),
    [(None, "completed", None), (5, "incomplete", "max_output_tokens")],
    ids=["whole", "cut"],
)
async def test_a_response_is_read(limit: int | None, status: str, reason: str | None):
    async with connected() as client:
        answer = await client.responses.create(
            model=MODEL,
            instructions="be brief",
            input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
            max_output_tokens=limit,
        )

    usage = answer.usage
    details = answer.incomplete_details
    assert usage is not None
    assert (answer.status, details and details.reason) == (status, reason)
    assert len(answer.output_text) == usage.output_tokens * 4
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert limit is None or usage.output_tokens == limit


async def test_a_response_sees_instructions_and_input_as_a_chat_would():
    async with connected() as client:
        response = await client.responses.create(
            model=MODEL, instructions="be brief", input="hello", max_output_tokens=5
        )
        chat = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": "be brief"}, *HELLO],
            max_tokens=5,
        )

    assert response.output_text == chat.choices[0].message.content


async def test_a_stream_of_a_response_is_read():
    async with connected() as client:
        stream = await client.responses.create(
            model=MODEL, input="hello", max_output_tokens=3, stream=True
        )
        events = [event async for event in stream]

    kinds = [event.type for event in events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == deltas
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 3


async def test_the_stream_helper_puts_a_response_together():
    async with (
        connected() as client,
        client.responses.stream(model=MODEL, input="hello") as stream,
    ):
        final = await stream.get_final_response()

    assert final.status == "completed"
    assert final.output_text


async def test_embeddings_are_read():
    async with connected() as client:
        answer = await client.embeddings.create(model=MODEL, input=["a", "b"], dimensions=8)
        raw = await client.embeddings.create(
            model=MODEL, input="a", dimensions=8, encoding_format="base64"
        )

    encoded = str(raw.data[0].embedding)
    assert [len(one.embedding) for one in answer.data] == [8, 8]
    assert list(array("f", base64.b64decode(encoded))) == pytest.approx(answer.data[0].embedding)


async def test_models_are_listed():
    async with connected() as client:
        models = [model.id async for model in client.models.list()]

    assert models == ["tiny-llama", "a", "b"]


async def test_errors_have_their_classes():
    async with connected() as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="nope", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model=MODEL, prompt="x", max_tokens=0)

    assert (unknown.value.param, unknown.value.type) == ("model", "NotFoundError")
    assert (bad.value.param, bad.value.type) == ("max_tokens", "BadRequestError")


@pytest.mark.parametrize("status", [500, 503])
async def test_failures_are_errors_of_the_server(status: int):
    async with connected(options(faults=Faults(fail_share=1, fail_status=status))) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await client.completions.create(model=MODEL, prompt="x")

    assert failed.value.status_code == status


async def test_a_wrong_key_is_an_error_of_authentication():
    async with connected(options(api_key="secret")) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def read_into(said: list[object], stream: AsyncIterator[object]) -> None:
    async for one in stream:
        said.append(one)  # noqa: PERF401  # what came before an error stays


async def test_a_stream_that_is_cut_raises_after_what_came():
    said: list[object] = []
    async with connected(options(faults=Faults(die_at_step=4))) as client:
        stream = await client.completions.create(
            model=MODEL, prompt="x", max_tokens=99, stream=True
        )
        with pytest.raises(openai.APIError, match="EngineCore encountered an issue"):
            await read_into(said, stream)

    assert len(said) == 3


async def test_a_response_that_is_cut_raises_too():
    said: list[object] = []
    async with connected(options(faults=Faults(die_at_step=4))) as client:
        stream = await client.responses.create(model=MODEL, input="x", stream=True)
        with pytest.raises(openai.APIError):
            await read_into(said, stream)

    assert len(said) == 4 + 3
