"""
A picker without its ports: the real configuration, plugins, scheduler and director, in this
process.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from epp.app import App, Options
from epp.extproc.messages import ProcessingRequest, ProcessingResponse
from epp.framework import EndpointId, EndpointUpdate, Registry
from epp.framework.datalayer import EndpointUpserted, Synced
from epp.observability.logs import RequestLog
from support import doors, wire

LIMIT = 1 << 20


class Core:
    """The parts of a picker that decide, over endpoints given as plain data."""

    def __init__(
        self,
        pods: Sequence[Mapping[str, Any]] = ({},),
        *,
        config: Path | None = None,
        registry: Registry | None = None,
        log: RequestLog | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """
        `pods` are written as the case files write them: name, ip, port, q, kv, run, loras, wloras.
        `seed` decides what falls to chance. Further arguments are fields of the app's options.
        """
        self.app = App(
            Options(endpoints_file=Path("not-read"), config_file=config, **options),
            registry=registry,
            log=log,
            rng=Random(seed),
        )
        for at, pod in enumerate(pods):
            self.add(at, pod)
        self.app.datastore.apply(Synced())

    def add(self, at: int, pod: Mapping[str, Any]) -> None:
        """Add an endpoint; unnamed ones are called as in the field's tests."""
        name = EndpointId("default", pod.get("name", f"pod-{at}"))
        address = pod.get("ip", f"192.168.1.{at + 1}")
        self.app.datastore.apply(EndpointUpserted(name, address, pod.get("port", 8000)))
        update = EndpointUpdate(
            waiting=pod.get("q", 0),
            running=pod.get("run", 0),
            kv_usage=pod.get("kv", 0.0),
            running_adapters=frozenset(pod.get("loras", ())),
            waiting_adapters=frozenset(pod.get("wloras", ())),
            max_adapters=pod.get("max", 0),
        )
        self.app.datastore.record(name, update, in_flight=0)

    @property
    def in_flight(self) -> int:
        """Requests in flight over all endpoints; fails where one is below zero."""
        counts = [endpoint.load.in_flight for endpoint in self.app.datastore.endpoints()]
        assert min(counts, default=0) >= 0
        return sum(counts)

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one metric series."""
        return self.app.metrics.registry.get_sample_value(name, labels)

    def total(self, name: str) -> float:
        """The sum of all series of a metric."""
        return sum(
            sample.value
            for family in self.app.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name
        )

    async def play(self, sent: Iterable[ProcessingRequest]) -> list[ProcessingResponse]:
        """Send messages, half-close, and return every reply."""
        return wire.parsed(await doors.converse(self.app, sent, LIMIT))

    async def pick(self, body: bytes = wire.COMPLETION, **head: Any) -> str | None:
        """Return where a full-duplex request would go; None where it is refused."""
        replies = await self.play([wire.headers(**head), wire.body(body)])
        return (
            None if wire.kinds(replies) == ["immediate_response"] else wire.destination(replies[0])
        )
