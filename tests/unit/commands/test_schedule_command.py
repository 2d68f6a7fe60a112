"""`epp schedule`: a decision without traffic."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from epp.cli import main

PROMPT = "tell me of the sea and of all that is in it " * 20
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def schedule(
    tmp_path: Path, state: str, *arguments: str, body: Any = None, config: str = ""
) -> Result:
    (tmp_path / "state.yaml").write_text(state)
    options = ["--state", str(tmp_path / "state.yaml"), *arguments]
    if body is not None:
        (tmp_path / "request.json").write_text(json.dumps(body))
        options += ["--request", str(tmp_path / "request.json")]
    if config:
        (tmp_path / "config.yaml").write_text(HEAD + config)
        options += ["--config", str(tmp_path / "config.yaml")]
    return CliRunner().invoke(main, ["schedule", *options])


def decided(tmp_path: Path, state: str, *arguments: str, **more: Any) -> Any:
    result = schedule(tmp_path, state, "--json", *arguments, **more)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.output)


def test_scores_come_plain_and_weighted_with_their_sum(tmp_path: Path) -> None:
    found = decided(
        tmp_path,
        "endpoints: [{name: a, metrics: {waiting: 10}}, {name: b, metrics: {kvUsage: 0.5}}]",
        config="plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: 3},"
        " {pluginRef: kv-cache-utilization-scorer}]}]",
    )

    [first, second] = found["profiles"]["p"]["candidates"]
    assert found["picks"] == {"default/b": 1.0}
    assert (first["endpoint"], first["scores"], first["weighted"], first["total"]) == (
        "default/b",
        {"queue-scorer": 1.0, "kv-cache-utilization-scorer": 0.5},
        {"queue-scorer": 3.0, "kv-cache-utilization-scorer": 0.5},
        3.5,
    )
    assert second["total"] == 1.0


def test_a_prompt_that_was_served_somewhere_is_known_there(tmp_path: Path) -> None:
    found = decided(
        tmp_path,
        "endpoints: [{name: a, metrics: {}}, {name: b, metrics: {}, served:"
        f" [{{model: m, prompt: '{PROMPT}'}}]}}]",
        body={"model": "m", "prompt": PROMPT},
    )

    assert found["picks"] == {"default/b": 1.0}


@pytest.mark.parametrize("busy", ["inFlight: 9", "open: [{}, {}, {}, {}, {}, {}, {}, {}, {}]"])
def test_what_is_in_flight_counts(busy: str, tmp_path: Path) -> None:
    found = decided(
        tmp_path,
        f"endpoints: [{{name: a, metrics: {{}}, {busy}}}, {{name: b, metrics: {{}}}}]",
        config="plugins: [{type: queue-scorer}]",
    )

    assert found["picks"] == {"default/b": 1.0}


def test_a_random_picker_shows_its_distribution(tmp_path: Path) -> None:
    found = decided(
        tmp_path,
        "endpoints: [{name: a}, {name: b}]",
        "--draws",
        "1000",
        config="plugins: [{type: random-picker}]",
    )

    assert found["picks"].keys() == {"default/a", "default/b"}
    assert abs(found["picks"]["default/a"] - 0.5) < 0.1


def test_what_filters_removed_is_named(tmp_path: Path) -> None:
    found = decided(
        tmp_path,
        "endpoints: [{name: a, labels: {tier: large}}, {name: b}]",
        config="plugins: [{type: label-selector-filter, name: large,"
        " parameters: {matchLabels: {tier: large}}}]",
    )

    assert found["profiles"]["default"]["removed"] == {"large": ["default/b"]}


def test_old_values_are_stale(tmp_path: Path) -> None:
    found = decided(
        tmp_path, "endpoints: [{name: a, metrics: {ageSeconds: 60}}, {name: b, metrics: {}}]"
    )

    stale = {one["endpoint"]: one["stale"] for one in found["profiles"]["default"]["candidates"]}
    assert stale == {"default/a": True, "default/b": False}


def test_a_chat_is_understood(tmp_path: Path) -> None:
    found = decided(
        tmp_path,
        "endpoints: [{name: a}]",
        body={"model": "m", "messages": [{"role": "user", "content": "hello"}]},
    )

    assert found["model"] == "m"


def test_tables_are_printed_for_people(tmp_path: Path) -> None:
    result = schedule(tmp_path, "endpoints: [{name: a, metrics: {}}, {name: b}]")

    assert result.exit_code == 0
    assert "profile default, 2 candidates" in result.output
    assert "share of the draws" in result.output


@pytest.mark.parametrize(
    ("state", "arguments", "says"),
    [
        ("", [], "the state is NoneType, expected a mapping"),
        ("endpoints: []", [], "the state: endpoints: there is none to choose from"),
        ("endpoints: [{nme: a}]", [], "endpoints[0]: unknown field `nme`; did you mean `name`?"),
        (
            "endpoints: [{name: a, metrics: {waiting: -1}}]",
            [],
            "endpoints[0].metrics.waiting: expected `int` >= 0: -1",
        ),
        ("endpoints: [{name: a}, {name: a}]", [], "default/a is there 2 times"),
        ("endpoints: [{name: a}]", ["--header", "x"], "'x' is not of the form K=V"),
        ("endpoints: [{name: a}]", ["--request", "nowhere"], "nowhere: No such file"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    state: str, arguments: list[str], says: str, tmp_path: Path
) -> None:
    result = schedule(tmp_path, state, *arguments)

    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": "no model"}, "the request is refused with status 400"),
        ([], "the request is refused with status 400"),
    ],
)
def test_a_request_that_would_be_refused_is_told(body: Any, says: str, tmp_path: Path) -> None:
    result = schedule(tmp_path, "endpoints: [{name: a}]", body=body)

    assert result.exit_code == 2
    assert says in result.stderr
