import json
from pathlib import Path

import pytest

from epp.simulator.kv_events import KVEventPublisher, KVEventsConfig

CAPTURES = Path(__file__).with_name("captures")
ANYWHERE = "tcp://127.0.0.1:*"


def test_sources_are_told_as_a_real_server_tells_them():
    real = json.loads((CAPTURES / "kv_event_sources_dp2.json").read_bytes())
    given = '{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@pod-1@tiny-llama"'
    sut = KVEventsConfig.parse(given + ', "replay_endpoint": "tcp://*:5657"}')

    assert real == {str(rank): sut.source(rank) for rank in range(2)}
    assert list(sut.source(0)) == list(real["0"])


@pytest.mark.parametrize(
    ("endpoint", "of_rank"),
    [
        pytest.param("tcp://*:5557", "tcp://*:5560", id="tcp"),
        pytest.param("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", id="any port"),
        pytest.param("ipc:///tmp/kv", "ipc:///tmp/kv_dp3", id="not a port"),
    ],
)
def test_endpoints_of_ranks_differ(endpoint: str, of_rank: str):
    assert KVEventsConfig(endpoint=endpoint).source(3)["endpoint"] == of_rank


@pytest.mark.parametrize(
    ("text", "publishes"),
    [
        pytest.param("{}", False, id="nothing said"),
        pytest.param('{"enable_kv_cache_events": true}', True, id="enabled"),
        pytest.param('{"enable_kv_cache_events": true, "publisher": "null"}', False, id="null"),
        pytest.param('{"publisher": "zmq"}', False, id="not enabled"),
    ],
)
def test_events_are_published_where_they_are_enabled(text: str, publishes: bool):
    assert KVEventsConfig.parse(text).publishes is publishes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("{", "truncated", id="not JSON"),
        pytest.param('{"endpont": ""}', "unknown field `endpont`", id="a slip"),
        pytest.param('{"buffer_steps": -1}', r"buffer_steps", id="below zero"),
    ],
)
def test_a_flag_that_cannot_be_read_says_why(text: str, complaint: str):
    with pytest.raises(ValueError, match=f"--kv-events-config: .*{complaint}"):
        KVEventsConfig.parse(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"endpoint": "tcp://*"}, r"readers of KV events at tcp://\*: ", id="no port"),
        pytest.param(
            {"replay_endpoint": "nonsense"}, "replays of KV events at nonsense", id="replay"
        ),
        pytest.param({"endpoint": "tcp://host"}, "publish KV events to tcp://host", id="to a host"),
    ],
)
def test_an_endpoint_that_is_none_is_named(settings: dict[str, str], message: str):
    with pytest.raises(ValueError, match=f"cannot .*{message}"):
        KVEventPublisher(KVEventsConfig(**({"endpoint": ANYWHERE} | settings)))
