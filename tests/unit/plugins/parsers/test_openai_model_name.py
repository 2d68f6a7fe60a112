"""The model is replaced where it stands, and every other byte is kept."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import BadRequest
from epp_plugins.parsers.openai import OpenAIParser


def rewritten(body: bytes, model: str = "new") -> bytes:
    return OpenAIParser().rewrite_model(body, model)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param('{"model":"old"}', '{"model":"new"}', id="alone"),
        pytest.param(
            '{ "a" : 1 ,\n "model"\t:\r\n"old" , "b":2}',
            '{ "a" : 1 ,\n "model"\t:\r\n"new" , "b":2}',
            id="whitespace-stays",
        ),
        pytest.param(
            '{"model":"old","seed":18446744073709551615,"a":1,"a":2,"f":1.10,"e":1E+2,"s":"\\u00e4"}',
            '{"model":"new","seed":18446744073709551615,"a":1,"a":2,"f":1.10,"e":1E+2,"s":"\\u00e4"}',
            id="numbers-doubled-keys-and-escapes-stay",
        ),
        pytest.param(
            '{"z":{"model":"x"},"messages":[{"model":"y"}],"model":"old","a":[{"model":["z"]}]}',
            '{"z":{"model":"x"},"messages":[{"model":"y"}],"model":"new","a":[{"model":["z"]}]}',
            id="nested-models-stay",
        ),
        pytest.param(
            '{"s":"\\"model\\":\\"x\\"","t":"{[\\\\","model":"old","u":"}]"}',
            '{"s":"\\"model\\":\\"x\\"","t":"{[\\\\","model":"new","u":"}]"}',
            id="text-that-looks-like-a-model-stays",
        ),
        pytest.param(
            '{"\\"model":1,"a":{"model":2},"model":"old"}',
            '{"\\"model":1,"a":{"model":2},"model":"new"}',
            id="a-key-that-ends-like-it-stays",
        ),
        pytest.param(
            '{"model":"a","x":1,"model":"b"}',
            '{"model":"new","x":1,"model":"new"}',
            id="each-of-doubled-models",
        ),
        pytest.param(
            '{"mod\\u0065l":"old","\\u006dodel":"old"}',
            '{"mod\\u0065l":"new","\\u006dodel":"new"}',
            id="a-key-written-with-escapes",
        ),
        pytest.param(
            '{"model":"o\\"l\\\\d","x":"y"}', '{"model":"new","x":"y"}', id="a-name-with-escapes"
        ),
        pytest.param('{"model":null,"x":1}', '{"model":"new","x":1}', id="null"),
        pytest.param('{"prompt":"x"}', '{"model":"new","prompt":"x"}', id="absent"),
        pytest.param('{"p":{"model":1}}', '{"model":"new","p":{"model":1}}', id="only-nested"),
        pytest.param(
            '{"p":{"model":1,"q":{"model":2}}}',
            '{"model":"new","p":{"model":1,"q":{"model":2}}}',
            id="only-nested-twice",
        ),
        pytest.param("{}", '{"model":"new"}', id="absent-in-an-empty-object"),
        pytest.param(" { } ", ' { "model":"new"} ', id="absent-in-an-empty-object-with-spaces"),
        pytest.param('[{"model":"old"}]', '[{"model":"old"}]', id="no-object"),
    ],
)
def test_only_the_models_value_changes(body: str, expected: str) -> None:
    assert expected == rewritten(body.encode()).decode()


@pytest.mark.parametrize(
    "filling", ['"["', '"]}"', '""', r'"\\\"{"', r'"\\\\"', "[[1]]", '{"]":"}"}']
)
@pytest.mark.parametrize("before", range(4))
def test_a_body_of_many_strings_and_brackets_is_cut_at_the_right_places(
    filling: str, before: int
) -> None:
    """However the text falls into the pieces in which it is looked at."""
    body = (
        f'{{"s":{json.dumps("[" * before)},"model":"old","x":[{",".join([filling] * 9000)}],'
        f'"y":{{"model":"kept"}},"model":"old","z":[{filling},{{"model":1}}]}}'
    )

    assert rewritten(body.encode()).decode() == body.replace('"old"', '"new"')


@pytest.mark.parametrize("key", ['"model":"a"', r'"m\u006fdel":1', '"x":{"model":1}'])
def test_a_body_of_countless_models_is_refused(key: str) -> None:
    body = f"{{{','.join([key] * 10_001)}}}".encode()

    with pytest.raises(BadRequest, match="too many to replace"):
        rewritten(body)


def test_any_name_is_written_as_json() -> None:
    name = 'a "b" \\ ä\n'

    assert json.loads(rewritten(b'{"model":"old"}', name)) == {"model": name}


OLD = '"the model before"'
NEW = "the model after"
KEYS = ['"model"', r'"mod\u0065l"', r'"\u006D\u006fdel"']

space = st.text(" \t\r\n", max_size=2)
floats = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text() | st.sampled_from(
    ["model", '"model":', 'x"model', "\\", "\\\\", '\\"model":"', "{", "}", "[[", "]", ":", ","]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> str:
    """Return a value as JSON with spaces wherever they may be."""
    before, inside, behind = draw(space), draw(space), draw(space)
    if isinstance(value, dict):
        members = [f"{draw(spelled(key))}:{draw(spelled(one))}" for key, one in value.items()]
        text = f"{{{','.join(members) or inside}}}"
    elif isinstance(value, list):
        text = f"[{','.join(draw(spelled(one)) for one in value) or inside}]"
    else:
        text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    return before + text + behind


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Return an object with one model or several among other members, doubled keys too."""
    others = draw(st.lists(st.tuples(texts, values), max_size=4))
    members = [
        f"{draw(spelled(key))}:{draw(spelled(value))}" for key, value in others if key != "model"
    ]
    for _ in range(draw(st.integers(1, 2))):
        member = f"{draw(space)}{draw(st.sampled_from(KEYS))}{draw(space)}:{draw(space)}{OLD}"
        members.insert(draw(st.integers(0, len(members))), member + draw(space))
    return f"{draw(space)}{{{','.join(members)}}}{draw(space)}"


@settings(deadline=None)
@given(body=bodies())
def test_in_any_body_the_model_is_all_that_changes(body: str) -> None:
    changed = rewritten(body.encode(), NEW).decode()

    assert changed == body.replace(OLD, f'"{NEW}"')
    assert json.loads(changed) == json.loads(body) | {"model": NEW}


@settings(deadline=None)
@given(document=st.dictionaries(texts, values).filter(lambda one: "model" not in one))
def test_in_any_body_without_one_the_model_is_put_in(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()

    changed = rewritten(body, NEW)

    assert changed.endswith(body[1:])
    assert json.loads(changed) == document | {"model": NEW}
