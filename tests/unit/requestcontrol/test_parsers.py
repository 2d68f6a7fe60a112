"""Which parser reads a request: the longest claim that ends its path at a boundary."""

from collections.abc import Collection
from typing import Any

import pytest

from epp.framework import BadRequest, PluginInstance
from epp.observability.metrics import Metrics
from epp.requestcontrol.parsers import ParserTable, path_of
from support import cases


class Named:
    def __init__(self, claims: Collection[str]) -> None:
        self.claims = claims


def table(parsers: dict[str, Any]) -> ParserTable:
    instances = [PluginInstance(name, name, Named(claims)) for name, claims in parsers.items()]
    return ParserTable(instances, Metrics())


def chosen(parsers: dict[str, Any], path: str) -> str:
    """The name of the parser a path is given to."""
    try:
        parser = table(parsers).find(path).parser
    except BadRequest:
        return "error"
    return next(name for name, claims in parsers.items() if claims is parser.claims)


@pytest.mark.parametrize("name", ["parse-001-path-resolution", "parse-003-passthrough-fallback"])
def test_case(name: str) -> None:
    data = cases.load("parser")[name]
    for path, wanted in zip(data["when"]["table_path"], data["then"]["table_parser"], strict=True):
        assert chosen(data["given"]["parsers"], path) == wanted


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", "chat"),
        ("/team-a/v1/chat/completions/", "chat"),
        ("/v1/completions", "plain"),
        ("/xv1/completions", "error"),
        ("v1/completions", "plain"),
        ("/", "error"),
        ("", "error"),
    ],
)
def test_the_longest_claim_at_a_boundary_wins(path: str, expected: str) -> None:
    parsers = {"plain": ["v1/completions"], "chat": ["v1/chat/completions", "chat/completions"]}

    assert chosen(parsers, path) == expected


def test_paths_are_remembered_only_so_far() -> None:
    parsers = table({"any": []})

    for at in range(5000):
        parsers.find(f"/{at}")

    assert len(parsers._remembered) == 1024


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({":path": "/v1/messages?beta=true"}, "/v1/messages"),
        ({"x-original-path": "/a", "x-forwarded-path": "/b"}, "/a"),
        ({"x-forwarded-path": "/b?c"}, "/b"),
        ({}, "/v1/completions"),
    ],
)
def test_the_path_is_read_without_its_query(headers: dict[str, str], expected: str) -> None:
    assert expected == path_of(headers)
