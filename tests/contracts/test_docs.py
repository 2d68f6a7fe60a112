"""The generated parts of the documentation say what the code says."""

import difflib
import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

import epp.framework
from docs import generate
from epp.framework import PluginContext


class Window(msgspec.Struct, rename="camel"):
    max_size: int


class ExamplePlugin:
    def __init__(
        self,
        *,
        context: PluginContext,
        window: Window,
        max_depth: Annotated[int, msgspec.Meta(ge=1, le=9)] = 5,
        levels: list[float] = [0.5],  # noqa: B006 - the registry copies it
        mode: Literal["fast", "exact"] = "fast",
        labels: dict[str, str] | None = None,
    ) -> None: ...


@pytest.mark.parametrize("name", ["README.md", "docs/metrics.md", "docs/plugins.md"])
def test_the_page_is_what_the_code_says(name: str) -> None:
    path = generate.ROOT / name
    wanted = generate.pages().get(path, path.read_text(encoding="utf-8"))

    difference = difflib.unified_diff(
        path.read_text(encoding="utf-8").splitlines(), wanted.splitlines(), n=0, lineterm=""
    )
    assert list(difference) == [], "out of date: run `make docs`"


def test_every_plugin_is_in_a_table_by_its_extension_points() -> None:
    plugins = generate.in_tree_plugins()

    assert [name for name, plugin in plugins.items() if not generate.kinds(plugin)] == []


def test_every_plugin_says_what_it_does_in_one_sentence() -> None:
    summaries = {
        name: generate.summary(plugin) for name, plugin in generate.in_tree_plugins().items()
    }

    assert [name for name, text in summaries.items() if not text.endswith(".")] == []


def test_every_extension_point_of_the_framework_is_known() -> None:
    protocols = {
        thing
        for name, thing in vars(epp.framework).items()
        if inspect.isclass(thing) and getattr(thing, "_is_protocol", False)
    }

    assert set(generate.EXTENSION_POINTS) == protocols


@pytest.mark.parametrize(
    ("protocol", "verb"),
    [(protocol, verb) for protocol, (_, verb) in generate.EXTENSION_POINTS.items()],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_verb_belongs_to_one_protocol(protocol: type[Any], verb: str) -> None:
    having = [other for other in generate.EXTENSION_POINTS if hasattr(other, verb)]

    assert having == [protocol]


def test_parameters_show_as_in_yaml_with_type_and_default() -> None:
    assert generate.parameters(ExamplePlugin).split("<br>") == [
        "`window`: object (`maxSize`), required",
        "`maxDepth`: integer ≥ 1 ≤ 9, default `5`",
        "`levels`: list of number, default `[0.5]`",
        '`mode`: `exact` or `fast`, default `"fast"`',
        "`labels`: map to string or null, default `null`",
    ]


def test_a_class_speaks_for_itself_where_its_module_does_not() -> None:
    plugin = type("Plugin", (), {"__doc__": "Prefer\nthe near.\n\nMore.", "__module__": "none"})

    assert generate.summary(plugin) == "Prefer the near."


def test_the_table_stands_between_its_markers_and_nothing_else_changes() -> None:
    opening, closing = generate.README_MARKERS
    readme = f"before\n{opening}old\n{closing}\nafter\n"

    filled = generate.fill(readme, "new\n")
    assert filled == f"before\n{opening}new\n{closing}\nafter\n"
    assert generate.fill(filled, "new\n") == filled


def test_a_readme_without_markers_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no markers", encoding="utf-8")

    assert tmp_path / "README.md" not in generate.pages(tmp_path)


def test_pages_that_are_missing_are_out_of_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    missing = generate.main(["--check"], root=tmp_path)
    said = capsys.readouterr().out
    generate.main([], root=tmp_path)

    assert (missing, generate.main(["--check"], root=tmp_path)) == (1, 0)
    assert "+++ docs/metrics.md (as the code says)" in said
