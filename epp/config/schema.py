"""
EndpointPickerConfig as strict structs: one class per YAML section, unknown keys refused.

The format is the field's (llm-d `apix/config/v1alpha1`), camelCase included, so that a file written
for llm-d-router loads here where this version has what it names.
"""

from typing import Any

import msgspec

API_VERSION = "llm-d.ai/v1alpha1"
DEPRECATED_API_VERSIONS = ("inference.networking.x-k8s.io/v1alpha1",)
KIND = "EndpointPickerConfig"


class Section(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """What all sections share: camelCase keys, and none that is not known."""


class Plugin(Section):
    """A plugin to build: its type, its name (the type's, if none is given), its parameters."""

    type: str
    name: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class PluginRef(Section):
    """A place that uses a configured plugin by its name."""

    plugin_ref: str


class WeightedRef(PluginRef):
    """A profile's use of a plugin; the weight counts for scorers alone."""

    weight: float | None = None


class Profile(Section):
    """A scheduling profile: filters in their order, weighted scorers, one picker."""

    name: str
    plugins: list[WeightedRef] = msgspec.field(default_factory=list)


class Source(PluginRef):
    """A data source with the extractors of its samples."""

    extractors: list[PluginRef] = msgspec.field(default_factory=list)


class DataLayer(Section):
    """Where samples of endpoints come from, and where endpoints come from."""

    inject_defaults: bool = True
    sources: list[Source] = msgspec.field(default_factory=list)
    discovery: PluginRef | None = None


class RequestHandler(Section):
    """The parsers, in the order in which equally long claims are preferred."""

    parsers: list[PluginRef] = msgspec.field(default_factory=list)


class EndpointPickerConfig(Section):
    """The whole document."""

    api_version: str
    kind: str
    feature_gates: list[str] = msgspec.field(default_factory=list)
    plugins: list[Plugin] = msgspec.field(default_factory=list)
    scheduling_profiles: list[Profile] = msgspec.field(default_factory=list)
    data_layer: DataLayer = msgspec.field(default_factory=DataLayer)
    request_handler: RequestHandler = msgspec.field(default_factory=RequestHandler)
