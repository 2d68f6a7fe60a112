"""
Data producers: run in the order of configuration, contained, the waiting ones under a deadline.

What a producer does not deliver, because it raised or the time was over, is simply not known: every
consumer can bear that.
"""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from epp.framework import EndpointView, EPPError, InferenceRequest, PluginInstance
from epp.observability.metrics import Metrics, PluginCall


class Producers:
    """The producers of a configuration, those that compute apart from those that wait."""

    def __init__(
        self, instances: Sequence[PluginInstance], metrics: Metrics, *, deadline_seconds: float
    ) -> None:
        calls = [(one.plugin, metrics.plugin("data-producer", one)) for one in instances]
        self._waiting = [one for one in calls if inspect.iscoroutinefunction(one[0].produce)]
        self._computing = [one for one in calls if one not in self._waiting]
        self._deadline_seconds = deadline_seconds

    async def run(self, request: InferenceRequest, endpoints: EndpointView) -> None:
        """Fill in the request's attributes; suspends only where a producer waits."""
        for plugin, call in self._computing:
            self._compute(plugin, call, request, endpoints)
        if self._waiting:
            await self._wait(request, endpoints)

    def _compute(
        self, plugin: Any, call: PluginCall, request: InferenceRequest, endpoints: EndpointView
    ) -> None:
        try:
            with call:
                request.attributes.put(plugin.produces, plugin.produce(request, endpoints))
        except EPPError:
            return

    async def _wait(self, request: InferenceRequest, endpoints: EndpointView) -> None:
        """Run the waiting producers side by side until all are done or the deadline is over."""
        # The request may have been begun outside a task, which the time-out needs: a door makes it
        # one where it suspends.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self._deadline_seconds), asyncio.TaskGroup() as group:
                for plugin, call in self._waiting:
                    group.create_task(
                        self._await_one(plugin, call, request, endpoints),
                        name=f"producer {plugin.produces.name}",
                    )
        except TimeoutError:
            return

    async def _await_one(
        self, plugin: Any, call: PluginCall, request: InferenceRequest, endpoints: EndpointView
    ) -> None:
        try:
            value = await call.wait(plugin.produce(request, endpoints))
            request.attributes.put(plugin.produces, value)
        except EPPError:
            return
