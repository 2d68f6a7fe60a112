"""Images in prompts: each counts by what it shows, and none is copied about."""

import json
import tracemalloc
from typing import Any

import pytest

from epp.framework import (
    PREFIX_MATCH,
    EndpointView,
    PluginContext,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer
from epp_plugins.parsers.openai import OpenAIParser

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
FIELDS = {CHAT: "messages", RESPONSES: "input"}
BLOCK_BYTES = 256
DATA = "data:image/png;base64," + "A" * 8_000_000


def body_of(path: str, *parts: dict[str, Any]) -> bytes:
    said = [{"role": "user", "content": list(parts)}]
    return json.dumps({"model": "m", FIELDS[path]: said}).encode()


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("https://x/a.png", "https://x/b.png", id="urls"),
        pytest.param(DATA + "A", DATA + "B", id="eight-megabytes-but-for-the-last-byte"),
        pytest.param(DATA, DATA[:1_000_000] + "B" + DATA[1_000_001:], id="behind-a-megabyte"),
    ],
)
def test_a_match_stops_at_another_image(path: str, one: str, other: str) -> None:
    """The text before it is as good as ever, and nothing behind it is."""
    before, behind = text("look " * 200), text("and tell " * 200)
    producer = ApproximatePrefixProducer(context=PluginContext("test"))
    pool = [endpoint()]
    asked = []
    for shown in (one, other, one):
        body = body_of(path, before, image(shown), behind)
        asked.append(request(OpenAIParser().parse_request(path, {}, body).prompt))

    first = producer.produce(asked[0], EndpointView(pool))
    asked[0].attributes.put(PREFIX_MATCH, first)
    result = ProfileResult([ScoredEndpoint(pool[0], 1.0)], pool, {})
    producer.pre_request(asked[0], SchedulingResult({"p": result}, "p"))
    differing, same = [producer.produce(one, EndpointView(pool)) for one in asked[1:]]

    assert same.matched_blocks == [same.total_blocks]
    assert differing.matched_blocks == [len("user\0" + "look " * 200) // BLOCK_BYTES]


@pytest.mark.parametrize("path", FIELDS)
def test_large_images_take_less_than_three_times_the_body(path: str) -> None:
    body = body_of(path, text("look"), image(DATA), image(DATA + "B"))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        OpenAIParser().parse_request(path, {}, body)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()

    assert len(body) + peak < 2.5 * len(body)
