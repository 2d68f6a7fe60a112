"""Why this endpoint: the ring, the page, the command and the header."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from epp.cli import main
from epp.requestcontrol import protocol
from support import wire
from support.core import Core
from support.plugins import registry

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: name-filter, parameters: {keep: [a, b]}}
- {type: queue-scorer}
"""
SECRET = "CANARY-of-a-prompt"


def core(tmp_path: Path, *, explains: bool = False) -> Core:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    pods = [{"name": "a", "q": 20}, {"name": "b"}, {"name": "c"}]
    return Core(pods, config=config, registry=registry(), explain_header=explains)


async def test_a_decision_names_scores_filters_and_ages(tmp_path: Path) -> None:
    picker = core(tmp_path)

    await picker.pick()
    [decision] = picker.app.decisions.dump()["decisions"]

    profile = decision["profiles"]["default"]
    assert decision["endpoint"] == "default/b"
    assert profile["removed"] == {"name-filter": ["default/c"]}
    assert [(one["endpoint"], one["weighted"]) for one in profile["candidates"]] == [
        ("default/b", {"queue-scorer": 1.0}),
        ("default/a", {"queue-scorer": 0.0}),
    ]
    assert all(one["metrics_age_seconds"] >= 0 for one in profile["candidates"])


@pytest.mark.parametrize(
    ("explains", "asked", "told"),
    [(True, "1", True), (True, "0", False), (False, "1", False)],
    ids=["asked", "not asked", "not enabled"],
)
async def test_a_client_may_be_told_in_a_header(
    explains: bool, asked: str, told: bool, tmp_path: Path
) -> None:
    picker = core(tmp_path, explains=explains)
    body = json.dumps({"model": "m", "prompt": SECRET}).encode()

    replies = await picker.play(
        [
            wire.headers({**wire.POST, protocol.EXPLAIN: asked}),
            wire.body(body),
            wire.response_headers(),
        ]
    )
    explained = wire.set_headers(replies[-1]).get(protocol.EXPLAIN)

    assert (explained is not None) == told
    if explained is not None:
        assert json.loads(explained)["profiles"]["default"]["picked"] == ["default/b"]
        assert SECRET not in explained


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--address", "127.0.0.1:1"], "no decisions there: [Errno 111] Connection refused"),
        (["--address", "nonsense"], "no decisions there"),
    ],
)
def test_a_picker_that_is_not_there_is_told(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["explain", *arguments])

    assert result.exit_code == 2
    assert says in result.stderr
