"""What the OpenAI parser accepts, what it refuses, and how it says so."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import BadRequest, ParsedRequest
from epp_plugins.parsers.openai import OpenAIParser

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


def parse(path: str, **fields: Any) -> ParsedRequest:
    return OpenAIParser().parse_request(path, {}, json.dumps(fields).encode())


@pytest.mark.parametrize(
    "path",
    [
        CHAT,
        f"{CHAT}/",
        f"{CHAT}?x=1",
        f"{CHAT}/?x=/v1/completions",
        f"/team-a{CHAT}",
        "v1/chat/completions",
        f"{CHAT}/render",
    ],
)
def test_the_api_is_known_by_the_end_of_the_path(path: str) -> None:
    with pytest.raises(BadRequest, match="messages"):
        parse(path, model="m", prompt="hello")


@pytest.mark.parametrize("path", ["/other", "/xv1/completions", "/v1/completionsx", "/", ""])
def test_another_path_is_read_for_its_model_alone(path: str) -> None:
    parsed = parse(path, model="m", prompt=5, messages="x")

    assert ParsedRequest(model="m") == parsed


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score"])
def test_pooling_apis_have_no_prompt(path: str) -> None:
    parsed = parse(path, model="m", query="q", documents=["a", "b"])

    assert ParsedRequest(model="m") == parsed


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        pytest.param(TEXT, {"prompt": "x"}, "", id="a-rewrite-may-still-fill-it-in"),
        pytest.param("/v1/images/generations", {"prompt": "x"}, None, id="images-may-do-without"),
        pytest.param("/v1/conversations", {}, None, id="conversations-have-none"),
    ],
)
def test_what_an_absent_model_means(path: str, fields: Any, expected: str | None) -> None:
    parsed = parse(path, **fields)

    assert expected == parsed.model


def test_a_request_with_everything() -> None:
    parsed = parse(
        TEXT, model="m", prompt="hello", stream=True, max_tokens=7, cache_salt="s", other={"a": 1}
    )

    assert ParsedRequest("m", b"hello", cache_salt="s", stream=True, max_output_tokens=7) == parsed


def test_null_is_as_good_as_absent_where_a_field_is_optional() -> None:
    parsed = parse(TEXT, model="m", prompt="x", stream=None, max_tokens=None, cache_salt=None)

    assert ParsedRequest("m", b"x") == parsed


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": MESSAGES, "prompt": 5, "input": {}}),
        (CHAT, {"messages": MESSAGES, "tools": "x", "chat_template": 123, "documents": "x"}),
        (CHAT, {"messages": [{"role": 5, "content": {"x": 1}, "tool_calls": "x", "more": []}]}),
        (TEXT, {"prompt": "x", "messages": 5, "max_completion_tokens": "x"}),
        ("/v1/embeddings", {"input": "x", "max_tokens": "x"}),
    ],
)
def test_what_routing_does_not_need_is_the_model_servers_business(path: str, fields: Any) -> None:
    parsed = parse(path, model="m", **fields)

    assert parsed.model == "m"


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (TEXT, {"prompt": "x", "model": None}, "model: expected `str`, got `null`"),
        (TEXT, {"prompt": "x", "model": {}}, "model: expected `str`, got `object`"),
        (TEXT, {"prompt": "x", "model": ["a"]}, "model: expected `str`, got `array`"),
        (TEXT, {"prompt": "x", "stream": {}}, "stream must be neither an object nor an array"),
        (TEXT, {"prompt": "x", "stream": [True]}, "stream must be neither an object nor an array"),
        (TEXT, {"prompt": "x", "max_tokens": {"x": 1}}, "max_tokens must be neither an object nor"),
        (CHAT, {"messages": MESSAGES, "max_tokens": [9]}, "max_tokens must be neither"),
        (
            CHAT,
            {"messages": MESSAGES, "max_completion_tokens": {}},
            "max_completion_tokens must be",
        ),
        ("/v1/responses", {"input": "x", "max_output_tokens": {}}, "max_output_tokens must be"),
        (TEXT, {"prompt": "x", "cache_salt": 5}, "cache_salt: expected `str | null`, got `int`"),
        (TEXT, {}, "prompt must be a text"),
        (TEXT, {"prompt": None}, "prompt must be a text"),
        (TEXT, {"prompt": {}}, "prompt must be a text"),
        (TEXT, {"prompt": 5}, "prompt must be a text"),
        (TEXT, {"prompt": []}, "prompt must be a text"),
        (TEXT, {"prompt": ["a", 1]}, "prompt must be a text"),
        (TEXT, {"prompt": [1, "a"]}, "prompt must be a text"),
        (TEXT, {"prompt": [[]]}, "prompt must be a text"),
        (TEXT, {"prompt": [["a]", 1]]}, "prompt must be a text"),
        (TEXT, {"prompt": [[1, "a"]]}, "prompt must be a text"),
        (TEXT, {"prompt": [[1, [2]]]}, "prompt must be a text"),
        (TEXT, {"prompt": [True]}, "prompt must be a text"),
        (TEXT, {"prompt": [1.5]}, "prompt must be a text"),
        (TEXT, {"prompt": [-1]}, "prompt must be a text, a list of token ids from 0 to 4294967295"),
        (TEXT, {"prompt": [2**32]}, "prompt must be a text, a list of token ids from 0 to 4294967"),
        (CHAT, {}, "the body: object missing required field `messages`"),
        (CHAT, {"messages": []}, "messages: expected `array` of length >= 1"),
        (CHAT, {"messages": "x"}, "messages: expected `array`, got `str`"),
        (CHAT, {"messages": [None]}, "messages[0]: expected `object`, got `null`"),
        ("/v1/embeddings", {"input": {}}, "input must be a text, a list of token ids"),
        ("/v1/embeddings", {"messages": []}, "messages: expected `array` of length >= 1"),
        ("/v1/responses", {}, "the body: object missing required field `input`"),
        ("/v1/responses", {"input": None}, "input must be a text or a list of objects"),
        (
            "/v1/responses",
            {"input": []},
            "input must be a text or a list of objects, and not empty",
        ),
        ("/v1/responses", {"input": ["x"]}, "input must be a text or a list of objects"),
        ("/v1/responses", {"input": [{"role": "user"}, 5]}, "input must be a text or a list of"),
    ],
)
def test_a_wrong_field_is_named(path: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(path, **{"model": "m"} | fields)

    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (True, True),
        (1, True),
        (1.0, True),
        ("true", True),
        ("True", True),
        ("yes", True),
        ("ON", True),
        ("1", True),
        (False, False),
        (0, False),
        ("false", False),
        ("no", False),
        ("", False),
        ("perhaps", False),
        (2, False),
        (None, False),
        ("true" * 1000, False),
    ],
)
def test_stream_is_read_as_laxly_as_model_servers_read_it(written: Any, expected: bool) -> None:
    parsed = parse(TEXT, model="m", prompt="x", stream=written)

    assert expected == parsed.stream


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (16, 16),
        (16.0, 16),
        ("16", 16),
        (" 16 ", 16),
        ("16.0", 16),
        (0, 0),
        (-1, None),
        ("-1", None),
        (16.5, None),
        ("16.5", None),
        ("many", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        (10**400, None),
        ("9" * 5000, None),
        (None, None),
    ],
)
@pytest.mark.parametrize(
    ("path", "field", "whole"),
    [
        (TEXT, "max_tokens", {"prompt": "x"}),
        (CHAT, "max_tokens", {"messages": MESSAGES}),
        (CHAT, "max_completion_tokens", {"messages": MESSAGES}),
        ("/v1/responses", "max_output_tokens", {"input": "x"}),
    ],
)
def test_limits_are_read_as_laxly_as_model_servers_read_them(
    path: str, field: str, whole: dict[str, Any], written: Any, expected: int | None
) -> None:
    parsed = parse(path, model="m", **whole, **{field: written})

    assert expected == parsed.max_output_tokens


def test_a_number_that_overflows_is_the_model_servers_business() -> None:
    body = b'{"model":"m","prompt":"x","max_tokens":1e999,"temperature":1e999}'

    assert OpenAIParser().parse_request(TEXT, {}, body).max_output_tokens is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model":1e999}', "model: "),
        (b'{"cache_salt":1e999}', "cache_salt: "),
        (b'{"model":' + b"9" * 5000 + b"}", "model: "),
        (b'{"x":' + b"9" * 5000 + b"}", "the body "),
        (b'[{"x":1e999}]', "the body: "),
    ],
    ids=range(5),
)
def test_a_place_is_told_in_words(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        OpenAIParser().parse_request("/v1/score", {}, body)

    assert str(refused.value).startswith(message)
    assert "$" not in str(refused.value)


MALFORMED = {
    "empty": b"",
    "one brace": b"{",
    "cut in a string": b'{"model":"m',
    "array": b"[]",
    "null": b"null",
    "string": b'"x"',
    "number": b"5",
    "not a number": b'{"model":"m","prompt":NaN}',
    "infinite": b'{"model":"m","max_tokens":Infinity}',
    "out of range": b'{"model":"m","prompt":1e999}',
    "lone surrogate": b'{"model":"m","prompt":"\\ud800"}',
    "lone low surrogate": b'{"model":"m","prompt":"\\udc00 x"}',
    "invalid UTF-8": b'{"model":"m","prompt":"\xff"}',
    "surrogate in UTF-8": b'{"model":"m","prompt":"\xed\xa0\x80"}',
    "byte order mark": b'\xef\xbb\xbf{"model":"m","prompt":"x"}',
    "single quotes": b"{'model':'m'}",
    "trailing comma": b'{"model":"m","prompt":"x",}',
    "trailing text": b'{"model":"m","prompt":"x"} x',
    "control character": b'{"model":"m","prompt":"\n"}',
    "huge integer": b'{"model":"m","prompt":"x","max_tokens":' + b"9" * 100_000 + b"}",
    "huge token": b'{"model":"m","prompt":[' + b"9" * 4_000 + b"]}",
    "deep arrays": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deep in a field": b'{"model":"m","prompt":' + b"[" * 200_000,
    "compressed": b"\x1f\x8b\x08\x00 hello",
    "form": b"model=m&prompt=x",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_body_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        OpenAIParser().parse_request(TEXT, {}, body)


def test_the_place_of_a_mistake_is_told() -> None:
    with pytest.raises(BadRequest) as refused:
        OpenAIParser().parse_request(TEXT, {}, b'{"model":"m" "prompt":"x"}')

    assert str(refused.value).startswith("the body is not valid JSON: expected ',' or '}' (byte ")


SECRET = "c0ffee-secret"


@pytest.mark.parametrize(
    "body",
    [
        f'{{"model":"m","prompt":"{SECRET}" x}}',
        f'{{"model":"m","prompt":{{"{SECRET}":1}}}}',
        f'{{"model":"m","prompt":["{SECRET}",5]}}',
        f'{{"model":{{"{SECRET}":"{SECRET}"}},"prompt":"x"}}',
        f'{{"{SECRET}"',
        f'"{SECRET}"',
        SECRET,
        f'{{"model":"m","prompt":[[{{"{SECRET}":1e999}}]]}}',
    ],
)
@pytest.mark.parametrize("path", [TEXT, CHAT, "/v1/responses"])
def test_nothing_of_a_body_is_repeated(path: str, body: str) -> None:
    with pytest.raises(BadRequest) as refused:
        OpenAIParser().parse_request(path, {}, body.encode())

    assert SECRET not in str(refused.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
field_names = st.sampled_from(
    ["model", "prompt", "messages", "input", "tools", "stream", "max_tokens", "cache_salt", "items"]
)
paths = st.sampled_from([f"/{claim}" for claim in OpenAIParser.claims] + ["/other"])


@settings(deadline=None)
@given(path=paths, document=st.dictionaries(field_names, json_values))
def test_any_json_is_parsed_or_refused_in_words(path: str, document: dict[str, Any]) -> None:
    refusal = ""

    try:
        parse(path, **document)
    except BadRequest as error:
        refusal = str(error)

    assert "$" not in refusal


@settings(deadline=None)
@given(path=paths, body=st.binary())
def test_any_bytes_are_parsed_or_refused(path: str, body: bytes) -> None:
    with suppress(BadRequest):
        OpenAIParser().parse_request(path, {}, body)
