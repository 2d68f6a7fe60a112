"""Large bodies are read as strictly as small ones, and however they are made, none takes long."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import BadRequest, ParsedRequest
from epp_plugins.parsers.openai import OpenAIParser

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"

MUCH = b'"much":"' + b"x" * 70_000 + b'",'
SIZES = pytest.mark.parametrize("padding", [b"", MUCH, MUCH * 3], ids=["small", "large", "larger"])


def parse(path: str, body: bytes) -> ParsedRequest:
    return OpenAIParser().parse_request(path, {}, body)


def body_with(unread: bytes, padding: bytes) -> bytes:
    return b'{"model":"m","prompt":"p",' + padding + b'"x":' + unread + b',"y":[1]}'


REFUSED = {
    "giant integer": b"9" * 4301,
    "negative giant integer": b"-" + b"9" * 4301,
    "giant integer in a list": b"[1," + b"9" * 4301 + b"]",
    "giant integer behind the same as text": b'["' + b"9" * 5000 + b'",' + b"9" * 5000 + b"]",
    "giant integer behind escapes": rb'["\" \\",' + b"9" * 5000 + b"]",
    "giant integer behind a long fraction": b"[0." + b"9" * 5000 + b"," + b"9" * 5000 + b"]",
    "lone high surrogate": rb'"\ud83d"',
    "lone low surrogate": rb'"\ude00"',
    "high surrogate before a letter": rb'"\ud83dx"',
    "high surrogate before another escape": rb'"\ud83d\n"',
    "two high surrogates": rb'"\ud83d\ud83d"',
    "pair the wrong way around": rb'"\ude00\ud83d"',
    "lone surrogate behind a pair": rb'"\ud83d\ude00\ude00"',
    "lone surrogate in a key": rb'{"\ud83d":1}',
    "invalid UTF-8": b'"\xff"',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "UTF-8 cut short": b'"\xe2\x82"',
    "invalid UTF-8 in a key": b'{"\xff":1}',
    "control character": b'"\x01"',
    "no such escape": rb'"\q"',
    "escape cut short": rb'"\u12"',
    "trailing comma": b"[1,]",
    "number that begins with a zero": b"01",
    "no number": b"NaN",
}

ACCEPTED = {
    "emoji as a pair": rb'"\ud83d\ude00"',
    "emoji as a pair in a key": rb'{"\uD83D\uDE00":1}',
    "emoji in UTF-8": "\N{GRINNING FACE}".join('""').encode(),
    "text that looks like a surrogate": rb'"\\ud83d"',
    "long row of digits as text": b'"' + b"9" * 5000 + b'"',
    "long row of digits in text": b'" ' + b"9" * 5000 + b' "',
    "long row of digits behind escapes": rb'"\" \\\" ' + b"9" * 5000 + b'"',
    "many long rows of digits as text": b'["' + b'","'.join([b"9" * 5000] * 3) + b'"]',
    "long row of digits as a key": b'{"' + b"9" * 5000 + b'":1}',
    "longest integer": b"9" * 4300,
    "longest integers": b"[" + b",".join([b"9" * 4300] * 3) + b"]",
    "long fraction": b"0." + b"9" * 5000,
    "float with many digits": b"9" * 5000 + b".5",
    "long exponent": b"[1e" + b"0" * 5000 + b",1E+" + b"0" * 5000 + b",1e-" + b"0" * 5000 + b"]",
    "number that overflows": b"1e999",
}


@SIZES
@pytest.mark.parametrize("unread", REFUSED.values(), ids=REFUSED)
def test_what_no_model_server_could_read_is_refused_anywhere(unread: bytes, padding: bytes) -> None:
    body = body_with(unread, padding)

    with pytest.raises(BadRequest):
        parse(TEXT, body)


@SIZES
@pytest.mark.parametrize("unread", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_only_unusual_is_accepted(unread: bytes, padding: bytes) -> None:
    body = body_with(unread, padding)

    assert parse(TEXT, body) == ParsedRequest("m", b"p")
    json.loads(body)


@settings(deadline=None)
@given(
    before=st.integers(0, 10_000),
    digits=st.integers(4290, 4310) | st.integers(0, 10_000),
    behind=st.integers(0, 10_000),
    quote=st.sampled_from([b"", b'"']),
)
def test_an_integer_is_too_long_wherever_it_stands(
    before: int, digits: int, behind: int, quote: bytes
) -> None:
    number = quote + b"1" + b"0" * digits + quote
    body = b'{"model":"m","a":"%b","x":%b%b}' % (b"x" * before, number, b" " * behind)
    refused = False

    try:
        parse("/v1/score", body)
    except BadRequest:
        refused = True

    assert refused == (digits >= 4300 and not quote)


def filled(head: str, unit: str, tail: str) -> bytes:
    """Return ten million bytes, most of which are the unit again and again."""
    times = (10_000_000 - len(head) - len(tail)) // len(unit)
    return f"{head}{(unit * times).rstrip(',')}{tail}".encode()


@dataclass
class Calls:
    count: int = 0


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """
    Count the calls and returns, of Python's functions and of C's.

    They stand for the time, which no test can assert: a loop over a body's items makes millions.
    """
    calls = Calls()

    def count(*_: object) -> None:
        calls.count += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


ASK = '{"model":"a","messages":[{"content":"x"}]'

LARGE_AND_MALFORMED = {
    "deep arrays": (TEXT, b"[" * 10_000_000),
    "deep objects": (TEXT, b'{"a":' * 2_000_000),
    "deep in a field": (TEXT, b'{"prompt":' + b"[" * 10_000_000),
    "deep and not needed": (TEXT, b'{"x":' + b"[" * 10_000_000),
    "a huge integer": (TEXT, b'{"max_tokens":' + b"9" * 10_000_000),
    "a huge integer that is not needed": (TEXT, b'{"x":' + b"9" * 10_000_000),
    "an endless string": (TEXT, b'{"x":"' + b"x" * 10_000_000),
    "an endless string of escapes": (TEXT, b'{"x":"' + b"\\n" * 5_000_000),
    "countless brackets": (TEXT, b'{"x":[' + b"[]," * 3_300_000),
    "countless empty prompts": (TEXT, filled('{"prompt":[', "[],", "]}")),
    "long token ids": (TEXT, filled('{"prompt":[', "9" * 4000 + ",", "]}")),
}


@pytest.mark.parametrize(("path", "body"), LARGE_AND_MALFORMED.values(), ids=LARGE_AND_MALFORMED)
def test_a_large_malformed_body_is_refused_at_once(path: str, body: bytes) -> None:
    """Everything else waits meanwhile."""
    with pytest.raises(BadRequest), counted_calls() as calls:
        parse(path, body)

    assert calls.count < 20_000


LARGE: dict[str, tuple[Any, ...]] = {
    "models": (CHAT, ASK + ",", '"model":"a",', "}"),
    "nested models": (CHAT, ASK + ',"x":[', '{"model":1},', "]}"),
    "models as texts": (CHAT, ASK + ',"x":[', '"model",', "]}"),
    "texts between models": (CHAT, ASK + ',"x":[', '"",', '],"model":"a"}'),
    "brackets in texts": (CHAT, ASK + ',"x":[', '["["],', '],"model":"a"}'),
    "escapes": (CHAT, ASK + ',"x":"', r"\\\"", '","model":"a"}'),
    "tools": (CHAT, ASK + ',"tools":[', "[],", "]}"),
    "tools of long numbers": (CHAT, ASK + ',"tools":[', "9" * 4000 + ",", "]}"),
    "messages": (CHAT, '{"model":"a","messages":[', "{},", "]}"),
    "messages of parts": (CHAT, '{"model":"a","messages":[', '{"content":[{}]},', "]}"),
    "parts": (CHAT, '{"model":"a","messages":[{"content":[', "{},", "]}]}"),
    "parts of text": (CHAT, '{"model":"a","messages":[{"content":[', '{"text":""},', "]}]}"),
    "tool calls": (CHAT, '{"model":"a","messages":[{"tool_calls":[', "[],", "]}]}"),
    "a picture": (CHAT, '{"model":"a","messages":[{"content":[{"image_url":"', "A", '"}]}]}'),
    "emoji": (CHAT, '{"model":"a","messages":[{"content":"', r"\ud83d\ude00", '"}]}'),
    "one emoji and brackets": (CHAT, ASK + r',"y":"\ud83d\ude00","x":[', "{},", "]}"),
    "digits as text": (CHAT, ASK + ',"x":[', '"' + "9" * 5000 + '",', "]}"),
    "token ids": (TEXT, '{"model":"a","prompt":[', "7,", "]}"),
    "batches of token ids": (TEXT, '{"model":"a","prompt":[', "[7],", "]}"),
    "empty texts": (TEXT, '{"model":"a","prompt":[', '"",', "]}"),
    "limits": (TEXT, '{"model":"a","prompt":"x",', '"max_tokens":' + "9" * 4000 + ",", "}"),
    "embeddings": (TEXT, '{"model":"a","prompt_embeds":[', "[],", "]}"),
    "items": (RESPONSES, '{"model":"a","input":[', "{},", "]}"),
    "items of lists": (RESPONSES, '{"model":"a","input":[{"x":[', "[],", "]}]}"),
    "instructions": (RESPONSES, '{"model":"a","input":"x","instructions":[', "[],", "]}"),
}


@pytest.mark.parametrize(("path", "head", "unit", "tail"), LARGE.values(), ids=LARGE)
def test_no_large_body_holds_up_other_requests(path: str, head: str, unit: str, tail: str) -> None:
    """Of millions of items, few are looked at one by one; the rest is the libraries' to do."""
    body = filled(head, unit, tail)
    parser = OpenAIParser()

    with counted_calls() as parsing:
        parser.parse_request(path, {}, body)
    with counted_calls() as rewriting:
        try:
            parser.rewrite_model(body, "b")
        except BadRequest:
            assert "model" in unit

    assert parsing.count < 600_000
    assert rewriting.count < 20_000


def test_a_conversation_of_countless_messages_is_hashed_up_to_a_bound() -> None:
    prompt = parse(CHAT, filled('{"messages":[', "{},", "]}")).prompt

    assert len(prompt) < 100_000
