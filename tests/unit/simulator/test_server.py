"""The server over real sockets, held against captures of a real vLLM 0.32 where there are some."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from epp.simulator.engine import EngineOptions
from epp.simulator.server import Simulator, SimulatorOptions, serve

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

CAPTURES = Path(__file__).with_name("captures")
OPTIONS = SimulatorOptions(
    model="tiny-llama",
    lora_modules=("a", "b"),
    engine=EngineOptions(max_model_len=2048),
    time_scale=0,
)
SLOW = SimulatorOptions(model="tiny-llama", time_scale=1000)
"""So slow that no token comes within a test, which ends in milliseconds all the same."""

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@asynccontextmanager
async def client(
    options: SimulatorOptions = OPTIONS,
) -> AsyncIterator[tuple[Simulator, Callable[..., Any]]]:
    """Serve, and give a function that asks: path, body and headers in, the whole answer out."""
    async with serve(options) as simulator, aiohttp.ClientSession(simulator.url) as session:

        async def ask(path: str, body: Any = None, method: str = "", **headers: str) -> Answer:
            method = method or ("GET" if body is None else "POST")
            data = (
                body if isinstance(body, bytes | io.BytesIO | None) else json.dumps(body).encode()
            )
            headers = {"content-type": "application/json"} | headers
            async with session.request(method, path, data=data, headers=headers) as response:
                return Answer(response.status, response.headers, await response.read())

        yield simulator, ask


async def ask_once(path: str, body: Any = None, **more: Any) -> Answer:
    async with client() as (_, ask):
        return await ask(path, body, **more)


def capture(name: str) -> Answer:
    """Read what the real server answered."""
    head, _, body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\n\n")
    return Answer(int(head.split()[1]), None, body.strip())


def events(body: bytes) -> list[Any]:
    """Return the events of a stream: what is in their JSON, and the last as it is."""
    chunks = body.strip().split(b"\n\n")
    data = [chunk.removeprefix(b"data: ") for chunk in chunks]
    return [json.loads(one) for one in data[:-1]] + data[-1:]


def shape(value: Any) -> Any:
    """Return the names and types in a document, whatever it says."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return type(value).__name__


async def test_a_completion_has_the_shape_of_the_real_one():
    answer = await ask_once(COMPLETIONS, {"model": "tiny-llama", "prompt": "x" * 52})

    assert shape(answer.json) == shape(capture("completion_nonstream").json)


async def test_a_chat_completion_has_the_shape_of_the_real_one():
    body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}

    answer = await ask_once(CHAT, body)

    real = capture("chat_nonstream").json
    real["usage"]["prompt_tokens_details"]["created_cache_tokens"] = None  # or 0: it says both
    assert shape(answer.json) == shape(real)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        pytest.param(
            COMPLETIONS, {"prompt": "x", "max_tokens": 3}, "completion_stream_nousage", id="plain"
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": "x", "max_tokens": 3, "stream_options": {"include_usage": True}},
            "completion_stream_usage",
            id="with usage",
        ),
        pytest.param(
            CHAT,
            {
                "model": "b",
                "messages": [{"role": "user", "content": "x"}],
                "max_tokens": 3,
                "stream_options": {"include_usage": True},
            },
            "chat_stream_usage",
            id="chat",
        ),
    ],
)
async def test_a_stream_has_the_events_of_the_real_one(path: str, body: Any, name: str):
    answer = await ask_once(path, body | {"stream": True})

    ours, real = events(answer.body), events(capture(name).body)
    for chunk in real[:-1]:
        chunk.pop("prompt_text", None)  # the real server's chunk of a role has two more nulls
        chunk.pop("prompt_token_ids", None)
        chunk.get("usage", {}).get("prompt_tokens_details", {}).pop("created_cache_tokens", None)
    assert shape(ours) == shape(real)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_a_stream_says_what_the_whole_answer_says():
    body = {"prompt": "tell me", "max_tokens": 12}
    async with client() as (_, ask):
        whole = await ask(COMPLETIONS, body)
        stream = await ask(COMPLETIONS, body | {"stream": True})

    texts = [chunk["choices"][0]["text"] for chunk in events(stream.body)[:-1]]

    assert (len(texts), "".join(texts)) == (12, whole.json["choices"][0]["text"])


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        pytest.param({"prompt": "x" * 40, "max_tokens": 5}, (10, 5), id="text"),
        pytest.param({"prompt": [1, 2, 3], "max_tokens": 5}, (3, 5), id="tokens"),
        pytest.param({"prompt": ["abcd", "abcdefgh"], "max_tokens": 5}, (3, 10), id="texts"),
        pytest.param({"prompt": [[1], [2, 3]], "max_tokens": 5}, (3, 10), id="lists of tokens"),
        pytest.param({"prompt": "abcd", "n": 3, "max_tokens": 5}, (1, 15), id="several replies"),
        pytest.param({"prompt": "abcd"}, (1, 16), id="sixteen tokens where none are asked for"),
        pytest.param({"prompt": [7] * 2000, "max_tokens": 100}, (2000, 48), id="cut, silently"),
    ],
)
async def test_prompts_of_all_forms_are_counted_and_answered(body: Any, usage: tuple[int, int]):
    answer = (await ask_once(COMPLETIONS, body)).json

    counts = answer["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == usage
    assert counts["total_tokens"] == sum(usage)
    assert sum(len(choice["text"]) // 4 for choice in answer["choices"]) == usage[1]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param({}, "stop", id="it stops by itself"),
        pytest.param({"max_tokens": 7}, "length", id="max_tokens"),
        pytest.param({"max_completion_tokens": 7}, "length", id="max_completion_tokens"),
        pytest.param({"ignore_eos": True}, "length", id="it may not stop"),
    ],
)
async def test_a_chat_ends_for_a_reason(limits: dict[str, Any], reason: str):
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}

    answer = await ask_once(CHAT, body | limits)

    assert answer.json["choices"][0]["finish_reason"] == reason


