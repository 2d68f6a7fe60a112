"""A constructor is a plugin's parameter schema, strictly kept."""

from importlib.metadata import EntryPoint
from typing import Annotated, Any, Protocol

import msgspec
import pytest

from epp.framework import ConfigError, PluginContext, Registry
from epp.framework.registry import ENTRY_POINT_GROUP, parameter_schema


class Verb(Protocol):
    def act(self) -> None: ...


class Bare(Verb):
    def act(self) -> None: ...


class Tuned:
    def __init__(
        self,
        *,
        context: PluginContext,
        max_depth: int,
        share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5,
        names: list[str] = [],  # noqa: B006 - what an author may write
    ) -> None:
        self.context, self.max_depth, self.share, self.names = context, max_depth, share, names


class Careful:
    def __init__(self, *, limit: int = 1) -> None:
        if limit < 0:
            message = f"limit: {limit}, expected 0 or more"
            raise ValueError(message)


class Positional:
    def __init__(self, depth: int) -> None: ...


class Unannotated:
    def __init__(self, *, depth=1) -> None: ...  # type: ignore[no-untyped-def]


def registry() -> Registry:
    return Registry(
        EntryPoint(one.__name__.lower(), f"{__name__}:{one.__name__}", ENTRY_POINT_GROUP)
        for one in (Bare, Tuned, Careful, Positional, Unannotated)
    )


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """importlib mode keeps test modules out of sys.modules under their own name."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


def test_parameters_are_camel_case_and_the_context_is_given() -> None:
    built = registry().build("tuned", "mine", {"maxDepth": 3, "names": ["x"]}).plugin

    assert (built.max_depth, built.share, built.names) == (3, 0.5, ["x"])
    assert built.context.name == "mine"


def test_a_class_without_a_constructor_builds_again_and_again() -> None:
    plugins = [registry().build("bare", "b", {}).plugin for _ in range(3)]

    assert len({id(one) for one in plugins}) == 3


def test_a_mutable_default_is_not_shared() -> None:
    first, second = (registry().build("tuned", "t", {"maxDepth": 1}).plugin for _ in range(2))

    assert first.names is not second.names


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "says"),
    [
        ("tuned", {}, "missing required field `maxDepth`"),
        ("tuned", {"maxDepth": "x"}, "parameters.maxDepth: expected `int`, got `str`: 'x'"),
        ("tuned", {"maxDepth": 1, "nope": 1}, "unknown field `nope`"),
        ("tuned", {"maxDepth": 1, "max_depth": 1}, "unknown field `max_depth`"),
        ("tuned", {"maxDepth": 1, "share": 2}, "parameters.share: expected `float` <= 1.0: 2"),
        ("bare", {"any": 1}, "unknown field `any`"),
        ("careful", {"limit": -1}, "limit: -1, expected 0 or more"),
        ("positional", {}, "'depth' of Positional must be keyword-only and annotated"),
        ("unannotated", {}, "'depth' of Unannotated must be keyword-only and annotated"),
        ("absent", {}, "unknown plugin type 'absent'; known are bare, careful"),
    ],
)
def test_a_mistake_is_refused_with_its_place(
    plugin_type: str, parameters: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        registry().build(plugin_type, plugin_type, parameters)

    assert says in str(refused.value)


def test_the_schema_can_be_shown() -> None:
    schema, injected = parameter_schema(Tuned)

    assert schema.__struct_encode_fields__ == ("maxDepth", "share", "names")
    assert injected == ["context"]
