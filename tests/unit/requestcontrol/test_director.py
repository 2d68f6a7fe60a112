"""One request's life: what it takes, what it is told, what is written of it."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from epp.framework import EndpointId, RawRequest, TerminationCause
from epp.framework.datalayer import EndpointUpserted
from epp.observability import logs
from support import wire
from support.core import Core
from support.plugins import registry

EVENTS = {"content-type": "text/event-stream"}


async def test_a_client_that_leaves_while_a_producer_waits_is_counted_as_gone(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: slow-producer, parameters: {seconds: 60}}]\n"
    )
    core = Core(config=config, registry=registry(), answer_timeout=30)
    raw = RawRequest(wire.POST, wire.COMPLETION)
    task = asyncio.create_task(core.app.director.handle_request(raw))
    await asyncio.sleep(1)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert core.metric("epp_request_errors_total", model="m", code="499", reason="") == 1
    assert core.total("epp_requests_running") == 0
    assert core.in_flight == 0


async def test_a_producer_that_waits_a_little_is_waited_for(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: slow-producer, parameters: {seconds: 0.2}}]\n"
    )
    core = Core(config=config, registry=registry())
    routed = await core.app.director.handle_request(RawRequest(wire.POST, wire.COMPLETION))

    assert routed.request.attributes._values == {"slow": "in time"}


async def test_a_request_that_another_endpoint_served_counts_there() -> None:
    core = Core([{"name": "a"}, {"name": "b"}])
    director = core.app.director
    routed = await director.handle_request(RawRequest(wire.POST, wire.COMPLETION))
    chosen = routed.endpoint
    (other,) = [one for one in core.app.datastore.endpoints() if one.id != chosen.id]

    director.on_response_headers(
        routed, status=200, media="json", served=other.destination, body_follows=True
    )

    assert (chosen.load.in_flight, other.load.in_flight) == (0, 1)


async def test_a_stranger_that_served_changes_nothing() -> None:
    core = Core()
    director = core.app.director
    routed = await director.handle_request(RawRequest(wire.POST, wire.COMPLETION))

    director.on_response_headers(
        routed, status=200, media="json", served="10.9.9.9:1", body_follows=True
    )

    assert routed.endpoint.load.in_flight == 1


async def test_requests_of_an_endpoints_earlier_life_do_not_touch_its_next() -> None:
    core = Core([{"name": "a"}])
    director = core.app.director
    raw = RawRequest(wire.POST, wire.COMPLETION)
    routed = [await director.handle_request(raw) for _ in range(5)]

    core.add(0, {"name": "a", "port": 9000})
    core.add(0, {"name": "a"})
    for one in routed:
        director.finish(one, TerminationCause.COMPLETED)
        director.finish(one, TerminationCause.COMPLETED)

    assert core.in_flight == 0
    assert core.total("epp_requests_finished_total") == 5


async def test_the_model_server_is_told_the_request_id_where_the_client_sent_none() -> None:
    replies = await Core().play([wire.headers(), wire.body()])

    assert len(wire.set_headers(replies[0])["x-request-id"]) == 36


async def test_control_headers_of_the_client_are_removed_upstream() -> None:
    sent = {
        "x-gateway-destination-endpoint": "10.0.0.9:1",
        "x-gateway-destination-endpoint-subset": "10.0.0.9:1",
        "x-prefiller-host-port": "10.0.0.9:1",
        "x-llm-d-inference-objective": "vip",
        "x-other": "1",
    }

    replies = await Core().play([wire.headers(wire.POST | sent), wire.body()])

    assert wire.destination(replies[0]) == "192.168.1.1:8000"
    assert wire.removed(replies[0]) == sent.keys() - {
        "x-other",
        "x-gateway-destination-endpoint",
    }


async def test_several_picks_are_a_comma_list_with_the_best_first(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: queue-scorer}, {type: max-score-picker,"
        " parameters: {maxNumOfEndpoints: 2}}]\n"
    )
    core = Core([{"q": 5}, {"q": 0}, {"q": 1}], config=config)

    assert await core.pick() == "192.168.1.2:8000,192.168.1.3:8000"


async def test_a_burst_between_two_scrapes_spreads(tmp_path: Path) -> None:
    core = Core([{"name": name} for name in "abcd"])
    raw = RawRequest({":path": "/unknown"}, None)

    routed = [await core.app.director.handle_request(raw) for _ in range(100)]

    counts = [one.load.in_flight for one in core.app.datastore.endpoints()]
    assert sum(counts) == len(routed)
    assert max(counts) - min(counts) <= 1


async def test_equal_endpoints_share_equally() -> None:
    core = Core([{"name": name} for name in "abc"])
    raw = RawRequest({":path": "/unknown"}, None)
    picked = []
    for _ in range(300):
        routed = await core.app.director.handle_request(raw)
        core.app.director.finish(routed, TerminationCause.COMPLETED)
        picked.append(routed.endpoint.id.name)

    assert all(60 < picked.count(name) < 140 for name in "abc")


async def test_an_endpoint_that_was_never_scraped_is_not_the_favourite() -> None:
    core = Core([{"name": name, "q": 5, "kv": 0.5} for name in "abcd"])
    core.app.datastore.apply(EndpointUpserted(EndpointId("default", "new"), "192.168.1.9", 8000))
    picked = [await core.pick() for _ in range(100)]

    assert 0 < picked.count("192.168.1.9:8000") <= 40


async def test_first_byte_and_tokens_are_counted_once(tmp_path: Path) -> None:
    core = Core()
    usage = b'data: {"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n'
    pieces = [wire.response_body(usage % at) for at in (1, 2, 3)]

    await core.play(
        [
            wire.headers(),
            wire.body(),
            wire.response_headers(EVENTS),
            *pieces,
            wire.response_body(b"", end=True),
        ]
    )

    assert core.metric("epp_completion_tokens_sum", model="m") == 3
    assert core.metric("epp_prompt_tokens_count", model="m") == 1
    assert core.metric("epp_time_to_first_byte_seconds_count", model="m", streaming="true") == 1


@pytest.mark.parametrize(
    "usage", ["null", '"n/a"', '{"prompt_tokens":"x"}', '{"prompt_tokens":-1}', "[]"]
)
async def test_malformed_usage_touches_neither_bytes_nor_counts(usage: str) -> None:
    core = Core()
    body = f'{{"usage":{usage}}}'.encode()

    replies = await core.play(
        [wire.headers(), wire.body(), wire.response_headers(), wire.response_body(body, end=True)]
    )

    assert wire.streamed(replies, "response_body") == (body, 1)
    assert not core.metric("epp_prompt_tokens_count", model="m")


async def test_one_line_is_written_of_each_request() -> None:
    written = io.BytesIO()
    core = Core(log=logs.configure(verbosity=2, stream=written))
    head = wire.headers(wire.POST | {"x-request-id": "r-1", "x-llm-d-model-name-rewrite": "lora"})

    await core.play(
        [head, wire.body(), wire.response_headers(), wire.response_body(b"{}", end=True)]
    )
    await core.play([wire.headers(), wire.body(b"{")])

    done, refused = [json.loads(line) for line in written.getvalue().splitlines()]
    assert done["event"] == refused["event"] == "request"
    assert (done["request_id"], done["model"], done["target_model"]) == ("r-1", "m", "lora")
    assert (done["endpoint"], done["status"], done["cause"]) == (
        "192.168.1.1:8000",
        200,
        "completed",
    )
    assert (refused["status"], refused["error"]) == (400, "BadRequest")


async def test_names_that_clients_choose_are_cut_in_the_log() -> None:
    written = io.BytesIO()
    core = Core(log=logs.configure(verbosity=2, stream=written))
    head = wire.headers(wire.POST | {"x-request-id": "r" * 10_000})

    await core.play([head, wire.body(b'{"model":"%s","prompt":"p"}' % (b"m" * 10_000))])

    assert len(written.getvalue()) < 1000


async def test_model_names_cannot_fill_the_memory() -> None:
    core = Core()

    for at in range(2000):
        await core.play([wire.headers(), wire.body(b'{"model":"m-%d","prompt":"p"}' % at)])

    families = core.app.metrics.registry.collect()
    models = {
        sample.labels["model"]
        for family in families
        for sample in family.samples
        if "model" in sample.labels
    }
    assert len(models) <= 202
    assert "other" in models
