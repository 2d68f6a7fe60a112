"""SIGTERM: readiness falls at once, new streams are refused, running ones finish, exit 0."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.extproc import messages
from epp.extproc.messages import SERVICE
from stack import MODEL, Picker, gateway
from support import wire

LaunchPicker = Callable[..., contextlib.AbstractAsyncContextManager[Picker]]
LaunchSimulator = Callable[..., contextlib.AbstractAsyncContextManager[int]]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(port: int, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)).status


async def test_running_streams_finish_and_the_picker_ends_with_zero(
    launch_simulator: LaunchSimulator, launch_picker: LaunchPicker, folder: Path
) -> None:
    options = ["--base-ms", "100", "--token-us", "0", "--seq-ms", "0"]
    async with (
        launch_simulator(*options) as port,
        launch_picker([port]) as picker,
        gateway("full-duplex", {True: picker}, [port], folder) as (running, _),
        aiohttp.ClientSession() as session,
    ):
        request = {"model": MODEL, "prompt": "x", "max_tokens": 15, "stream": True}

        async def stream() -> bytes:
            async with session.post(f"{running.url}/v1/completions", json=request) as response:
                return await response.read()

        streams = [asyncio.create_task(stream()) for _ in range(20)]
        async with asyncio.timeout(10):
            while await picker.metric("epp_endpoint_in_flight") < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        before = await health(picker.ports.health, "")

        picker.child.process.send_signal(signal.SIGTERM)
        ready = SERVING
        async with asyncio.timeout(2):
            while ready == SERVING:
                ready = await health(picker.ports.health, "readiness")
        alive = await health(picker.ports.health, "liveness")
        async with session.post(f"{running.url}/v1/completions", json=request) as late:
            refused = late.status
        finished = await asyncio.gather(*streams)
        code = await asyncio.wait_for(picker.child.process.wait(), 5)

    assert (before, ready, alive) == (SERVING, NOT_SERVING, SERVING)
    assert refused >= 500
    assert all(text.rstrip().endswith(b"data: [DONE]") for text in finished)
    assert code == 0


async def test_idle_streams_do_not_hold_a_stop_up(
    launch_simulator: LaunchSimulator, launch_picker: LaunchPicker
) -> None:
    async with (
        launch_simulator() as port,
        launch_picker([port], "--secure-serving=false") as picker,
        grpc.aio.insecure_channel(f"127.0.0.1:{picker.ports.grpc}") as channel,
    ):
        process = channel.stream_stream(f"/{SERVICE}/Process")
        calls = [process() for _ in range(100)]
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        first = await watch.read()
        started = time.monotonic()

        picker.child.process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(picker.child.process.wait(), 10)
        seconds = time.monotonic() - started
        for call in calls:
            call.cancel()

    assert first.status == SERVING
    assert code == 0
    assert seconds < 5


async def test_streams_that_do_not_finish_are_cut_at_the_time_out(
    launch_simulator: LaunchSimulator, launch_picker: LaunchPicker
) -> None:
    async with (
        launch_simulator() as port,
        launch_picker([port], "--secure-serving=false", "--drain-timeout", "300ms") as picker,
        grpc.aio.insecure_channel(f"127.0.0.1:{picker.ports.grpc}") as channel,
    ):
        call = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=messages.ProcessingRequest.SerializeToString,
            response_deserializer=messages.ProcessingResponse.FromString,
        )()
        await call.write(wire.headers())
        await call.write(wire.body())
        await call.read()

        picker.child.process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(picker.child.process.wait(), 10)
        log = picker.child.text()

    assert code == 0
    assert '"cause":"drained"' in log
