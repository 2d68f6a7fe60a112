"""
The configuration's loader: bytes to plugins that are built, checked against each other and
complete.

Whatever is wrong is a ConfigError whose message says where in the document, what was found and what
was expected. What the document leaves out is filled in here, in one place, and nowhere else.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

from epp.config import document as document_reader
from epp.config import later, schema
from epp.framework import (
    INFLIGHT_LOAD,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    AttributeKey,
    ConfigError,
    DataProducer,
    DataSource,
    EndpointDiscovery,
    Extractor,
    Filter,
    Parser,
    Picker,
    PluginContext,
    PluginInstance,
    ProfileHandler,
    Registry,
    Scorer,
)
from epp.framework.validation import near

DEFAULT_CONFIG = b"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  - type: lora-affinity-scorer
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
      - {pluginRef: lora-affinity-scorer, weight: 2}
"""
"""The field's weights, and LoRA affinity beside them: neutral in a pool without adapters."""

MAX_WEIGHT = 1e9

DEFAULT_PARSERS = ("openai-parser", "passthrough-parser")
DEFAULT_PRODUCERS = {
    INFLIGHT_LOAD.name: "inflight-load-producer",
    PREFIX_MATCH.name: "approx-prefix-cache-producer",
    PROMPT_TOKENS.name: "token-producer",
}


@dataclass(frozen=True, slots=True)
class BuiltProfile:
    """A profile with its plugins; scorers go with their weights."""

    name: str
    filters: Sequence[PluginInstance]
    scorers: Sequence[tuple[PluginInstance, float]]
    picker: PluginInstance


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that a document stands for, built."""

    plugins: Sequence[PluginInstance]
    profiles: Sequence[BuiltProfile]
    profile_handler: PluginInstance
    parsers: Sequence[PluginInstance]
    source: PluginInstance | None
    extractor: PluginInstance | None
    discovery: PluginInstance | None
    warnings: Sequence[str]

    def of(self, kind: type[Any]) -> list[PluginInstance]:
        """Return the plugins that have the verb of an extension point, in the document's order."""
        return [one for one in self.plugins if isinstance(one.plugin, kind)]


def load(
    document: bytes,
    registry: Registry,
    context: Callable[[str], PluginContext] = PluginContext,
    *,
    endpoints_file: str | None = None,
    reuse: Mapping[str, PluginInstance] = MappingProxyType({}),
) -> Configuration:
    """
    Return the configuration that a YAML document describes.

    `endpoints_file` stands for a `file-discovery` plugin where the document configures no
    discovery. An instance in `reuse`, by its name, is taken over with all that it remembers where
    the document would make one like it. Raises ConfigError.
    """
    builder = _Builder(document_reader.read(document), registry, context, endpoints_file, reuse)
    return builder.build()


