"""Embeddings: unit vectors that depend on the prompt alone."""

import base64
import math
from array import array
from typing import Any

import pytest

from support.simulated import ask_once, client, options

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

PATH = "/v1/embeddings"


def vectors(answer: Any) -> list[list[float]]:
    return [one["embedding"] for one in answer.json["data"]]


async def test_each_prompt_gets_a_unit_vector_of_its_own_on_every_server():
    body = {"input": ["hello", "world", "hello"]}

    first = await ask_once(PATH, body)
    second = await ask_once(PATH, body, served=options(seed=5))

    hello, world, again = vectors(first)
    assert vectors(second) == [hello, world, again]
    assert hello == again != world
    assert [math.hypot(*one) for one in (hello, world)] == pytest.approx([1, 1])


async def test_base64_says_the_same_in_fewer_bytes():
    numbers = await ask_once(PATH, {"input": "x", "dimensions": 8})
    encoded = await ask_once(PATH, {"input": "x", "dimensions": 8, "encoding_format": "base64"})

    decoded = array("f", base64.b64decode(encoded.json["data"][0]["embedding"]))
    assert list(decoded) == pytest.approx(vectors(numbers)[0])
    assert len(decoded) == 8


@pytest.mark.parametrize(
    ("given", "tokens", "count"),
    [("abcdefgh", 2, 1), ([1, 2, 3], 3, 1), (["abcd", "abcd"], 2, 2), ([[1], [2, 3]], 3, 2)],
    ids=["text", "tokens", "texts", "lists of tokens"],
)
async def test_inputs_of_all_forms_are_counted(given: Any, tokens: int, count: int):
    answer = await ask_once(PATH, {"input": given}, **{"X-Request-Id": "mine"})

    assert (len(answer.json["data"]), answer.json["id"]) == (count, "embd-mine")
    assert answer.json["usage"] == {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


async def test_embeddings_are_work_for_the_engine():
    async with client() as (_, ask):
        await ask(PATH, {"input": [7] * 40})
        page = (await ask("/metrics")).body.decode()

    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny-llama"} 40.0' in page
