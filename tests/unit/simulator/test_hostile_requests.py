"""Requests that no client should send: each gets its answer, and the next one is served."""

import asyncio
from typing import Any

import pytest

from epp.simulator.kv_events import KVEventsConfig
from epp.simulator.server import Simulator
from support.simulated import CHAT, COMPLETIONS, RESPONSES, TINY, ask_once, client, options

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

SERVED = options(
    request_id_headers=True,
    runtime_lora_updating=True,
    per_request_metrics=True,
    kv_events=KVEventsConfig(enable_kv_cache_events=True, endpoint="tcp://127.0.0.1:*"),
)
A_BLOCK = b'{"prompt": "%s", "max_tokens": 1}' % (b"x" * 100)
DIGITS = b"9" * 5000
DEEP = b"[" * 900 + b"]" * 900


async def answered(simulator: Simulator, *header_lines: bytes) -> tuple[bytes, bytes]:
    """Ask with headers as they are, bytes that no client would send; return head and body."""
    lines = [
        b"POST /v1/completions HTTP/1.1", b"Host: x", b"Connection: close",
        b"Content-Type: application/json", b"Content-Length: %d" % len(A_BLOCK), *header_lines,
    ]  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", simulator.port)
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + A_BLOCK)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"X-Session-ID: \xff\xed\xa0\x80", id="a session that is no UTF-8"),
        pytest.param(b"X-Request-Id: \xff\xed\xa0\x80", id="an id that is no UTF-8"),
        pytest.param(b"X-data-parallel-rank: \xff", id="a rank that is no UTF-8"),
        pytest.param(b"X-data-parallel-rank: " + DIGITS, id="a rank of thousands of digits"),
        pytest.param(b"endpoint-load-metrics-format: \xff", id="a format that is no UTF-8"),
        pytest.param(b"Content-Encoding: gzip", id="an encoding that the body has not"),
        pytest.param(b"Content-Encoding: \xff", id="an encoding that is no UTF-8"),
    ],
)
async def test_a_strange_header_harms_nobody(header: bytes):
    async with client(SERVED) as (simulator, ask):
        head, _ = await answered(simulator, header)
        later = await ask(COMPLETIONS, TINY)

        assert not simulator.dead.is_set()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert later.status == 200


async def test_what_is_no_utf8_in_an_id_is_told_as_question_marks():
    async with client(SERVED) as (simulator, _):
        head, body = await answered(simulator, b"X-Request-Id: a\xffb")

    assert b"X-Request-Id: a?b" in head
    assert b'"id":"cmpl-a?b"' in body


PATHS = {
    COMPLETIONS: b'"prompt": "x"',
    CHAT: b'"messages": [{"role": "user", "content": "x"}]',
    RESPONSES: b'"input": "x"',
    "/v1/embeddings": b'"input": "x"',
    "/tokenize": b'"prompt": "x"',
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(b'"model": 5, "x": ' + DIGITS, id="a long number behind a mistake"),
        pytest.param(b'"model": ' + DIGITS, id="a long number that is the mistake"),
        pytest.param(b'"model": 5, "x": ' + DEEP * 2, id="a mistake before what is no JSON"),
        pytest.param(b'"model": 5, "x": "\xff"', id="a mistake before what is no UTF-8"),
        pytest.param(b'"model": {"a": 1}, "model": 5', id="a name that is there twice"),
        pytest.param(b'"model": "\\ud800"', id="half a character"),
    ],
)
async def test_a_body_that_cannot_be_read_is_the_client_s_mistake(path: str, wrong: bytes):
    answer = await ask_once(path, b"{%b, %b}" % (wrong, PATHS[path]))

    assert (answer.status, answer.json["error"]["type"]) == (400, "Bad Request")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (COMPLETIONS, b"kv_transfer_params"),
        (CHAT, b"ec_transfer_params"),
        (RESPONSES, b"metadata"),
    ],
)
async def test_what_would_be_repeated_must_not_be_nested_too_deeply(path: str, field: bytes):
    answer = await ask_once(path, b'{%b, "%b": {"a": %b}}' % (PATHS[path], field, DEEP))

    assert (answer.status, answer.json["error"]["param"]) == (400, field.decode())


@pytest.mark.parametrize("deep", [DEEP, b"[" * 100_000, b'{"a":' * 5000], ids=len)
async def test_fault_switches_that_are_nested_too_deeply_are_refused(deep: bytes):
    answer = await ask_once("/faults", b'{"fail_share": %b}' % deep)

    assert answer.status == 400


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (COMPLETIONS, "max_tokens"),
        (COMPLETIONS, "min_tokens"),
        (COMPLETIONS, "n"),
        (CHAT, "max_completion_tokens"),
        (RESPONSES, "max_output_tokens"),
        ("/v1/embeddings", "dimensions"),
    ],
)
async def test_numbers_are_of_64_bits(path: str, field: str):
    answer = await ask_once(path, b'{%b, "%b": %d}' % (PATHS[path], field.encode(), 2**63))

    assert (answer.status, answer.json["error"]["param"]) == (400, f"body.{field}")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        pytest.param(COMPLETIONS, TINY | {"n": 1025}, "n", id="replies"),
        pytest.param(
            COMPLETIONS, TINY | {"prompt": ["x"] * 600, "n": 2}, "prompt", id="prompts by replies"
        ),
        pytest.param("/v1/embeddings", {"input": ["x"] * 1025}, "prompt", id="inputs"),
        pytest.param(
            "/v1/embeddings",
            {"input": ["x"] * 1024, "dimensions": 4096},
            "dimensions",
            id="inputs by dimensions",
        ),
    ],
)
async def test_the_work_of_one_request_is_bounded(path: str, body: dict[str, Any], param: str):
    answer = await ask_once(path, body)

    assert (answer.status, answer.json["error"]["param"]) == (400, param)
