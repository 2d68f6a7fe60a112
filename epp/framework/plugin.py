"""
Plugins: an instance with its type and name, and what it may be given.

A plugin is a class whose keyword-only constructor is its parameter schema and whose one verb is its
extension point. It inherits nothing it does not want to, and does not know its own name.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class PluginContext:
    """
    What the framework offers a plugin: annotate a constructor parameter with this type to get it.

    `clock` returns monotonic seconds; `random` is the one source of randomness; `logger` carries
    the plugin's name. `count` counts an event of the plugin, by a name out of a few fixed ones, in
    the metric `epp_plugin_events_total`.
    """

    name: str
    clock: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=Random)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("epp.plugin"))
    count: Callable[[str], None] = field(default=lambda _event: None)


@dataclass(frozen=True, slots=True)
class PluginInstance:
    """A configured plugin; `parameters` are those given and, where none is, the defaults."""

    type: str
    name: str
    plugin: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class StateDumper(Protocol):
    """Shows a plugin's memory on /debug/state."""

    @abstractmethod
    def dump_state(self) -> Mapping[str, Any]:
        """Return a small JSON-able summary: counts and sizes, never anything of a prompt."""
        ...
