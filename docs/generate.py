"""
The generated parts of the documentation: the tables of metrics and of plugins, made from the code.

Run as `python -m docs.generate` to write them, and with `--check` to fail where one is out of date.
The metrics table is made by using every instrument once and reading the page that results, so that
a metric that nothing can reach has no row; the plugin tables by loading every entry point of this
distribution.
"""

import argparse
import difflib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Metric

from epp.framework import (
    DataProducer,
    DataSource,
    EndpointDiscovery,
    EndpointUpdate,
    Extractor,
    Filter,
    FirstByteObserver,
    Parser,
    Picker,
    PluginInstance,
    PreRequest,
    ProfileHandler,
    Registry,
    ResponseCompletionObserver,
    ResponseHeaderProvider,
    Scorer,
    StateDumper,
    TerminationCause,
    Usage,
)
from epp.framework.registry import ENTRY_POINT_GROUP, parameter_schema
from epp.observability.metrics import Metrics
from epp.testing import endpoint

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTION = "endpoint-picker"
README_MARKERS = ("<!-- plugins -->\n", "<!-- /plugins -->")
SOURCE = "This page is made from the code by `make docs`; do not edit it."

EXTENSION_POINTS: Mapping[type[Any], tuple[str, str]] = {
    Parser: ("parser", "parse_request"),
    DataProducer: ("data producer", "produce"),
    ProfileHandler: ("profile handler", "pick_profiles"),
    Filter: ("filter", "filter"),
    Scorer: ("scorer", "score"),
    Picker: ("picker", "pick"),
    PreRequest: ("pre-request", "pre_request"),
    ResponseHeaderProvider: ("response headers", "response_headers"),
    FirstByteObserver: ("first-byte observer", "on_first_byte"),
    ResponseCompletionObserver: ("response observer", "on_response_complete"),
    EndpointDiscovery: ("endpoint discovery", "discover"),
    DataSource: ("data source", "poll"),
    Extractor: ("extractor", "extract"),
    StateDumper: ("state dumper", "dump_state"),
}
"""Each protocol's name in prose, and the verb by which a class is known to be one."""


class UnreachedMetric(Exception):
    """A metric without a sample: this generator does not know how to use it."""


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Write what is out of date, or with --check say what is; return the exit status."""
    options = argparse.ArgumentParser(prog="python -m docs.generate", description=main.__doc__)
    options.add_argument("--check", action="store_true", help="write nothing, fail instead")
    check = options.parse_args(arguments).check
    outdated = [(path, text) for path, text in pages(root).items() if _read(path) != text]
    for path, text in outdated:
        if check:
            sys.stdout.writelines(_difference(path.relative_to(root), _read(path), text))
        else:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(root)}\n")
    return 1 if check and outdated else 0


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Return what each generated file should hold; README.md only where it has the markers."""
    plugins = in_tree_plugins()
    wanted = {
        root / "docs" / "metrics.md": metrics_page(),
        root / "docs" / "plugins.md": plugins_page(plugins),
    }
    readme = _read(root / "README.md")
    if all(marker in readme for marker in README_MARKERS):
        wanted[root / "README.md"] = fill(readme, readme_table(plugins))
    return wanted


def in_tree_plugins() -> dict[str, type[Any]]:
    """Return the plugin classes of this distribution by type; raise ConfigError as Registry."""
    points = [
        point
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP)
        if point.dist is not None and point.dist.name == DISTRIBUTION
    ]
    registry = Registry(points)
    return {plugin_type: registry.load(plugin_type) for plugin_type in registry.types}


def metrics_page() -> str:
    """Return the page of all metrics."""
    rows = []
    for family in used_metrics().collect():
        if not family.samples:
            message = f"{family.name} has no sample: use it in used_metrics()"
            raise UnreachedMetric(message)
        labels = ", ".join(f"`{label}`" for label in family.samples[0].labels if label != "le")
        rows.append((f"`{_name(family)}`", family.type, labels, family.documentation))
    return _page(
        "Metrics",
        "What `/metrics` shows. Labels take values from closed sets, all but `model`, which clients"
        " choose: it has a thousand values at most, and `other` stands for those beyond.",
        _table(("name", "type", "labels", "meaning"), sorted(rows)),
    )