class _Builder:
    """Builds the plugins of one document, adds what it leaves out, and checks the references."""

    def __init__(
        self,
        config: schema.EndpointPickerConfig,
        registry: Registry,
        context: Callable[[str], PluginContext],
        endpoints_file: str | None,
        reuse: Mapping[str, PluginInstance],
    ) -> None:
        self._reuse = reuse
        self._config = config
        self._registry = registry
        self._context = context
        self._endpoints_file = endpoints_file
        self._plugins: dict[str, PluginInstance] = {}

    def build(self) -> Configuration:
        self._build_declared()
        profiles = self._profiles()
        handler = self._profile_handler(len(profiles))
        source, extractor = self._data_layer()
        parsers = self._parsers()
        discovery = self._discovery()
        self._add_missing_producers()
        self._check_named_producers()
        self._order_producers()
        return Configuration(
            plugins=tuple(self._plugins.values()),
            profiles=profiles,
            profile_handler=handler,
            parsers=parsers,
            source=source,
            extractor=extractor,
            discovery=discovery,
            warnings=self._warnings(),
        )

    def _warnings(self) -> list[str]:
        if self._config.api_version in schema.DEPRECATED_API_VERSIONS:
            return [f"apiVersion {self._config.api_version} is deprecated: {schema.API_VERSION}"]
        return []

    def _build_declared(self) -> None:
        for at, plugin in enumerate(self._config.plugins):
            name = plugin.name or plugin.type
            if name in self._plugins:
                message = f"plugins[{at}].name: {name!r} is the name of two plugins"
                raise ConfigError(message)
            try:
                self._add(plugin.type, name, plugin.parameters)
            except ConfigError as error:
                message = f"plugins[{at}] ({name}): {error}"
                raise ConfigError(message) from error

    def _add(
        self, plugin_type: str, name: str, parameters: Mapping[str, Any] | None = None
    ) -> PluginInstance:
        if plugin_type in later.PLUGIN_TYPES:
            message = (
                f"plugin type {plugin_type!r}: this version has no"
                f" {later.PLUGIN_TYPES[plugin_type]} yet; remove the plugin"
            )
            raise ConfigError(message)
        instance = self._registry.build(
            plugin_type, name, parameters or {}, self._context, reuse=self._reuse.get(name)
        )
        _check_keys(instance)
        self._plugins[name] = instance
        return instance

    def _add_default(self, plugin_type: str) -> PluginInstance:
        for instance in self._plugins.values():
            if instance.type == plugin_type:
                return instance
        if plugin_type in self._plugins:
            message = (
                f"plugins: {plugin_type!r} is the name of a plugin of another type"
                f" ({self._plugins[plugin_type].type}), and needed for the one that is filled in;"
                " give it another name"
            )
            raise ConfigError(message)
        return self._add(plugin_type, plugin_type)

    def _resolve(self, name: str, kinds: Collection[type[Any]], place: str) -> PluginInstance:
        instance = self._plugins.get(name)
        if instance is None:
            message = f"{place}: no plugin is named {name!r}{near(name, self._plugins)}"
            raise ConfigError(message)
        if not any(isinstance(instance.plugin, kind) for kind in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            message = f"{place}: {name!r} (type {instance.type}) is no {expected}"
            raise ConfigError(message)
        return instance

    def _profiles(self) -> list[BuiltProfile]:
        profiles = self._config.scheduling_profiles
        if not profiles:
            kinds = (Filter, Scorer, Picker)
            used = [n for n, one in self._plugins.items() if isinstance(one.plugin, kinds)]
            refs = [schema.WeightedRef(plugin_ref=name) for name in used]
            profiles = [schema.Profile(name="default", plugins=refs)]
        names: set[str] = set()
        built = []
        for at, profile in enumerate(profiles):
            place = f"schedulingProfiles[{at}]"
            if not profile.name or profile.name in names:
                what = (
                    f"{profile.name!r} is the name of two profiles" if profile.name else "is empty"
                )
                message = f"{place}.name: {what}"
                raise ConfigError(message)
            names.add(profile.name)
            built.append(self._profile(profile, place))
        return built

    def _profile(self, profile: schema.Profile, place: str) -> BuiltProfile:
        filters: list[PluginInstance] = []
        scorers: list[tuple[PluginInstance, float]] = []
        pickers: list[PluginInstance] = []
        for at, ref in enumerate(profile.plugins):
            here = f"{place}.plugins[{at}]"
            if ref.plugin_ref in [other.plugin_ref for other in profile.plugins[:at]]:
                message = f"{here}.pluginRef: {ref.plugin_ref!r} is in this profile already"
                raise ConfigError(message)
            one = self._resolve(ref.plugin_ref, (Filter, Scorer, Picker), f"{here}.pluginRef")
            if isinstance(one.plugin, Scorer):
                scorers.append((one, _weight(ref.weight, here)))
            elif ref.weight is not None:
                message = f"{here}.weight: only scorers have a weight, {one.name!r} is none"
                raise ConfigError(message)
            if isinstance(one.plugin, Filter):
                filters.append(one)
            if isinstance(one.plugin, Picker):
                pickers.append(one)
        if len(pickers) > 1:
            message = f"{place}.plugins: two pickers, {pickers[0].name!r} and {pickers[1].name!r}"
            raise ConfigError(message)
        picker = pickers[0] if pickers else self._add_default("max-score-picker")
        return BuiltProfile(profile.name, filters, scorers, picker)

    def _profile_handler(self, profiles: int) -> PluginInstance:
        handlers = self._all(ProfileHandler)
        if len(handlers) > 1:
            message = f"plugins: more than one profile handler: {_listed(h.name for h in handlers)}"
            raise ConfigError(message)
        if not handlers and profiles > 1:
            message = (
                "schedulingProfiles: several profiles need a profile handler among the plugins"
            )
            raise ConfigError(message)
        handler = handlers[0] if handlers else self._add_default("single-profile-handler")
        if handler.type == "single-profile-handler" and profiles > 1:
            message = f"schedulingProfiles: single-profile-handler runs one profile, not {profiles}"
            raise ConfigError(message)
        known = [one.name for one in self._config.scheduling_profiles]
        for name in getattr(handler.plugin, "required_profiles", ()):
            if profiles > 1 and name not in known:
                message = (
                    f"plugins ({handler.name}): no profile is named {name!r}{near(name, known)}"
                )
                raise ConfigError(message)
        return handler

    def _data_layer(self) -> tuple[PluginInstance | None, PluginInstance | None]:
        layer = self._config.data_layer
        if not layer.sources:
            if not layer.inject_defaults:
                return None, None
            return self._add_default("metrics-data-source"), self._default_extractor()
        if len(layer.sources) > 1:
            raise ConfigError("dataLayer.sources: this version polls one source, not several")
        source = layer.sources[0]
        place = "dataLayer.sources[0]"
        instance = self._resolve(source.plugin_ref, (DataSource,), f"{place}.pluginRef")
        if len(source.extractors) > 1:
            message = f"{place}.extractors: this version runs one extractor a source, not several"
            raise ConfigError(message)
        for ref in source.extractors:
            extractor = self._resolve(
                ref.plugin_ref, (Extractor,), f"{place}.extractors[0].pluginRef"
            )
            return instance, extractor
        return instance, self._default_extractor()

    def _default_extractor(self) -> PluginInstance:
        return self._add_default("core-metrics-extractor")

    def _discovery(self) -> PluginInstance | None:
        ref = self._config.data_layer.discovery
        if ref is not None:
            place = "dataLayer.discovery.pluginRef"
            if self._endpoints_file is not None:
                message = f"{place} and --endpoints-file exclude each other"
                raise ConfigError(message)
            return self._resolve(ref.plugin_ref, (EndpointDiscovery,), place)
        if self._endpoints_file is not None:
            return self._add("file-discovery", "--endpoints-file", {"path": self._endpoints_file})
        return None

    def _parsers(self) -> list[PluginInstance]:
        refs = self._config.request_handler.parsers
        if not refs:
            return [self._add_default(plugin_type) for plugin_type in DEFAULT_PARSERS]
        return [
            self._resolve(ref.plugin_ref, (Parser,), f"requestHandler.parsers[{at}].pluginRef")
            for at, ref in enumerate(refs)
        ]

    def _add_missing_producers(self) -> None:
        """Add producers of what is read and not produced, and of what those read in turn."""
        produced = {one.plugin.produces.name for one in self._all(DataProducer)}
        reading = list(self._plugins.values())
        while reading:
            instance = reading.pop(0)
            for key in getattr(instance.plugin, "consumes", ()):
                if key.name in produced:
                    continue
                if key.name not in DEFAULT_PRODUCERS:
                    message = (
                        f"plugins: nothing produces {key.name!r}, which {instance.name!r} reads"
                    )
                    raise ConfigError(message)
                produced.add(key.name)
                reading.append(self._add_default(DEFAULT_PRODUCERS[key.name]))

    def _check_named_producers(self) -> None:
        """Check that producers which plugins name are there, and produce what is read of them."""
        for instance in self._plugins.values():
            for key, name in getattr(instance.plugin, "producers", {}).items():
                producer = self._resolve(name, (DataProducer,), f"plugins ({instance.name})")
                if producer.plugin.produces.name != key.name:
                    message = f"plugins ({instance.name}): {name!r} does not produce {key.name!r}"
                    raise ConfigError(message)

    def _order_producers(self) -> None:
        """Put each producer behind those of what it reads; ConfigError where that is a circle."""
        makers = {one.plugin.produces.name: one.name for one in self._all(DataProducer)}
        graph = {
            one.name: {makers[key.name] for key in getattr(one.plugin, "consumes", ())}
            for one in self._all(DataProducer)
        }
        try:
            order = list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            message = (
                f"plugins: producers read each other in a circle: {' -> '.join(error.args[1])}"
            )
            raise ConfigError(message) from error
        for name in order:
            self._plugins[name] = self._plugins.pop(name)

    def _all(self, kind: type[Any]) -> list[PluginInstance]:
        return [one for one in self._plugins.values() if isinstance(one.plugin, kind)]


def _check_keys(instance: PluginInstance) -> None:
    """Refuse a plugin whose attribute keys are none: that is its author's mistake."""
    keys = [*getattr(instance.plugin, "consumes", ())]
    if isinstance(instance.plugin, DataProducer):
        keys.append(instance.plugin.produces)
    for key in keys:
        if not isinstance(key, AttributeKey):
            message = f"{instance.type}: {key!r} in consumes or produces is no AttributeKey"
            raise ConfigError(message)


def _weight(weight: float | None, place: str) -> float:
    if weight is None:
        return 1.0
    if not 0 <= weight <= MAX_WEIGHT:
        message = f"{place}.weight: {weight}, expected a number from 0 to {MAX_WEIGHT:g}"
        raise ConfigError(message)
    return weight


def _listed(names: Collection[str] | Any) -> str:
    return ", ".join(sorted(names)) or "none"
