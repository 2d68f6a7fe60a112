"""
The registry: plugin types by entry point, and constructor signatures as strict parameter schemas.

In-tree and third-party plugins take the same road: an entry point in the group `epp.plugins` whose
name is the `type` in the configuration. Only types that are named are loaded.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from epp.framework.errors import ConfigError
from epp.framework.files import PluginFiles, names_a_file
from epp.framework.plugin import PluginContext, PluginInstance
from epp.framework.validation import described, near

ENTRY_POINT_GROUP = "epp.plugins"


class Registry:
    """Finds plugin classes by type and builds them from the parameters of a configuration."""

    def __init__(
        self,
        entry_points: Iterable[metadata.EntryPoint] | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        """
        Take the entry points given, or those of every installed distribution.

        Types that name a file are looked for in `folder`, or where the process works. Raises
        ConfigError where two distributions claim one type.
        """
        self._files = PluginFiles(folder or Path())
        if entry_points is None:
            entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
        self._entry_points: dict[str, metadata.EntryPoint] = {}
        for point in entry_points:
            other = self._entry_points.setdefault(point.name, point)
            if other.value != point.value:
                message = (
                    f"plugin type {point.name!r} is claimed twice, by {_origin(other)} and by"
                    f" {_origin(point)}: uninstall one of them"
                )
                raise ConfigError(message)

    @property
    def files(self) -> set[Path]:
        """The plugin files that configurations named so far."""
        return self._files.paths

    @property
    def types(self) -> list[str]:
        """Every known type, sorted."""
        return sorted(self._entry_points)

    def load(self, plugin_type: str) -> type[Any]:
        """Return the class of a type; raise ConfigError where it is unknown or fails to import."""
        if names_a_file(plugin_type):
            return self._files.load(plugin_type)
        point = self._entry_points.get(plugin_type)
        if point is None:
            message = f"unknown plugin type {plugin_type!r}{near(plugin_type, self.types)}"
            raise ConfigError(message)
        try:
            loaded: type[Any] = point.load()
        except (Exception, SystemExit) as error:  # its author's: importing it may raise anything
            what = f"{type(error).__name__}: {error}"
            message = f"plugin type {plugin_type!r} of {_origin(point)} cannot be loaded: {what}"
            raise ConfigError(message) from error
        return loaded

    def build(
        self,
        plugin_type: str,
        name: str,
        parameters: Mapping[str, Any],
        context: Callable[[str], PluginContext] = PluginContext,
        *,
        reuse: PluginInstance | None = None,
    ) -> PluginInstance:
        """
        Return an instance of the type: `reuse` if it is of the same class and parameters, or a new
        one.

        Parameters are in camelCase, strictly checked; ConfigError says which one is wrong, and
        where.
        """
        plugin_class = self.load(plugin_type)
        try:
            schema, injected = parameter_schema(plugin_class)
        except (NameError, TypeError, AttributeError) as error:
            message = f"the parameters of {plugin_class.__qualname__} are not understood: {error}"
            raise ConfigError(message) from error
        try:
            values = msgspec.convert(dict(parameters), schema)
        except msgspec.ValidationError as error:
            raise ConfigError(described(error, parameters, schema, root="parameters")) from error
        filled = msgspec.to_builtins(values)
        if (
            reuse is not None
            and type(reuse.plugin) is plugin_class
            and (reuse.type, reuse.parameters) == (plugin_type, filled)
        ):
            return reuse
        arguments = {field: getattr(values, field) for field in schema.__struct_fields__}
        arguments |= {field: context(name) for field in injected}
        try:
            plugin = plugin_class(**arguments)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        except (Exception, SystemExit) as error:  # its author's: it may raise anything
            message = f"{plugin_class.__qualname__} cannot be made: {type(error).__name__}"
            raise ConfigError(message) from error
        return PluginInstance(plugin_type, name, plugin, filled)


def parameter_schema(plugin_class: type[Any]) -> tuple[type[msgspec.Struct], list[str]]:
    """
    Return the strict schema of a constructor's parameters, and the names of those injected.

    Raises ConfigError where a parameter is positional or not annotated: that is the plugin author's
    mistake, and the message says so.
    """
    constructor = _constructor(plugin_class)
    if constructor is None:
        return msgspec.defstruct("Parameters", [], forbid_unknown_fields=True), []
    hints = get_type_hints(constructor, include_extras=True)
    fields: list[Any] = []
    injected: list[str] = []
    for parameter in list(inspect.signature(constructor).parameters.values())[1:]:
        hint = hints.get(parameter.name)
        if hint is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            message = (
                f"parameter {parameter.name!r} of {plugin_class.__qualname__} must be keyword-only"
                " and annotated, since it is the plugin's configuration"
            )
            raise ConfigError(message)
        if hint is PluginContext:
            injected.append(parameter.name)
        elif parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(parameter.default)))
    schema = msgspec.defstruct(
        "Parameters", fields, rename="camel", forbid_unknown_fields=True, kw_only=True
    )
    return schema, injected


def _constructor(plugin_class: type[Any]) -> Callable[..., None] | None:
    """The constructor that a class or one of its bases wrote; Protocol's stand-in is none."""
    for base in plugin_class.__mro__[:-1]:
        constructor: Callable[..., None] | None = vars(base).get("__init__")
        # Python 3.11 puts object's in the stand-in's place at the first instantiation.
        if constructor is None or constructor is object.__init__:
            continue
        if constructor.__module__ != "typing":
            return constructor
    return None


def _default(value: Any) -> Any:
    """A default as msgspec takes it: mutable ones by factory."""
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=lambda: type(value)(value))
    return value


def _origin(point: metadata.EntryPoint) -> str:
    distribution = point.dist.name if point.dist else "an unknown distribution"
    return f"{distribution} ({point.value})"
