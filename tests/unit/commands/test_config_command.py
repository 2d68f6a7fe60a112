"""`epp config check` and `epp config show`."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from epp.cli import main
from epp.commands import config
from epp.config import loader
from epp.framework import Registry

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return str(file)


def test_a_right_configuration_is_summed_up(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + "plugins: [{type: queue-scorer}]")

    result = CliRunner().invoke(main, ["config", "check", file])

    assert result.exit_code == 0
    assert result.output.startswith(f"{file}: ok, ")
    assert "profiles: default" in result.output


def test_a_deprecated_group_is_a_warning(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig",
    )

    result = CliRunner().invoke(main, ["config", "check", file])

    assert result.exit_code == 0
    assert (
        "warning: apiVersion inference.networking.x-k8s.io/v1alpha1 is deprecated" in result.output
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "plugins: [{type: queue-scorr}]", "did you mean `queue-scorer`?"),
        ("", "the configuration is NoneType"),
    ],
)
def test_a_wrong_configuration_is_an_error_with_the_file(
    text: str, says: str, tmp_path: Path
) -> None:
    file = written(tmp_path, text)

    result = CliRunner().invoke(main, ["config", "check", file])

    assert result.exit_code == 2
    assert result.stderr.startswith(f"epp: {file}: ")
    assert says in result.stderr


def test_a_file_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(main, ["config", "check", "nowhere.yaml"])

    assert (result.exit_code, result.stderr) == (
        2,
        "epp: nowhere.yaml: No such file or directory\n",
    )


def test_standard_input_can_be_checked() -> None:
    result = CliRunner().invoke(main, ["config", "check", "-"], input=HEAD)

    assert result.output.startswith("-: ok")


def test_what_is_shown_is_complete_and_loads_to_the_same() -> None:
    shown = config.show(None)
    again = loader.load(shown.encode(), Registry())

    assert config.effective(again) == yaml.safe_load(shown)
    assert yaml.safe_load(shown)["schedulingProfiles"][0]["plugins"][0] == {
        "pluginRef": "queue-scorer",
        "weight": 2.0,
    }


def test_a_plugin_file_beside_the_configuration_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n"
        "    def score(self, request, endpoints):\n"
        "        return [1.0] * len(endpoints)"
    )
    file = written(tmp_path, HEAD + "plugins: [{name: mine, type: mine.py}]")

    result = CliRunner().invoke(main, ["config", "show", file])

    assert "- type: mine.py\n  name: mine\n" in result.output
