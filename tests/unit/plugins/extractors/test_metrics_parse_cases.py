"""
The field's cases of reading metrics, one test each: what must hold, and what should.

A case's `then` is checked on the endpoint in the datastore, since values that a page does not
mention come from there.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.datalayer.collector import Collector
from epp.datalayer.datastore import Datastore
from epp.framework import (
    DataSource,
    Endpoint,
    EndpointId,
    EndpointUpdate,
    EndpointUpserted,
    ScrapeError,
)
from epp_plugins.extractors.model_server_metrics import EngineConfig, ModelServerMetricsExtractor
from epp_plugins.extractors.model_server_metrics.exposition import Scanner, Selector

Case = dict[str, Any]

FILE = Path(__file__).parents[3] / "data" / "cases" / "metrics-parse.yaml"
CASES: dict[str, Case] = {
    case["id"]: case
    for case in yaml.safe_load(FILE.read_text())
    if case["binding"] in ("must", "should")
}

ELSEWHERE = {
    "met-024-pool-gauges": "averages of the pool are the business of the metrics page",
    "met-026-refresh-interval": "the floor of the interval is the business of the command line",
}

PARSE_ERRORS = {"none": 0, "one parse error counted": 1}

ID = EndpointId("default", "a")


class Page(DataSource[bytes]):
    """Gives one page, or fails in one way, for ever."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer

    async def poll(self, endpoint: Endpoint) -> bytes:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def aclose(self) -> None:
        """Nothing is open."""


class Counts:
    """Counts scrapes, good and bad."""

    def __init__(self) -> None:
        self.updates: list[EndpointUpdate] = []
        self.failures: list[str] = []

    def scraped(self, endpoint: Endpoint, seconds: float, update: EndpointUpdate) -> None:
        self.updates.append(update)

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        self.failures.append(reason)


async def scrape(
    datastore: Datastore, extractor: ModelServerMetricsExtractor, answer: bytes | Exception
) -> Counts:
    """Scrape the one endpoint once."""
    counts = Counts()
    datastore.apply(EndpointUpserted(ID, "10.0.0.1", 8000))
    collector = Collector(datastore, Page(answer), extractor, counts, interval=1000)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(collector.run())
        await asyncio.sleep(1000)
        task.cancel()
    return counts


def fresh() -> Datastore:
    return Datastore(clock=asyncio.get_running_loop().time)


def extractor_of(given: Case) -> ModelServerMetricsExtractor:
    if "mapping" in given:
        mapping = given["mapping"]
        engine = EngineConfig(
            name="mapped",
            queued_requests_spec=mapping["waiting"],
            kv_usage_spec=mapping["kv"],
            lora_spec=mapping["lora"],
        )
        return ModelServerMetricsExtractor(default_engine="mapped", engine_configs=[engine])
    if "engineConfigs" in given:
        (config,) = given["engineConfigs"]
        engine = EngineConfig(name=config["name"], lora_spec=config["loraSpec"])
        return ModelServerMetricsExtractor(engine_configs=[engine])
    return ModelServerMetricsExtractor(default_engine=given["engine"])


async def check_values(case: Case) -> None:
    """Whatever `then` names of the endpoint's values, after one scrape of the page."""
    datastore = fresh()
    page = case["when"][0]["scrape"].encode()
    counts = await scrape(datastore, extractor_of(case["given"]), page)
    expected = case["then"].get("head", case["then"])

    assert actual_values(datastore, expected) == comparable(expected)
    assert counts.failures == []
    assert counts.updates[0].parse_errors == PARSE_ERRORS[expected.get("error", "none")]


def actual_values(datastore: Datastore, expected: Case) -> Case:
    metrics = datastore.endpoints()[0].metrics
    values = {
        "q": metrics.waiting,
        "run": metrics.running,
        "kv": metrics.kv_usage,
        "loras": metrics.running_adapters,
        "wloras": metrics.waiting_adapters,
        "max": metrics.max_adapters,
        "block_size": metrics.block_size,
        "num_blocks": metrics.num_blocks,
    }
    return {name: value for name, value in values.items() if name in expected}


def comparable(expected: Case) -> Case:
    return {
        name: frozenset(value) if isinstance(value, list) else value
        for name, value in expected.items()
        if name not in ("note", "error")
    }


