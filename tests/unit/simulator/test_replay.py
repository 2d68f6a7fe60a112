"""
Scenarios replayed, against what vLLM's own scheduler did with them.

The traces in `engine_traces` were taken from vLLM 0.32; their README says how.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from epp.simulator import replay

TRACES = Path(__file__).parents[2] / "data" / "engine_traces"
NAMES = sorted(path.name.removesuffix(".scenario.json") for path in TRACES.glob("*.scenario.json"))


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_that_of_the_real_scheduler(name: str):
    text = (TRACES / f"{name}.scenario.json").read_bytes()

    trace = json.loads(replay.encode(replay.trace(text)))

    assert trace == json.loads((TRACES / f"{name}.trace.json").read_bytes())


def test_the_traces_are_there():
    assert len(NAMES) >= 16


def scenario(**changes: Any) -> bytes:
    one = {"id": "a", "prompt": [1, 2, 3], "max_tokens": 2}
    return json.dumps({"requests": [one | changes.pop("request", {})], **changes}).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"{", "truncated", id="no JSON"),
        pytest.param(b"[]", "Expected `object`", id="no object"),
        pytest.param(b"{}", "missing required field `requests`", id="no requests"),
        pytest.param(
            scenario(config={"polciy": "fcfs"}), r"unknown field `polciy` - at `\$.config`",
            id="a misspelt key",
        ),
        pytest.param(
            scenario(config={"policy": "lifo"}), r"at `\$.config.policy`", id="no such policy"
        ),
        pytest.param(
            scenario(request={"prompt": "text"}), r"at `\$.requests\[0\].prompt`", id="a text"
        ),
        pytest.param(
            json.dumps({"requests": [{"id": "a", "prompt": [1], "max_tokens": 1}] * 2}).encode(),
            "'a' is there more than once",
            id="one id twice",
        ),
        pytest.param(
            scenario(request={"prompt": [-1]}), r"`int` >= 0 - at", id="a negative token"
        ),
    ],
)  # fmt: skip
def test_a_scenario_that_is_wrong_is_refused_with_the_place(text: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        replay.read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(scenario(config={"watermark": 1}), "watermark is 1", id="all kept free"),
        pytest.param(scenario(config={"num_blocks": 2}, request={"max_tokens": 99}),
            "exceed",
            id="too big",),
        pytest.param(scenario(request={"prompt": []}), "no room", id="an empty prompt"),
        pytest.param(scenario(request={"arrive_step": 10**6}), "more than 100,000 steps",
            id="steps without end",),
    ],
)  # fmt: skip
def test_a_scenario_that_cannot_run_is_refused(text: bytes, message: str):
    read = replay.read(text)

    with pytest.raises(ValueError, match=message):
        replay.replay(read)


def test_an_aborted_request_is_in_no_later_step():
    text = scenario(request={"max_tokens": 9, "abort_step": 3})

    steps = replay.replay(replay.read(text))

    assert [step["scheduled"] for step in steps] == [{"a": 3}, {"a": 1}, {"a": 1}]
