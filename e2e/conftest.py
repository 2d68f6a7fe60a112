"""
Real processes on free loopback ports: simulators, pickers and Envoys, stopped by id at the end.

One event loop serves the whole session, in real time, so that processes outlive single tests.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from epp.demo import processes
from stack import HERE, MODEL, Picker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.looptime(False))  # noqa: FBT003 - looptime's own form
            item.add_marker(pytest.mark.timeout(120))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


Launch = Callable[..., contextlib.AbstractAsyncContextManager[int]]


@pytest.fixture(scope="session")
def launch_simulator(folder: Path) -> Launch:
    """How to start a simulator: `async with launch_simulator(*options) as port`."""
    count = iter(range(1000))

    @contextlib.asynccontextmanager
    async def launch(*options: str) -> AsyncIterator[int]:
        argv = [processes.command("vllm-sim"), "serve", "--port", "0", "--model", MODEL, *options]
        async with processes.started(f"simulator-{next(count)}", argv, folder) as child:
            yield await processes.simulator(child)

    return launch


@pytest.fixture(scope="session")
def launch_picker(folder: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Picker]]:
    """How to start a picker over simulators' ports: `async with launch_picker(ports, ...)`."""
    count = iter(range(1000))

    @contextlib.asynccontextmanager
    async def launch(ports: Sequence[int], *options: str) -> AsyncIterator[Picker]:
        name = f"picker-{next(count)}"
        endpoints = folder / f"{name}-endpoints.yaml"
        endpoints.write_text(
            "endpoints:\n"
            + "".join(
                f"- {{name: s{at}, address: 127.0.0.1, port: {p}}}\n" for at, p in enumerate(ports)
            )
        )
        argv = [processes.command("epp"), "serve", "--endpoints-file", str(endpoints)]
        argv += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
        argv += ["--bind-address", "127.0.0.1", *options]
        async with processes.started(name, argv, folder) as child:
            yield Picker(child, await processes.picker(child))

    return launch


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def simulators(launch_simulator: Launch) -> AsyncIterator[list[int]]:
    """The ports of three quick simulators that take prompts of any size."""
    options = ["--time-scale", "0", "--max-model-len", "2000000", "--num-gpu-blocks", "300000"]
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(launch_simulator(*options)) for _ in range(3)]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pickers(
    simulators: list[int],
    launch_picker: Callable[..., contextlib.AbstractAsyncContextManager[Picker]],
) -> AsyncIterator[dict[bool, Picker]]:
    """Two pickers over the simulators: the one that serves TLS under True."""
    async with (
        launch_picker(simulators) as secure,
        launch_picker(simulators, "--secure-serving=false") as plain,
    ):
        yield {True: secure, False: plain}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def refusing_pickers(
    simulators: list[int],
    folder: Path,
    launch_picker: Callable[..., contextlib.AbstractAsyncContextManager[Picker]],
) -> AsyncIterator[dict[bool, Picker]]:
    """Pickers whose filter lets no endpoint serve: every request is told 429."""
    config = folder / "refusing.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: label-selector-filter, parameters: {matchLabels: {tier: none}}}]\n"
    )
    options = ["--config-file", str(config)]
    async with (
        launch_picker(simulators, *options) as secure,
        launch_picker(simulators, *options, "--secure-serving=false") as plain,
    ):
        yield {True: secure, False: plain}
