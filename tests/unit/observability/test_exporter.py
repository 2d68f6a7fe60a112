"""The pages over a real socket on loopback."""

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics import exposition
from prometheus_client.registry import Collector

from epp.framework import ConfigError
from epp.observability import exporter
from epp.observability.metrics import Metrics
from epp.testing import endpoint

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003 - real sockets need real time

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
STATE = {"endpoints": [{"id": "default/a", "stale": False}]}
VIEWS = itertools.count(1)


def more() -> Mapping[str, object]:
    return {"views": next(VIEWS)}


@pytest.fixture
def registry() -> CollectorRegistry:
    metrics = Metrics()
    metrics.model("llama").started(1)
    metrics.watch_pool(lambda: [endpoint(updated_at=0.0)], lambda: 1.0)
    return metrics.registry


@asynccontextmanager
async def fetch(
    registry: CollectorRegistry,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[aiohttp.ClientResponse, bytes]]:
    async with (
        exporter.serve("127.0.0.1", 0, registry, lambda: STATE, {"/debug/more": more}) as site,
        aiohttp.ClientSession(
            auto_decompress=False, skip_auto_headers=["Accept", "Accept-Encoding"]
        ) as session,
        session.request(method, f"http://127.0.0.1:{site.port}{path}", headers=headers) as response,
    ):
        yield response, await response.read()


async def test_the_metrics_page_is_what_the_registry_holds(registry: CollectorRegistry) -> None:
    async with fetch(registry, "/metrics") as (response, body):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "Content-Encoding" not in response.headers
        assert body == generate_latest(registry)


async def test_a_reader_of_openmetrics_gets_it(registry: CollectorRegistry) -> None:
    async with fetch(registry, "/metrics", headers={"Accept": OPENMETRICS}) as (response, body):
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert body == exposition.generate_latest(registry, version="1.0.0")
        assert body.count(b"# EOF\n") == 1


async def test_a_reader_of_gzip_gets_it(registry: CollectorRegistry) -> None:
    async with fetch(registry, "/metrics", headers={"Accept-Encoding": "gzip"}) as (
        response,
        body,
    ):
        assert response.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(body) == generate_latest(registry)


@pytest.mark.parametrize(
    "accept",
    ["text/plain; version=x", "application/openmetrics-text; version=x.y", "*/*", ";;,,==", ""],
)
async def test_no_accept_header_breaks_the_page(accept: str, registry: CollectorRegistry) -> None:
    async with fetch(registry, "/metrics", headers={"Accept": accept}) as (response, body):
        assert response.status == 200
        assert b"epp_requests_total" in body


class TurnTaker(Collector):
    """A family that notes in which turn of the event loop it was asked for."""

    def __init__(self, turn: Callable[[], int]) -> None:
        self.turn = turn
        self.asked: list[int] = []

    def collect(self) -> Iterator[Metric]:
        for _ in range(3):
            self.asked.append(self.turn())
            yield GaugeMetricFamily("turns", "Turns.", self.turn())


async def test_the_event_loop_is_free_between_the_families(registry: CollectorRegistry) -> None:
    turns = itertools.count()
    now = [0]

    async def count_turns() -> None:
        for now[0] in turns:
            await asyncio.sleep(0)

    taker = TurnTaker(lambda: now[0])
    registry.register(taker)
    counting = asyncio.create_task(count_turns(), name="count-turns")
    async with fetch(registry, "/metrics"):
        counting.cancel()

    first, second, third = taker.asked
    assert first < second < third


async def test_the_state_is_json(registry: CollectorRegistry) -> None:
    async with fetch(registry, "/debug/state") as (response, body):
        assert response.headers["Content-Type"] == "application/json"
        assert json.loads(body) == STATE
        assert body.count(b"\n") == 0


async def test_the_state_is_pretty_for_people(registry: CollectorRegistry) -> None:
    async with fetch(registry, "/debug/state?pretty") as (_, body):
        assert json.loads(body) == STATE
        assert body.count(b"\n") > 3


async def test_further_pages_show_what_they_are_at_each_view(registry: CollectorRegistry) -> None:
    async with fetch(registry, "/debug/more") as (response, body):
        first = json.loads(body)["views"]
        assert response.headers["Content-Type"] == "application/json"
    async with fetch(registry, "/debug/more?pretty") as (_, body):
        assert json.loads(body) == {"views": first + 1}
        assert body.count(b"\n") > 1


async def test_what_is_not_plain_in_the_state_shows_its_type_only() -> None:
    page = exporter._json_page(lambda: {"lock": asyncio.Event()})
    response = await page(make_mocked_request("GET", "/debug/state"))

    assert response.body == b'{"lock":"<Event>"}'


async def test_the_index_names_every_page(registry: CollectorRegistry) -> None:
    async with fetch(registry, "/") as (response, body):
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert [line.split()[0] for line in body.decode().splitlines()] == sorted(
            ["/debug/more", *exporter.PAGES]
        )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("GET", "/nothing", 404, id="an unknown page"),
        pytest.param("POST", "/metrics", 405, id="a method that changes something"),
        pytest.param("DELETE", "/debug/state", 405, id="another one"),
    ],
)
async def test_what_is_not_there_is_refused(
    method: str, path: str, status: int, registry: CollectorRegistry
) -> None:
    async with fetch(registry, path, method) as (response, body):
        assert response.status == status
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert len(body) < 50


async def test_the_port_is_free_again_afterwards(registry: CollectorRegistry) -> None:
    async with exporter.serve("127.0.0.1", 0, registry, dict) as first:
        pass
    async with exporter.serve("127.0.0.1", first.port, registry, dict) as second:
        assert second.port == first.port


async def test_an_address_that_is_taken_is_an_error(registry: CollectorRegistry) -> None:
    async with exporter.serve("127.0.0.1", 0, registry, dict) as site:
        with pytest.raises(ConfigError, match="in use"):
            async with exporter.serve("127.0.0.1", site.port, registry, dict):
                pass
