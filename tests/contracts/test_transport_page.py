"""docs/transport.md lists every limit of the lean door, with its default."""

import dataclasses
import re
from pathlib import Path

from epp.extproc.h2.limits import Limits

PAGE = Path(__file__).parents[2] / "docs" / "transport.md"
GIVEN_BY_A_FLAG = {"max_message_bytes"}


def test_every_limit_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.,]+)?", PAGE.read_text(), re.MULTILINE)
    listed = {name: float(number.replace(",", "")) for name, number in rows if number}

    defaults = dataclasses.asdict(Limits())
    assert [name for name, _ in rows] == list(defaults)
    assert {name: listed[name] for name in defaults if name not in GIVEN_BY_A_FLAG} == {
        name: float(value) for name, value in defaults.items() if name not in GIVEN_BY_A_FLAG
    }
