"""
`epp plugins`: every plugin type there is, from the code: what it does, and its parameters.
"""

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from epp.framework import ConfigError, Registry
from epp.framework.registry import parameter_schema

POINTS = {
    "parse_request": "parser",
    "produce": "data producer",
    "pick_profiles": "profile handler",
    "filter": "filter",
    "score": "scorer",
    "pick": "picker",
    "pre_request": "pre-request",
    "response_headers": "response headers",
    "on_first_byte": "first-byte observer",
    "on_response_complete": "response observer",
    "discover": "endpoint discovery",
    "poll": "data source",
    "extract": "extractor",
}
"""The verb of each extension point, and the point's name."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a plugin; `default` is absent where it must be given."""

    name: str
    type: str
    default: Any = msgspec.UNSET

    @property
    def shown(self) -> str:
        """The parameter in one line."""
        if self.default is msgspec.UNSET:
            return f"{self.name} ({self.type}, required)"
        return f"{self.name} ({self.type}, {msgspec.json.encode(self.default).decode()})"


class Described(msgspec.Struct, frozen=True):
    """A plugin type as its code describes it."""

    type: str
    points: Sequence[str]
    summary: str
    parameters: Sequence[Parameter]
    documentation: str


def describe(registry: Registry, plugin_type: str) -> Described:
    """Return what a type is; ConfigError where it is unknown."""
    plugin = registry.load(plugin_type)
    module = inspect.getmodule(plugin)
    policy = inspect.getdoc(module) or inspect.getdoc(plugin) or ""
    schema, _ = parameter_schema(plugin)
    return Described(
        plugin_type,
        [name for verb, name in POINTS.items() if hasattr(plugin, verb)],
        policy.split("\n\n")[0].replace("\n", " "),
        [_parameter(field) for field in msgspec.structs.fields(schema)],
        inspect.getdoc(plugin) or "",
    )


def _parameter(field: msgspec.structs.FieldInfo) -> Parameter:
    plain = get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
    kind = plain.__name__ if isinstance(plain, type) else str(plain).replace("typing.", "")
    if field.default is not msgspec.NODEFAULT:
        return Parameter(field.encode_name, kind, msgspec.to_builtins(field.default))
    if field.default_factory is not msgspec.NODEFAULT:
        return Parameter(field.encode_name, kind, msgspec.to_builtins(field.default_factory()))
    return Parameter(field.encode_name, kind)


def listed(plugin_type: str | None) -> list[Described]:
    """Return all types, or the one that is named; ConfigError where that is unknown."""
    registry = Registry()
    types = registry.types if plugin_type is None else [plugin_type]
    return [describe(registry, one) for one in types]


def table(plugins: Sequence[Described]) -> RenderableType:
    """Return the plugins as a table; a single one with its whole documentation."""
    if not plugins:
        raise ConfigError("no plugins are installed")
    shown = Table("type", "kind", "what it does", "parameters", show_lines=True)
    for one in plugins:
        shown.add_row(
            one.type,
            ", ".join(one.points),
            one.summary,
            "\n".join(parameter.shown for parameter in one.parameters),
        )
    return Group(shown, plugins[0].documentation) if len(plugins) == 1 else shown
