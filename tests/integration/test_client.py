"""`epp send`: a gateway played for one request, in each body mode."""

import json
from pathlib import Path
from typing import Any

import pytest

from epp.app import Options, running
from epp.extproc import client

pytestmark = [
    pytest.mark.looptime(False),  # noqa: FBT003 - real sockets need real time
    pytest.mark.timeout(30),
]

BODY = b'{"model":"m","prompt":"hello"}'


async def played(tmp_path: Path, *, secure: bool = True, **fields: Any) -> list[dict[str, Any]]:
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints: [{name: a, address: 127.0.0.1, port: 1}]\n")
    options = Options(
        bind_address="127.0.0.1",
        grpc_port=0,
        grpc_health_port=0,
        metrics_port=0,
        endpoints_file=endpoints,
        secure_serving=secure,
    )
    given: dict[str, Any] = {"headers": [("X-A", "1")], "body": BODY, "path": "/v1/completions"}
    request = client.PlayedRequest(**(given | fields))
    async with running(options) as app:
        assert app.ports is not None
        address = f"127.0.0.1:{app.ports.grpc}"
        lines = [
            json.loads(line)
            async for line in client.play(
                address, request, plaintext=not secure, timeout_seconds=10
            )
        ]
        assert app.metrics.registry.get_sample_value("epp_streams_open") == 0
    return lines


@pytest.mark.parametrize(
    ("mode", "phases"),
    [
        ("full-duplex", ["request_headers", "request_body"]),
        ("buffered", ["request_headers", "request_body"]),
        ("streamed", ["request_headers", "request_body"]),
        ("none", ["request_headers"]),
        ("unconfigured", ["request_headers"]),
    ],
)
async def test_each_mode_shows_its_replies(tmp_path: Path, mode: str, phases: list[str]) -> None:
    replies = await played(tmp_path, mode=mode)

    assert phases == [next(key for key in reply if key != "dynamic_metadata") for reply in replies]
    assert "127.0.0.1:1" in json.dumps(replies)


async def test_bodies_are_shown_as_text(tmp_path: Path) -> None:
    replies = await played(tmp_path, mode="full-duplex", secure=False)

    mutation = replies[1]["request_body"]["response"]["body_mutation"]
    assert mutation["streamed_response"] == {"body": BODY.decode(), "end_of_stream": True}


async def test_a_request_without_a_body_is_a_get(tmp_path: Path) -> None:
    (reply,) = await played(tmp_path, mode="full-duplex", body=None, path="/v1/models")

    assert "request_headers" in reply


@pytest.mark.parametrize("mode", ["full-duplex", "buffered"])
async def test_a_refusal_is_shown(tmp_path: Path, mode: str) -> None:
    replies = await played(tmp_path, mode=mode, body=b"{")

    assert replies[-1]["immediate_response"]["status"] == {"code": "BadRequest"}


async def test_a_large_body_goes_in_pieces(tmp_path: Path) -> None:
    body = b'{"model":"m","prompt":"%s"}' % (b"x" * 200_000)

    replies = await played(tmp_path, mode="full-duplex", body=body)

    assert [next(iter(reply)) for reply in replies[1:]] == ["request_body"] * 4
