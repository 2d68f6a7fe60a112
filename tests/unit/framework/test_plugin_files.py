"""Plugins that are files."""

import sys
from pathlib import Path

import pytest

from epp.framework import ConfigError, Registry

SCORER = """
from epp.framework import EndpointView, InferenceRequest

class Slow:
    def __init__(self, *, most: float = 1.0) -> None:
        self.most = most

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> list[float]:
        return [self.most for _ in endpoints]
"""


def test_a_file_is_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SCORER)

    built = Registry(folder=tmp_path).build("slow.py:Slow", "slow", {"most": 0.5})

    assert built.plugin.most == 0.5
    assert built.parameters == {"most": 0.5}


def test_a_file_of_one_class_needs_no_name_of_it(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SCORER)

    assert Registry(folder=tmp_path).load("slow.py").__name__ == "Slow"


def test_an_absolute_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SCORER)

    assert Registry().load(f"{tmp_path}/slow.py").__name__ == "Slow"


def test_an_unchanged_file_gives_the_same_class_and_a_changed_one_another(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(SCORER)
    registry = Registry(folder=tmp_path)

    first, again = registry.load("slow.py"), registry.load("slow.py")
    file.write_text(SCORER + "\n# changed\n")
    changed = registry.load("slow.py")

    assert first is again
    assert changed is not first


@pytest.mark.parametrize(
    ("text", "plugin_type", "says"),
    [
        pytest.param("", "none.py", "none.py cannot be read: No such file", id="no file"),
        pytest.param("class:", "x.py", "loaded: line 1: invalid syntax", id="syntax"),
        pytest.param("\n1 / 0", "x.py", "cannot be loaded: line 2: ZeroDivisionError", id="raises"),
        pytest.param("import nowhere", "x.py", "line 1: ModuleNotFoundError", id="import"),
        pytest.param("class A: ...", "x.py:B", "has no public class 'B'; it has A", id="class"),
        pytest.param("a = 1", "x.py", "has these public classes: none", id="no class"),
        pytest.param(
            "class A: ...\nclass B: ...\nfrom pathlib import Path", "x.py",
            "has these public classes: A, B; name one of them", id="two classes",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_told(
    text: str, plugin_type: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text(text)

    with pytest.raises(ConfigError, match=says):
        Registry(folder=tmp_path).load(plugin_type)


def test_a_file_that_fails_leaves_no_module_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")

    with pytest.raises(ConfigError):
        Registry(folder=tmp_path).load("broken.py")

    assert not [name for name in sys.modules if name.startswith("epp_plugin_file_broken")]
