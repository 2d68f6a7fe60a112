"""Where replies end: by themselves, at a limit, or at what stops them."""

from array import array
from typing import Any

import pytest

from epp.simulator.api.errors import APIError
from epp.simulator.api.replies import Choice, Limits, Prompt, choose
from epp.simulator.tokens import Reply, decode
from support.simulated import CHAT, COMPLETIONS, HELLO, ask_once, events

PROMPT = array("I", [7] * 10)
SAID = Reply(PROMPT)
TOKENS = SAID.tokens(400)
TEXT = decode(TOKENS)
WORDS = TEXT.split()
assert len(set(WORDS[:8])) == 8  # the tests stop at these words


def chosen(max_model_len: int = 1000, **limits: Any) -> Choice:
    return choose(Prompt(PROMPT), Limits(**limits), max_model_len=max_model_len, seed=0)


def text(choice: Choice) -> str:
    return decode(choice.reply)[: choice.shown_bytes]


@pytest.mark.parametrize(
    ("limits", "length", "stops"),
    [
        pytest.param({}, SAID.natural_length, True, id="by itself"),
        pytest.param({"max_tokens": 7}, 7, False, id="at max_tokens"),
        pytest.param({"max_tokens": 300}, 300, False, id="later than by itself, if asked for"),
        pytest.param({"ignore_eos": True}, 390, False, id="where the context ends"),
        pytest.param({"min_tokens": 300}, 300, True, id="no earlier than min_tokens"),
        pytest.param({"max_tokens": 999}, 390, False, id="cut, silently"),
    ],
)
def test_a_reply_ends(limits: dict[str, Any], length: int, stops: bool):
    choice = chosen(max_model_len=400, **limits)

    assert (len(choice.reply), choice.stops) == (length, stops)
    assert list(choice.reply) == list(TOKENS[:length])


def at(word: int) -> int:
    """The place of a word in the text; a space goes before each."""
    return word * 4


@pytest.mark.parametrize(
    ("limits", "tokens", "shown", "reason"),
    [
        pytest.param({"stop": [f" {WORDS[3]}"]}, 4, at(3), f" {WORDS[3]}", id="a whole token"),
        pytest.param(
            {"stop": [WORDS[3][:2]]}, 4, at(3) + 1, WORDS[3][:2], id="the middle of a token"
        ),
        pytest.param(
            {"stop": [f"{WORDS[3]} {WORDS[4]}"]},
            5,
            at(3) + 1,
            f"{WORDS[3]} {WORDS[4]}",
            id="across two tokens",
        ),
        pytest.param({"stop": [WORDS[5], WORDS[2]]}, 3, at(2) + 1, WORDS[2], id="the earliest"),
        pytest.param(
            {"stop": [WORDS[3], f" {WORDS[3]}"]},
            4,
            at(3) + 1,
            WORDS[3],
            id="the one listed first, of two within a token",
        ),
        pytest.param(
            {"stop": [f" {WORDS[3]}"], "keep_stop": True},
            4,
            at(4),
            f" {WORDS[3]}",
            id="kept in the text",
        ),
        pytest.param({"stop_token_ids": [TOKENS[2]]}, 3, at(2), TOKENS[2], id="a token"),
        pytest.param(
            {"stop_token_ids": [TOKENS[2]], "keep_stop": True}, 3, at(3), TOKENS[2], id="kept"
        ),
        pytest.param(
            {"stop_token_ids": [TOKENS[2]], "stop": [f" {WORDS[2]}"]},
            3,
            at(2),
            TOKENS[2],
            id="a token before the string that it completes",
        ),
        pytest.param(
            {"stop": [f" {WORDS[3]}", f" {WORDS[6]}"], "min_tokens": 4},
            7,
            at(6),
            f" {WORDS[6]}",
            id="no string within min_tokens",
        ),
        pytest.param(
            {"stop": [f" {WORDS[3]}"], "min_tokens": 3},
            4,
            at(3),
            f" {WORDS[3]}",
            id="a string right behind min_tokens",
        ),
        pytest.param(
            {"stop_token_ids": [TOKENS[2], TOKENS[5]], "min_tokens": 4},
            6,
            at(5),
            TOKENS[5],
            id="no token within min_tokens",
        ),
        pytest.param(
            {"stop_token_ids": [TOKENS[2]], "min_tokens": 3},
            3,
            at(2),
            TOKENS[2],
            id="a token that is the last of min_tokens",
        ),
    ],
)
def test_a_reply_is_stopped(limits: dict[str, Any], tokens: int, shown: int, reason: str | int):
    choice = chosen(max_tokens=20, **limits)

    assert (len(choice.reply), choice.stops, choice.stop_reason) == (tokens, True, reason)
    assert text(choice) == TEXT[:shown]


@pytest.mark.parametrize(
    "limits", [{"stop": ["nowhere"]}, {"stop_token_ids": [1]}], ids=["string", "token"]
)
def test_what_is_never_said_stops_nothing(limits: dict[str, Any]):
    assert chosen(max_tokens=20, **limits) == chosen(max_tokens=20)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (Prompt(array("I", [7] * 30)), "contains 30 input tokens"),
        (Prompt(array("I", [7] * 30), of_text=True), "contains at least 21 input tokens"),
    ],
    ids=["tokens", "text"],
)
def test_too_long_a_prompt_is_counted_only_if_it_came_counted(prompt: Prompt, told: str):
    with pytest.raises(APIError, match=told):
        choose(prompt, Limits(), max_model_len=20, seed=0)


@pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stopped_reply_is_the_same_whole_and_in_a_stream(path: str):
    asked = {"prompt": "x", "messages": HELLO, "max_tokens": 20}
    free = (await ask_once(path, asked)).json["choices"][0]
    full = free["message"]["content"] if path == CHAT else free["text"]
    stop = full[18:22]

    whole = (await ask_once(path, asked | {"stop": stop})).json
    stream = events((await ask_once(path, asked | {"stop": stop, "stream": True})).body)[:-1]

    choice = whole["choices"][0]
    said = choice["message"]["content"] if path == CHAT else choice["text"]
    ends = [one["choices"][0] for one in stream]
    texts = [end["delta"]["content"] if path == CHAT else end["text"] for end in ends]
    assert (said, "".join(texts)) == (full[:18], full[:18])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert (ends[-1]["finish_reason"], ends[-1]["stop_reason"]) == ("stop", stop)
    assert whole["usage"]["completion_tokens"] == 6