async def test_replies_of_several_choices_come_side_by_side_in_a_stream():
    answer = await ask_once(COMPLETIONS, {"prompt": "x", "n": 2, "max_tokens": 2, "stream": True})

    places = [chunk["choices"][0]["index"] for chunk in events(answer.body)[:-1]]

    assert places == [0, 1, 0, 1]


async def test_a_repeated_prompt_is_reported_as_cached():
    body = {"prompt": "x" * 400, "max_tokens": 1}
    async with client() as (_, ask):
        answers = [await ask(COMPLETIONS, body) for _ in range(2)]

    cached = [one.json["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]

    assert cached == [0, 96]


@pytest.mark.parametrize(
    ("asked", "model"),
    [({"model": "a"}, "a"), ({}, "tiny-llama")],
    ids=["an adapter", "the base, where none is named"],
)
async def test_a_reply_names_the_model_that_gave_it(asked: dict[str, str], model: str):
    answer = await ask_once(COMPLETIONS, asked | {"prompt": "x"})

    assert answer.json["model"] == model


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (COMPLETIONS, {"prompt": "x"}, "cmpl-mine"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "chatcmpl-mine"),
    ],
    ids=["completion", "chat"],
)
async def test_an_id_given_by_the_client_is_kept(path: str, body: Any, expected: str):
    answer = await ask_once(path, body, **{"X-Request-Id": "mine"})

    assert answer.json["id"] == expected


async def test_two_requests_under_way_may_have_one_id():
    body = {"prompt": "x", "max_tokens": 50}
    async with client() as (_, ask):
        answers = await asyncio.gather(
            *(ask(COMPLETIONS, body, **{"X-Request-Id": "mine"}) for _ in range(2))
        )

    assert [one.json["usage"]["completion_tokens"] for one in answers] == [50, 50]


TINY = {"model": "tiny-llama", "prompt": "x", "max_tokens": 1}


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        pytest.param("unknown_model", {"body": TINY | {"model": "nope"}}, id="unknown model"),
        pytest.param("missing_field", {"body": {"max_tokens": 4}}, id="no prompt"),
        pytest.param("empty_prompt", {"body": TINY | {"prompt": []}}, id="no prompts"),
        pytest.param("zero_max_tokens", {"body": TINY | {"max_tokens": 0}}, id="no tokens"),
        pytest.param("negative_max_tokens", {"body": TINY | {"max_tokens": -1}}, id="fewer"),
        pytest.param("prompt_too_long", {"body": TINY | {"prompt": [7] * 2100}}, id="too long"),
        pytest.param("prompt_exact_2048", {"body": TINY | {"prompt": [7] * 2048}}, id="no room"),
        pytest.param("cache_salt_empty", {"body": TINY | {"cache_salt": ""}}, id="empty salt"),
        pytest.param(
            "bad_json", {"body": b'{"model":"tiny-llama","prompt":'}, id="JSON that breaks off"
        ),
        pytest.param(
            "wrong_content_type", {"body": TINY, "content-type": "text/plain"}, id="content type"
        ),
        pytest.param("method_not_allowed", {"method": "GET"}, id="method"),
        pytest.param("not_found", {"path": "/v1/nothing"}, id="path"),
    ],
)
async def test_a_refusal_is_that_of_the_real_server(name: str, asked: dict[str, Any]):
    answer = await ask_once(**({"path": COMPLETIONS} | asked))

    real = capture(name)
    assert (answer.status, answer.json) == (real.status, real.json)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        pytest.param(
            COMPLETIONS,
            TINY | {"max_tokens": "abc"},
            ("Bad Request", "body.max_tokens"),
            id="a text where a number should be",
        ),
        pytest.param(
            CHAT, {"model": "a"}, ("Bad Request", "body.messages"), id="a chat without messages"
        ),
        pytest.param(
            CHAT, {"messages": []}, ("BadRequestError", "messages"), id="a chat of no messages"
        ),
        pytest.param(COMPLETIONS, [1], ("Bad Request", "body"), id="no object"),
        pytest.param(
            COMPLETIONS,
            TINY | {"prompt": [1, "x"]},
            ("BadRequestError", "prompt"),
            id="tokens mixed with texts",
        ),
        pytest.param(COMPLETIONS, b'{"prompt": "\xff"}', ("Bad Request", "body.15"), id="no UTF-8"),
    ],
)
async def test_other_refusals_name_what_was_wrong(path: str, body: Any, expected: tuple[str, str]):
    answer = await ask_once(path, body)

    error = answer.json["error"]
    assert (answer.status, error["type"], error["param"]) == (400, *expected)


