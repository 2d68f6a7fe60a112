"""Token counts, from whole and from damaged responses."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import Usage
from epp_plugins.parsers.openai import OpenAIParser


def usage_of(**fields: Any) -> Usage | None:
    return OpenAIParser().parse_usage(json.dumps(fields).encode())


@pytest.mark.parametrize("event", ["response.completed", "response.incomplete", "response.failed"])
def test_the_last_event_of_a_response_brings_its_usage(event: str) -> None:
    counts = {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 3,
        "total_tokens": 15,
    }

    usage = usage_of(type=event, response={"id": "r", "usage": counts})

    assert Usage(12, 3, 8) == usage


def test_the_last_chunk_of_a_stream_brings_its_usage() -> None:
    usage = usage_of(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 2})

    assert Usage(4, 2, None) == usage


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (7, 7),
        (0, 0),
        ("7", 7),
        (-1, None),
        ("-1", None),
        (1.5, None),
        (7.0, None),
        ("7.0", None),
        ("", None),
        ("seven", None),
        ("\u0667", None),
        ("9" * 5000, None),
        (10**30, None),
        (True, None),
        (None, None),
        ([7], None),
        ({}, None),
    ],
)
def test_a_count_that_is_none_is_passed_over_and_the_others_stay(
    count: Any, expected: int | None
) -> None:
    usage = usage_of(usage={"prompt_tokens": count, "completion_tokens": 2})

    assert Usage(expected, 2) == usage


@pytest.mark.parametrize("details", [5, None, "x", [], {}, {"cached_tokens": "x"}])
def test_damaged_details_leave_the_counts(details: Any) -> None:
    usage = usage_of(usage={"prompt_tokens": 1, "prompt_tokens_details": details})

    assert Usage(1) == usage


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[DONE]",
        b'{"usage":',
        b'{"usage":null}',
        b'{"usage":"n/a"}',
        b'{"usage":[1]}',
        b'{"usage":{}}',
        b'{"usage":{"total_tokens":5}}',
        b'{"response":{"usage":null}}',
        b'{"response":"usage","x":"\\"usage\\""}',
        b'["usage"]',
        b'"usage"',
        b'{"usage":' + b"[" * 100_000,
        b'{"usage":{"prompt_tokens":' + b"9" * 100_000 + b"}}",
        b'{"usage":{"prompt_tokens":"\xff"}}',
    ],
    ids=range(15),
)
def test_without_readable_counts_there_is_no_usage(document: bytes) -> None:
    assert OpenAIParser().parse_usage(document) is None


def test_a_text_about_usage_is_no_usage() -> None:
    usage = usage_of(choices=[{"delta": {"content": 'the field "usage"', "usage": 5}}])

    assert usage is None


@settings(deadline=None)
@given(st.binary() | st.text().map(lambda one: f'{{"usage":{one}}}'.encode("utf-8", "replace")))
def test_nothing_is_ever_raised(document: bytes) -> None:
    usage = OpenAIParser().parse_usage(document)

    assert usage is None or isinstance(usage, Usage)