async def check_nothing_usable(case: Case) -> None:
    answers: dict[str, bytes | Exception] = {
        "empty scrape body": b"",
        "scrape without any known family": b"python_info 1\nprocess_open_fds 12\n",
        "HTTP 500": ScrapeError("status", "expected status 200, got 500"),
        "connection refused": ScrapeError("connect", "connection refused"),
        "timeout": TimeoutError(),
    }
    before = case["given"]["previous"]
    for row in case["when"]["table"]:
        datastore = fresh()
        extractor = ModelServerMetricsExtractor()
        page = f"vllm:num_requests_waiting {before['q']}\nvllm:kv_cache_usage_perc {before['kv']}\n"
        await scrape(datastore, extractor, page.encode())
        (earlier,) = datastore.endpoints()
        counts = await scrape(datastore, extractor, answers[row])
        await asyncio.sleep(3000)  # three intervals: what failed once more is stale
        datastore.record_failure(ID)
        (endpoint,) = datastore.endpoints()

        assert (earlier.metrics.waiting, earlier.metrics.kv_usage) == (before["q"], before["kv"])
        assert endpoint.metrics == earlier.metrics
        assert endpoint.stale
        assert len(counts.failures) == 1


async def check_never_scraped(case: Case) -> None:
    datastore = fresh()
    refused = ScrapeError("connect", "connection refused")
    await scrape(datastore, ModelServerMetricsExtractor(), refused)
    expected = case["then"]

    assert actual_values(datastore, expected) == comparable(expected)
    assert datastore.endpoints()[0].stale


async def check_label_matching(case: Case) -> None:
    lines = [line.replace("@", "") for line in case["given"]["series"]]
    page = "\n".join([*lines, "# TYPE empty_metric gauge"]).encode()
    found = []
    for spec in case["when"]["table_spec"]:
        selector = Selector.parse(spec)
        samples = Scanner([selector.name]).scan(page).series(selector)
        found.append(f"{samples[0].value:g}" if samples else "error")

    assert found == case["then"]["table"]


KINDS = {
    "gauge 42.5 for kv": "# TYPE m gauge\nm 42.5\n",
    "gauge 3.7 for waiting": "# TYPE m gauge\nm 3.7\n",
    "counter 99.9": "# TYPE m counter\nm 99.9\n",
    "summary or histogram": '# TYPE m summary\nm{quantile="0.5"} 3\nm_count 1\n',
    "family declared but without samples": "# TYPE m gauge\n",
}


async def check_kinds(case: Case) -> None:
    """On the page itself, where KV usage is not yet held to be a fraction."""
    selector = Selector("m")
    for row, expected in zip(case["when"]["table"], case["then"]["table"], strict=True):
        samples = Scanner(["m"]).scan(KINDS[row].encode()).series(selector)
        if row == "gauge 3.7 for waiting":
            engine = EngineConfig(name="mine", queued_requests_spec="m")
            extractor = ModelServerMetricsExtractor(default_engine="mine", engine_configs=[engine])
            datastore = fresh()
            await scrape(datastore, extractor, KINDS[row].encode())
            found = str(datastore.endpoints()[0].metrics.waiting)
        else:
            found = f"{samples[0].value:g}" if samples else "error"

        assert found == expected.split(" ")[0]


async def check_disabled(case: Case) -> None:
    extractor = extractor_of(case["given"])
    without = b"vllm:num_requests_waiting 4\n"
    with_family = without + b'vllm:lora_requests_info{running_lora_adapters="a"} 1\n'
    for page in (without, with_family):
        datastore = fresh()
        counts = await scrape(datastore, extractor, page)

        assert actual_values(datastore, case["then"]) == comparable(case["then"])
        assert counts.updates[0].parse_errors == 0


CHECKS: dict[str, Callable[[Case], Any]] = {
    "met-010-nothing-usable": check_nothing_usable,
    "met-011-never-scraped": check_never_scraped,
    "met-013-label-matching": check_label_matching,
    "met-015-gauge-counter": check_kinds,
    "met-023-disabled-metric": check_disabled,
}


@pytest.mark.parametrize("name", CASES)
async def test_case(name: str) -> None:
    if name in ELSEWHERE:
        pytest.skip(ELSEWHERE[name])
    await CHECKS.get(name, check_values)(CASES[name])


def test_the_exceptions_are_cases() -> None:
    assert CHECKS.keys() | ELSEWHERE.keys() <= CASES.keys()
