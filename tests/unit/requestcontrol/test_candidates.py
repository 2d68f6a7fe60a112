"""Which endpoints the gateway's subset hint leaves."""

import pytest

from epp.framework import NoEndpoints
from epp.requestcontrol.candidates import locate
from epp.testing import endpoint

POOL = [
    endpoint("a", address="10.0.0.1", port=8080),
    endpoint("b", address="10.0.0.1", port=9090),
    endpoint("c", address="10.0.0.2", port=8080),
    endpoint("d", address="fd00::12", port=8080),
]


@pytest.mark.parametrize(
    ("hint", "names"),
    [
        (None, "abcd"),
        (["10.0.0.1:8080"], "a"),
        (["10.0.0.1"], "ab"),
        (["10.0.0.1:8080", "10.0.0.2"], "ac"),
        (["[fd00::12]:8080"], "d"),
        (["fd00::12"], "d"),
        (["[fd00::12]"], "d"),
        (["fd00:0:0:0:0:0:0:12"], "d"),
        (["10.0.0.9", "10.0.0.2:8080"], "c"),
    ],
)
def test_an_entry_allows_an_address_with_or_without_its_port(
    hint: list[str] | None, names: str
) -> None:
    assert names == "".join(one.id.name for one in locate(POOL, hint))


@pytest.mark.parametrize(
    "hint",
    [
        [],
        ["10.0.0.9"],
        ["10.0.0.1:3000"],
        ["10.0.0.1:x"],
        ["10.0.0.1:99999999"],
        ["[fd00::12]:1"],
        ["[fd00::12]x"],
        ["::::"],
        ["["],
    ],
)
def test_what_allows_nothing_fails_closed(hint: list[str]) -> None:
    with pytest.raises(NoEndpoints):
        locate(POOL, hint)


def test_an_empty_pool_has_no_candidate() -> None:
    with pytest.raises(NoEndpoints):
        locate([], None)
