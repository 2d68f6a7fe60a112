"""`epp plugins`."""

import json

import pytest
from click.testing import CliRunner

from epp.cli import main
from epp.framework import Registry


def test_every_type_is_listed_with_its_kind_and_what_it_does() -> None:
    result = CliRunner().invoke(main, ["plugins", "--json"])
    listed = {one["type"]: one for one in json.loads(result.output)}

    assert sorted(listed) == Registry().types
    assert all(one["points"] and one["summary"].endswith(".") for one in listed.values())


def test_one_type_is_told_with_its_parameters_and_defaults() -> None:
    result = CliRunner().invoke(main, ["plugins", "max-score-picker", "--json"])
    [one] = json.loads(result.output)

    assert one["parameters"] == [{"name": "maxNumOfEndpoints", "type": "int", "default": 1}]
    assert "The best score wins" in one["documentation"]


@pytest.mark.parametrize("arguments", [[], ["file-discovery"]])
def test_a_table_is_printed_for_people(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["plugins", *arguments])

    assert result.exit_code == 0
    assert "file-discovery" in result.output
    assert "required" in result.output


def test_an_unknown_type_is_refused_with_a_hint() -> None:
    result = CliRunner().invoke(main, ["plugins", "max-score-pickr"])

    assert result.exit_code == 2
    assert "did you mean `max-score-picker`?" in result.stderr
