"""Prompts as bytes: what makes two prompts the same, and one the beginning of another."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp_plugins.parsers.openai import OpenAIParser

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def prompt_of(path: str, **fields: Any) -> bytes:
    body = json.dumps({"model": "m"} | fields).encode()
    return OpenAIParser().parse_request(path, {}, body).prompt


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


FIRST = [said("system", "be kind"), said("user", "hello")]
CALL = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
PICTURE = "data:image/png;base64," + "A" * 99_999
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    "further",
    [
        pytest.param([said("assistant", "hi"), said("user", "and?")], id="text"),
        pytest.param([said("assistant", None, tool_calls=CALL)], id="a-tool-call"),
        pytest.param([said("tool", "5", tool_call_id="1")], id="a-tool-result"),
        pytest.param([said("user", [text("look"), image("https://x/y.png")])], id="an-image"),
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no-tools", "tools"])
def test_a_conversation_that_goes_on_begins_with_its_earlier_bytes(
    further: list[Any], tools: Any
) -> None:
    earlier = prompt_of(CHAT, messages=FIRST, tools=tools)
    later = prompt_of(CHAT, messages=FIRST + further, tools=tools)

    assert later.startswith(earlier)
    assert len(later) > len(earlier)


turns = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()}
    ),
    min_size=1,
)


@settings(deadline=None)
@given(earlier=turns, further=turns)
def test_any_conversation_begins_with_its_earlier_turns(
    earlier: list[Any], further: list[Any]
) -> None:
    later = prompt_of(CHAT, messages=earlier + further)

    assert later.startswith(prompt_of(CHAT, messages=earlier))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"messages": FIRST}, {"messages": FIRST[1:]}, id="the-system-message"),
        pytest.param(
            {"messages": [said("user", "x")]}, {"messages": [said("system", "x")]}, id="the-role"
        ),
        pytest.param(
            {"messages": FIRST, "tools": TOOLS}, {"messages": FIRST, "tools": CALL}, id="tools"
        ),
        pytest.param({"messages": FIRST, "tools": TOOLS}, {"messages": FIRST}, id="no-tools"),
        pytest.param(
            {"messages": [said("assistant", None, tool_calls=CALL)]},
            {"messages": [said("assistant", None, tool_calls=TOOLS)]},
            id="tool-calls",
        ),
        pytest.param(
            {"messages": [said("user", [text("x"), image(PICTURE + "A")])]},
            {"messages": [said("user", [text("x"), image(PICTURE + "B")])]},
            id="an-image-in-its-last-byte",
        ),
        pytest.param(
            {"messages": [said("user", [{"type": "input_audio", "input_audio": {"data": "A"}}])]},
            {"messages": [said("user", [{"type": "input_audio", "input_audio": {"data": "B"}}])]},
            id="a-recording",
        ),
        pytest.param(
            {"messages": [said("user", {"odd": 1})]},
            {"messages": [said("user", {"odd": 2})]},
            id="content-of-no-known-kind",
        ),
    ],
)
def test_prompts_differ_where_their_rendering_does(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert prompt_of(CHAT, **one) != prompt_of(CHAT, **other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            {"messages": [said("user", "hello")]},
            {"messages": [said("user", [text("hello")])]},
            id="text-or-a-part-of-text",
        ),
        pytest.param(
            {"messages": FIRST}, {"messages": FIRST, "tools": []}, id="no-tools-or-an-empty-list"
        ),
        pytest.param(
            {"messages": FIRST}, {"messages": FIRST, "temperature": 0.5}, id="how-to-sample"
        ),
    ],
)
def test_prompts_are_equal_where_their_rendering_is(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert prompt_of(CHAT, **one) == prompt_of(CHAT, **other)


def test_the_spelling_of_texts_does_not_matter() -> None:
    fields = {"messages": [said("user", "h\u00e4llo"), said("user", [text("w\u00f6rld\n")])]}
    bodies = [
        json.dumps(fields),
        json.dumps(fields, indent=4),
        json.dumps(fields, ensure_ascii=False),
    ]

    prompts = {OpenAIParser().parse_request(CHAT, {}, one.encode()).prompt for one in bodies}

    assert len(prompts) == 1


def test_the_spelling_of_tools_does() -> None:
    """They are never decoded; one client spells them alike each time."""
    fields = {"messages": FIRST, "tools": TOOLS}
    bodies = [json.dumps(fields), json.dumps(fields, indent=4)]

    prompts = {OpenAIParser().parse_request(CHAT, {}, one.encode()).prompt for one in bodies}

    assert len(prompts) == 2


def test_an_image_does_not_hide_the_text_before_it() -> None:
    plain = prompt_of(CHAT, messages=[said("user", [text("look at this")])])
    shown = prompt_of(CHAT, messages=[said("user", [text("look at this"), image("https://x/y")])])

    assert shown.startswith(plain)


def test_an_image_costs_the_prompt_only_its_digest() -> None:
    prompt = prompt_of(CHAT, messages=[said("user", [image("data:" + "A" * 1_000_000)])])

    assert len(prompt) < 100


def test_a_response_that_goes_on_begins_with_its_earlier_bytes() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}
    result = {"type": "function_call_output", "call_id": "1", "output": "5"}
    fields = {"instructions": "be kind", "tools": TOOLS}

    earlier = prompt_of(RESPONSES, input="hello", **fields)
    later = prompt_of(RESPONSES, input=[said("user", "hello"), call, result], **fields)

    assert later.startswith(earlier)
    assert b"function_call_output" in later


def test_instructions_are_part_of_the_prompt() -> None:
    kind = prompt_of(RESPONSES, input="hello", instructions="be kind")
    terse = prompt_of(RESPONSES, input="hello", instructions="be terse")

    assert kind != terse


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("hällo", "hällo".encode(), id="text"),
        pytest.param(["one", "two"], b"one", id="the-first-of-a-batch-of-texts"),
        pytest.param([1, 2**32 - 1], b"\1\0\0\0\xff\xff\xff\xff", id="token-ids"),
        pytest.param([[1], [2]], b"\1\0\0\0", id="the-first-of-a-batch-of-token-ids"),
        pytest.param("", b"", id="an-empty-text"),
        pytest.param('"a\\n"', b'"a\\n"', id="text-with-escapes"),
    ],
)
@pytest.mark.parametrize(
    ("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
)
def test_texts_and_token_ids(path: str, field: str, prompt: Any, expected: bytes) -> None:
    seen = prompt_of(path, **{field: prompt})

    assert expected == seen


@pytest.mark.parametrize("written", ["[ [1 ,2] , [3]]", "[[1,2],[]]", '[[1,2],"a"]', " [1,\n2 ] "])
def test_white_space_and_the_rest_of_a_batch_do_not_matter(written: str) -> None:
    body = f'{{"model":"m","prompt":{written}}}'.encode()

    assert OpenAIParser().parse_request("/v1/completions", {}, body).prompt == b"\1\0\0\0\2\0\0\0"


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "in-a-batch"])
def test_of_countless_token_ids_the_first_half_million_and_more_are_read(batch: bool) -> None:
    ids = list(range(100_000, 1_000_000))

    prompt = prompt_of("/v1/completions", prompt=[ids] if batch else ids)

    assert prompt.startswith(array("I", ids[:500_000]).tobytes())
    assert len(prompt) < 4 * len(ids)


def test_a_content_of_countless_parts_counts_as_one() -> None:
    parts = [{}] * 1_100_000

    prompt = prompt_of(CHAT, messages=[said("user", parts)])

    assert len(prompt) < 100
    assert prompt != prompt_of(CHAT, messages=[said("user", parts[1:])])


def test_an_input_of_countless_items_counts_as_one() -> None:
    assert len(prompt_of(RESPONSES, input=[{}] * 1_100_000)) < 100


def test_embeddings_of_a_conversation_have_its_bytes() -> None:
    seen = prompt_of("/v1/embeddings", messages=FIRST)

    assert prompt_of(CHAT, messages=FIRST) == seen


def test_embeddings_instead_of_a_prompt_have_no_bytes() -> None:
    seen = prompt_of("/v1/completions", prompt_embeds="AAAA")

    assert seen == b""