async def test_a_wrong_method_is_told_the_right_one():
    answer = await ask_once("/health", method="DELETE")

    assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def test_a_body_of_several_megabytes_is_read():
    body = io.BytesIO(json.dumps({"prompt": "x" * 3_000_000}).encode())

    answer = await ask_once(COMPLETIONS, body)

    assert answer.json["error"]["param"] == "input_tokens"


async def test_models_are_listed_with_the_base_first():
    answer = await ask_once("/v1/models")

    listed = [(card["id"], card["parent"], card["max_model_len"]) for card in answer.json["data"]]

    assert listed == [
        ("tiny-llama", None, 2048),
        ("a", "tiny-llama", None),
        ("b", "tiny-llama", None),
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/health", b""), ("/ping", b""), ("/version", b'{"version":"0.32.0"}')],
    ids=["health", "ping", "version"],
)
async def test_the_server_says_that_it_is_well(path: str, body: bytes):
    status, _, said = await ask_once(path)

    assert (status, said) == (200, body)


async def test_the_metrics_page_counts_what_was_served():
    async with client() as (_, ask):
        await ask(COMPLETIONS, {"prompt": "x" * 40, "max_tokens": 5})
        page = await ask("/metrics")

    assert page.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert b'vllm:generation_tokens_total{engine="0",model_name="tiny-llama"} 5.0' in page.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_takes_its_request_out_of_the_engine(stream: bool):
    async with client(SLOW) as (simulator, ask):
        body = {"prompt": "x", "max_tokens": 100, "stream": stream}
        asking = asyncio.create_task(ask(COMPLETIONS, body))
        await _until(lambda: simulator.live.requests == 1)

        asking.cancel()
        await _until(lambda: simulator.live.requests == 0)

        assert simulator.engine.load == (0, 0, 0, 0.0)


async def test_a_server_that_stops_ends_what_is_under_way_with_an_error():
    async with aiohttp.ClientSession() as session:
        async with serve(SLOW) as simulator:
            url = simulator.url + COMPLETIONS
            whole = asyncio.create_task(session.post(url, json={"prompt": "x"}))
            stream = await session.post(url, json={"prompt": "x", "stream": True})
            await _until(lambda: simulator.live.requests == 2)
        failed = await whole
        last, done = events(await stream.read())

        assert failed.status == 500
        assert last == await failed.json()
        assert last["error"]["type"] == "InternalServerError"
        assert done == b"[DONE]"


async def test_servers_in_one_process_share_nothing():
    async with client() as (one, ask_one), client() as (other, ask_other):
        await ask_one(COMPLETIONS, {"prompt": "x", "max_tokens": 5})
        page = await ask_other("/metrics")

    assert one.port != other.port
    assert b'vllm:generation_tokens_total{engine="0",model_name="tiny-llama"} 0.0' in page.body


def test_a_context_that_exceeds_the_cache_is_refused():
    with pytest.raises(ValueError, match="hold 144 tokens"):
        SimulatorOptions(engine=EngineOptions(max_model_len=145, num_gpu_blocks=10))


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for what the other end of a socket brings about; the test's own time limit applies."""
    while not condition():  # noqa: ASYNC110  # it shows in the engine, which has no event for it
        await asyncio.sleep(0)
