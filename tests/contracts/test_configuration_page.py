"""docs/configuration.md is true where a test can tell."""

import re
from pathlib import Path

import pytest

from epp.commands import schedule
from epp.config import schema

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def test_its_state_file_is_read() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    state = schedule.read_state(block.encode())

    assert [one.name for one in state.endpoints] == ["a", "b"]
    assert state.endpoints[1].metrics is None


@pytest.mark.parametrize(
    "section",
    [
        name
        for name in schema.EndpointPickerConfig.__struct_encode_fields__
        if name not in ("apiVersion", "kind")
    ],
)
def test_every_section_has_a_row(section: str) -> None:
    assert f"| `{section}` |" in PAGE


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", PAGE))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (Path(__file__).parents[2] / "docs" / link).exists()
