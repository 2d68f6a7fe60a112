"""What a call of a plugin counts, what it logs, and what it lets out."""

import asyncio
import io
import json

import pytest
from prometheus_client import CollectorRegistry

from epp.framework import BadRequest, EPPError, PluginFailed, PluginInstance
from epp.observability import logs
from epp.observability.metrics import Metrics, PluginCall

CANARY = "CANARY-of-a-prompt"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def call(registry: CollectorRegistry, clock: Clock) -> PluginCall:
    metrics = Metrics(registry, clock=clock)
    return metrics.plugin("scorer", PluginInstance("queue-scorer", "queue", object()))


@pytest.fixture
def log(stream: io.BytesIO) -> io.BytesIO:
    logs.configure(verbosity=2, stream=stream)
    return stream


def value(registry: CollectorRegistry, name: str) -> float | None:
    labels = {"extension_point": "scorer", "type": "queue-scorer", "name": "queue"}
    return registry.get_sample_value(name, labels)


def fail(call: PluginCall, error: BaseException) -> None:
    with call:
        raise error


def fail_as_plugin(call: PluginCall) -> PluginFailed:
    with pytest.raises(PluginFailed) as caught:
        fail(call, ValueError(CANARY))
    return caught.value


def test_a_call_is_timed(call: PluginCall, clock: Clock, registry: CollectorRegistry) -> None:
    with call:
        clock.now += 0.25

    assert value(registry, "epp_plugin_duration_seconds_sum") == 0.25
    assert value(registry, "epp_plugin_duration_seconds_count") == 1
    assert value(registry, "epp_plugin_errors_total") == 0


def test_a_failure_names_the_plugin_and_chains_the_cause(call: PluginCall) -> None:
    failed = fail_as_plugin(call)

    assert (failed.extension_point, failed.plugin_type, failed.name) == (
        "scorer",
        "queue-scorer",
        "queue",
    )
    assert isinstance(failed.__cause__, ValueError)


def test_a_failure_is_timed_and_counted(call: PluginCall, registry: CollectorRegistry) -> None:
    fail_as_plugin(call)

    assert value(registry, "epp_plugin_duration_seconds_count") == 1
    assert value(registry, "epp_plugin_errors_total") == 1


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(BadRequest("no model"), id="a refusal by a parser"),
        pytest.param(PluginFailed("picker", "a", "b"), id="the failure of a plugin inside"),
    ],
)
def test_an_answer_passes_through_uncounted(
    error: EPPError, call: PluginCall, registry: CollectorRegistry, log: io.BytesIO
) -> None:
    with pytest.raises(EPPError) as caught:
        fail(call, error)

    assert caught.value is error
    assert value(registry, "epp_plugin_errors_total") == 0
    assert log.getvalue() == b""


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), KeyboardInterrupt()],
    ids=["cancellation", "interruption"],
)
def test_what_is_no_failure_of_the_plugin_passes_through(
    error: BaseException, call: PluginCall, registry: CollectorRegistry
) -> None:
    with pytest.raises(type(error)) as caught:
        fail(call, error)

    assert caught.value is error
    assert value(registry, "epp_plugin_errors_total") == 0


def test_a_failure_is_logged_with_its_frames_and_without_its_message(
    call: PluginCall, log: io.BytesIO
) -> None:
    fail_as_plugin(call)

    line = json.loads(log.getvalue())
    assert line["event"] == "plugin failed"
    assert (line["extension_point"], line["plugin_type"], line["plugin_name"]) == (
        "scorer",
        "queue-scorer",
        "queue",
    )
    assert line["exception"] == "ValueError"
    assert "in fail" in line["traceback"]
    assert CANARY.encode() not in log.getvalue()


def test_failures_are_logged_once_in_ten_seconds(
    call: PluginCall, clock: Clock, registry: CollectorRegistry, log: io.BytesIO
) -> None:
    for seconds in (0.0, 1.0, 8.9, 0.2):
        clock.now += seconds
        fail_as_plugin(call)

    failures = [json.loads(line)["failures"] for line in log.getvalue().splitlines()]
    assert failures == [1, 3]
    assert value(registry, "epp_plugin_errors_total") == 4


def test_a_call_can_be_entered_again_after_a_failure(
    call: PluginCall, registry: CollectorRegistry
) -> None:
    fail_as_plugin(call)
    with call:
        pass

    assert value(registry, "epp_plugin_duration_seconds_count") == 2


async def answer(after: float) -> str:
    await asyncio.sleep(after)
    return "answer"


async def fail_later() -> None:
    await asyncio.sleep(1)
    raise ValueError(CANARY)


async def test_calls_that_wait_may_overlap(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry, clock=asyncio.get_running_loop().time)
    call = metrics.plugin("scorer", PluginInstance("queue-scorer", "queue", object()))
    answers = await asyncio.gather(call.wait(answer(3.0)), call.wait(answer(1.0)))

    assert answers == ["answer", "answer"]
    assert value(registry, "epp_plugin_duration_seconds_sum") == pytest.approx(4.0)


async def test_a_call_that_waits_fails_as_a_plain_one(
    call: PluginCall, registry: CollectorRegistry, log: io.BytesIO
) -> None:
    with pytest.raises(PluginFailed) as caught:
        await call.wait(fail_later())

    assert isinstance(caught.value.__cause__, ValueError)
    assert value(registry, "epp_plugin_errors_total") == 1
    assert "in fail_later" in json.loads(log.getvalue())["traceback"]


async def test_a_call_that_waits_can_be_cancelled(
    call: PluginCall, registry: CollectorRegistry
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await call.wait(answer(60.0))

    assert value(registry, "epp_plugin_duration_seconds_count") == 1
    assert value(registry, "epp_plugin_errors_total") == 0
