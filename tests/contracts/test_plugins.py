"""Every in-tree plugin: loads through its entry point, conforms, is documented."""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from epp.framework import (
    ConfigError,
    DataProducer,
    DataSource,
    EndpointDiscovery,
    Extractor,
    Filter,
    Parser,
    Picker,
    ProfileHandler,
    Registry,
    Scorer,
)
from epp.framework.registry import ENTRY_POINT_GROUP
from epp.testing import assert_conforms

REGISTRY = Registry(
    point
    for point in entry_points(group=ENTRY_POINT_GROUP)
    if point.dist is not None and point.dist.name == "endpoint-picker"
)
REQUIRED: dict[str, dict[str, Any]] = {
    "by-label": {"label": "role", "validValues": ["a"]},
    "file-discovery": {"path": "endpoints.yaml"},
    "utilization-filter": {"conditions": [{"metric": "waiting-queue", "maxValue": 5}]},
}
KINDS = (
    Filter,
    Scorer,
    Picker,
    ProfileHandler,
    DataProducer,
    Parser,
    DataSource,
    Extractor,
    EndpointDiscovery,
)


def build(plugin_type: str) -> Any:
    return REGISTRY.build(plugin_type, plugin_type, REQUIRED.get(plugin_type, {})).plugin


@pytest.mark.parametrize("plugin_type", REGISTRY.types)
def test_it_has_the_verb_of_an_extension_point(plugin_type: str) -> None:
    plugin = build(plugin_type)

    assert any(isinstance(plugin, kind) for kind in KINDS)


@pytest.mark.parametrize(
    "plugin_type",
    [
        one
        for one in REGISTRY.types
        if isinstance(build(one), Scorer | Filter | Picker | ProfileHandler | DataProducer)
    ],
)
def test_it_conforms(plugin_type: str) -> None:
    assert_conforms(lambda: build(plugin_type))


@pytest.mark.parametrize("plugin_type", REGISTRY.types)
def test_it_is_documented(plugin_type: str) -> None:
    root = Path(__file__).parents[2]

    assert f"`{plugin_type}`" in (root / "README.md").read_text()
    assert f"`{plugin_type}`" in (root / "docs" / "plugins.md").read_text()


def test_a_type_claimed_by_two_is_refused() -> None:
    points = [*entry_points(group=ENTRY_POINT_GROUP)]
    twin = EntryPoint("queue-scorer", "elsewhere:Other", ENTRY_POINT_GROUP)

    with pytest.raises(ConfigError, match="'queue-scorer' is claimed twice"):
        Registry([*points, twin])


@pytest.mark.parametrize("value", ["no_such_module:X", "epp.testing:NoSuchClass"])
def test_a_type_that_cannot_be_loaded_says_whose_it_is(value: str) -> None:
    registry = Registry([EntryPoint("broken", value, ENTRY_POINT_GROUP)])

    with pytest.raises(ConfigError, match=r"plugin type 'broken' of .* cannot be loaded"):
        registry.load("broken")
