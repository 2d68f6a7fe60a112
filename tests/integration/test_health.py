"""gRPC health over a real connection: who is told what, before and after the picker is ready."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.app import TRANSPORTS
from epp.extproc.health import Health
from epp.extproc.messages import SERVICE
from support.core import Core

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003 - real sockets need real time

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture(params=TRANSPORTS)
async def health(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Health, Any]]:
    app = Core().app
    door = TRANSPORTS[request.param](app.director, app.metrics, app.health, max_body_bytes=1000)
    port = await door.listen("127.0.0.1", 0, only_health=True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield app.health, health_pb2_grpc.HealthStub(channel)
    await door.close()


async def check(stub: Any, name: str) -> int:
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


@pytest.mark.parametrize("name", ["", "readiness", SERVICE])
async def test_readiness_follows_the_picker(health: tuple[Health, Any], name: str) -> None:
    state, stub = health
    seen = [await check(stub, name)]
    for ready in (True, False):
        state.set_ready(ready=ready)
        seen.append(await check(stub, name))

    assert seen == [NOT_SERVING, SERVING, NOT_SERVING]


async def test_liveness_does_not(health: tuple[Health, Any]) -> None:
    assert await check(health[1], "liveness") == SERVING


async def test_an_unknown_name_is_not_found(health: tuple[Health, Any]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await check(health[1], "nope")

    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_is_told_of_every_change(health: tuple[Health, Any]) -> None:
    state, stub = health
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    seen = [(await watch.read()).status]
    state.set_ready(ready=True)
    seen.append((await watch.read()).status)
    watch.cancel()

    assert seen == [NOT_SERVING, SERVING]


async def test_all_names_are_listed(health: tuple[Health, Any]) -> None:
    listed = (await health[1].List(health_pb2.HealthListRequest())).statuses

    assert {name: response.status for name, response in listed.items()} == {
        "": NOT_SERVING,
        "liveness": SERVING,
        "readiness": NOT_SERVING,
        SERVICE: NOT_SERVING,
    }
