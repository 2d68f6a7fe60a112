"""
`epp config check` and `epp config show`: is a configuration right, and what does it stand for?

Both load it as `epp serve` would, plugins built and references checked, but need no endpoints.
"""

import sys
from pathlib import Path
from typing import Any

from epp.config import loader, schema
from epp.config.document import written
from epp.framework import ConfigError, PluginInstance, Registry


def read(location: str) -> tuple[bytes, Path]:
    """Return a configuration's text and the folder that its plugin files are in; "-" is stdin."""
    if location == "-":
        return sys.stdin.buffer.read(), Path()
    try:
        return Path(location).read_bytes(), Path(location).parent
    except OSError as error:
        message = f"{location}: {error.strerror}"
        raise ConfigError(message) from error


def load(location: str | None) -> loader.Configuration:
    """Return the configuration of a file, or the built-in one; raises ConfigError."""
    if location is None:
        return loader.load(loader.DEFAULT_CONFIG, Registry())
    document, folder = read(location)
    try:
        return loader.load(document, Registry(folder=folder))
    except ConfigError as error:
        message = f"{location}: {error}"
        raise ConfigError(message) from error


def check(location: str) -> str:
    """Return a line that says what a file configures, with its warnings; raises ConfigError."""
    built = load(location)
    lines = [f"{location}: warning: {warning}" for warning in built.warnings]
    profiles = ", ".join(profile.name for profile in built.profiles)
    lines.append(f"{location}: ok, {len(built.plugins)} plugins, profiles: {profiles}")
    return "\n".join(lines)


def show(location: str | None) -> str:
    """Return a configuration as YAML with all that was filled in; it loads to the same again."""
    return written(effective(load(location)))


def effective(built: loader.Configuration) -> dict[str, Any]:
    """Return a configuration as plain values, nothing left to be filled in."""
    tree: dict[str, Any] = {
        "apiVersion": schema.API_VERSION,
        "kind": schema.KIND,
        "plugins": [_plugin(one) for one in built.plugins],
        "schedulingProfiles": [_profile(one) for one in built.profiles],
        "dataLayer": _data_layer(built),
        "requestHandler": {"parsers": [_ref(one) for one in built.parsers]},
    }
    return tree


def _plugin(instance: PluginInstance) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": instance.type}
    if instance.name != instance.type:
        shown["name"] = instance.name
    if instance.parameters:
        shown["parameters"] = dict(instance.parameters)
    return shown


def _profile(profile: loader.BuiltProfile) -> dict[str, Any]:
    refs: list[dict[str, Any]] = [_ref(one) for one in profile.filters]
    refs += [_ref(one) | {"weight": weight} for one, weight in profile.scorers]
    # A plugin that is both stands once, with its weight.
    scorers = {one.name for one, _ in profile.scorers}
    refs = [ref for ref in refs if "weight" in ref or ref["pluginRef"] not in scorers]
    return {"name": profile.name, "plugins": [*refs, _ref(profile.picker)]}


def _data_layer(built: loader.Configuration) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    if built.source is None or built.extractor is None:
        layer["injectDefaults"] = False
    else:
        layer["sources"] = [_ref(built.source) | {"extractors": [_ref(built.extractor)]}]
    if built.discovery is not None:
        layer["discovery"] = _ref(built.discovery)
    return layer


def _ref(instance: PluginInstance) -> dict[str, Any]:
    return {"pluginRef": instance.name}
