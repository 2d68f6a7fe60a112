"""What is read of a gateway's messages, and how an error looks on the wire."""

import json

import pytest

from epp.extproc import messages
from epp.framework import (
    BadRequest,
    BodyTooLarge,
    EPPError,
    NoEndpoints,
    PluginFailed,
    Saturated,
)
from support import wire


@pytest.mark.parametrize("field", ["raw_value", "value"])
def test_headers_are_read_from_either_field(field: str) -> None:
    message = wire.headers({"X-A": "1", "b": "zwei"}, field=field)

    assert messages.headers_of(message.request_headers) == {"x-a": "1", "b": "zwei"}


def test_the_raw_value_wins() -> None:
    message = wire.headers({})
    message.request_headers.headers.headers.add(key="a", raw_value=b"raw", value="wrong")

    assert messages.headers_of(message.request_headers) == {"a": "raw"}


def test_bytes_that_are_no_text_do_not_hurt() -> None:
    message = wire.headers({})
    message.request_headers.headers.headers.add(key="a", raw_value=b"\xff\xfe")

    assert messages.headers_of(message.request_headers) == {"a": "��"}


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (["10.0.0.1:8000", "10.0.0.2"], ("10.0.0.1:8000", "10.0.0.2")),
        ("10.0.0.2:8080,10.0.0.3:8080", ("10.0.0.2:8080", "10.0.0.3:8080")),
        ("  10.0.0.2:8080 ,  ,  10.0.0.3:8080  ", ("10.0.0.2:8080", "10.0.0.3:8080")),
        (["10.0.0.2:8080, 10.0.0.3:8080"], ("10.0.0.2:8080", "10.0.0.3:8080")),
        ([], ()),
        ("", ()),
        (7, ()),
        ([1, None, "a"], ("a",)),
    ],
    ids=["list", "string", "blanks", "string-in-list", "empty", "empty-string", "number", "mixed"],
)
def test_the_subset_hint_is_a_list_or_a_comma_string(hint: object, expected: object) -> None:
    assert expected == messages.subset_hint(wire.headers(hint=hint))


def test_no_hint_is_not_an_empty_one() -> None:
    assert messages.subset_hint(wire.headers()) is None


@pytest.mark.parametrize(
    ("error", "status", "code", "reason", "retry"),
    [
        (BadRequest("bad"), 400, "BadRequest", None, None),
        (BodyTooLarge("big"), 413, "PayloadTooLarge", None, None),
        (Saturated("full"), 429, "ResourceExhausted", "rejected-saturated", "1"),
        (NoEndpoints("none"), 503, "ServiceUnavailable", "rejected-no-endpoints", "1"),
        (EPPError("oops"), 500, "Internal", None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_openai_shaped_with_its_status_and_reason(
    error: EPPError, status: int, code: str, reason: str | None, retry: str | None
) -> None:
    reply = wire.parsed([messages.immediate(error)])[0]

    headers = wire.set_headers(reply)
    assert status == reply.immediate_response.status.code
    assert json.loads(reply.immediate_response.body) == {
        "error": {"message": str(error), "type": code, "code": status}
    }
    assert headers["content-type"] == "application/json"
    assert reason == headers.get("x-llm-d-request-dropped-reason")
    assert retry == headers.get("retry-after")


def test_what_a_plugin_raised_is_not_shown_to_the_client() -> None:
    error = PluginFailed("filter", "my-filter", "CANARY")

    reply = wire.parsed([messages.immediate(error)])[0]

    assert b"CANARY" not in reply.SerializeToString()
    assert reply.immediate_response.status.code == 500


def test_an_ipv6_destination_stays_in_brackets_in_header_and_metadata() -> None:
    reply = wire.parsed([messages.pick("request_headers", "[fd00::1]:8000", {}, [])])[0]

    assert wire.destination(reply) == "[fd00::1]:8000"


def test_further_headers_and_removals_join_the_destination() -> None:
    reply = wire.parsed([messages.pick("request_headers", "a:1", {"x-b": "2"}, ["x-c"])])[0]

    assert wire.set_headers(reply) == {"x-gateway-destination-endpoint": "a:1", "x-b": "2"}
    assert wire.removed(reply) == {"x-c"}
    assert wire.common(reply).clear_route_cache