def used_metrics() -> CollectorRegistry:
    """Return a registry whose every instrument has been used once."""
    metrics = Metrics()
    model = metrics.model("llama")
    model.started(1)
    model.rejected(429, "rejected-saturated")
    model.first_byte(0.1, streaming=True)
    model.finished(1.0, TerminationCause.COMPLETED, 1, Usage(1, 1, 1))
    metrics.decision_seconds(0.001)
    with metrics.plugin("scorer", PluginInstance("queue-scorer", "queue-scorer", None)):
        pass
    one = endpoint(updated_at=0.0)
    metrics.pick(one)
    metrics.stream_opened()
    metrics.stream_closed("OK")
    metrics.connection_opened()
    metrics.http2_violation("stream", "PROTOCOL_ERROR")
    missing = frozenset({"waiting"})
    metrics.scrapes.scraped(one, 0.001, EndpointUpdate(missing=missing, parse_errors=1))
    metrics.watch_pool(lambda: [one], lambda: 0.0)
    metrics.loop_lag_seconds(0.0)
    metrics.config_reloaded(success=True)
    metrics.plugin_event("lora-affinity-scorer", "lora-foreign")
    metrics.draining(draining=False)
    return metrics.registry


def plugins_page(plugins: Mapping[str, type[Any]]) -> str:
    """Return the page of all plugins, a table for each extension point that has any."""
    parts = []
    for protocol, (kind, verb) in EXTENSION_POINTS.items():
        rows = [
            (f"`{plugin_type}`", summary(plugin), parameters(plugin))
            for plugin_type, plugin in plugins.items()
            if hasattr(plugin, verb)
        ]
        if rows:
            parts += [f"## {kind.capitalize()}", "", _first_paragraph(protocol), ""]
            parts += [_table(("type", "what it does", "parameters"), rows)]
    return _page(
        "Plugins",
        "The plugins that come with the picker, by extension point; a plugin may serve several."
        " The type is what `type` in an EndpointPickerConfig names.",
        "\n".join(parts),
    )


def readme_table(plugins: Mapping[str, type[Any]]) -> str:
    """Return the one table of all plugins."""
    rows = [
        (f"`{plugin_type}`", ", ".join(kinds(plugin)), summary(plugin))
        for plugin_type, plugin in plugins.items()
    ]
    return _table(("type", "kind", "what it does"), rows)


def fill(readme: str, table: str) -> str:
    """Return the text with the table between its markers."""
    opening, closing = README_MARKERS
    before, _, rest = readme.partition(opening)
    _, _, after = rest.partition(closing)
    return f"{before}{opening}{table}{closing}{after}"


def kinds(plugin: type[Any]) -> list[str]:
    """Return the names of the extension points that a plugin class serves."""
    return [kind for kind, verb in EXTENSION_POINTS.values() if hasattr(plugin, verb)]


def summary(plugin: type[Any]) -> str:
    """Return what a plugin does: the first paragraph of its module's docstring, or of its own."""
    module = inspect.getmodule(plugin)
    return (_first_paragraph(module) if module else "") or _first_paragraph(plugin)


def parameters(plugin: type[Any]) -> str:
    """Return a plugin's parameters with their types and defaults, as in YAML."""
    schema, _ = parameter_schema(plugin)
    return "<br>".join(_parameter(field) for field in msgspec.structs.fields(schema))


def _parameter(field: msgspec.structs.FieldInfo) -> str:
    shown = f"`{field.encode_name}`: {type_phrase(field.type)}"
    if field.default is not msgspec.NODEFAULT:
        return f"{shown}, default `{_yaml(field.default)}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"{shown}, default `{_yaml(field.default_factory())}`"
    return f"{shown}, required"


def type_phrase(wanted: Any) -> str:
    """Return a parameter's type in words, from its JSON schema."""
    (schema,), definitions = msgspec.json.schema_components([wanted])
    return _phrase(schema, definitions)


def _phrase(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _phrase(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    if "anyOf" in schema:
        return " or ".join(_phrase(one, definitions) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_phrase(schema.get('items') or {}, definitions)}"
    if "properties" in schema:
        members = (f"`{name}`" for name in schema["properties"])
        return f"object ({', '.join(members)})"
    if schema.get("type") == "object":
        return f"map to {_phrase(schema.get('additionalProperties') or {}, definitions)}"
    return " ".join([str(schema.get("type", "anything")), *_bounds(schema)])


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return (f"{sign} {schema[key]}" for key, sign in signs.items() if key in schema)


def _yaml(value: object) -> str:
    # JSON is YAML.
    return msgspec.json.encode(value).decode()


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _first_paragraph(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


def _page(title: str, introduction: str, body: str) -> str:
    return f"# {title}\n\n{introduction}\n\n{SOURCE}\n\n{body}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _difference(path: Path, found: str, wanted: str) -> Iterator[str]:
    yield from difflib.unified_diff(
        found.splitlines(keepends=True),
        wanted.splitlines(keepends=True),
        str(path),
        f"{path} (as the code says)",
        n=0,
    )


if __name__ == "__main__":
    sys.exit(main())
