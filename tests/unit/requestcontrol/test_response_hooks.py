"""Plugins that tell the client something, and those that see its response begin."""

from pathlib import Path

import pytest

from support import wire
from support.core import Core
from support.plugins import registry

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: response-hook}, {type: failing-scorer}, {type: max-score-picker}]
"""


def core(tmp_path: Path) -> Core:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    return Core([{}], config=config, registry=registry())


async def test_headers_for_the_client_are_set_on_the_response(tmp_path: Path) -> None:
    picker = core(tmp_path)

    replies = await picker.play([wire.headers(), wire.body(), wire.response_headers()])

    assert wire.set_headers(replies[-1])["x-chosen"] == "pod-0"


@pytest.mark.parametrize(
    ("response", "begun"),
    [
        pytest.param([], 0, id="no response"),
        pytest.param([wire.response_headers()], 0, id="a head whose body follows"),
        pytest.param(
            [wire.response_headers(), wire.response_body(b"a"), wire.response_body(b"b", end=True)],
            1,
            id="pieces of a body",
        ),
    ],
)
async def test_the_first_byte_is_seen_once(
    response: list[object], begun: int, tmp_path: Path
) -> None:
    picker = core(tmp_path)

    await picker.play([wire.headers(), wire.body(), *response])

    hook = next(
        one.plugin for one in picker.app.configuration.plugins if one.type == "response-hook"
    )
    assert hook.begun == begun
