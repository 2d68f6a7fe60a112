"""
Real processes on free loopback ports: simulators, pickers and Envoys, stopped by id at the end.

One event loop serves the whole session, in real time, so that processes outlive single tests.
Every test that has a picker runs twice: through the lean door and through the gRPC one.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from epp.app import TRANSPORTS
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
StartPicker = Callable[..., contextlib.AbstractAsyncContextManager[Picker]]


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


@pytest.fixture(params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    """Through which door the test's pickers are reached."""
    name: str = request.param
    return name


@pytest.fixture
def launch_picker(start_picker: StartPicker, transport: str) -> StartPicker:
    """How to start a picker over simulators' ports: `async with launch_picker(ports, ...)`."""
    return functools.partial(start_picker, transport)


@pytest.fixture(scope="session")
def start_picker(folder: Path) -> StartPicker:
    """How to start a picker of one transport."""
    count = iter(range(1000))

    @contextlib.asynccontextmanager
    async def start(transport: str, ports: Sequence[int], *options: str) -> AsyncIterator[Picker]:
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
        argv += ["--bind-address", "127.0.0.1", "--transport", transport, *options]
        async with processes.started(name, argv, folder) as child:
            yield Picker(child, await processes.picker(child))

    return start


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def simulators(launch_simulator: Launch) -> AsyncIterator[list[int]]:
    """The ports of three quick simulators that take prompts of any size."""
    options = ["--time-scale", "0", "--max-model-len", "2000000", "--num-gpu-blocks", "300000"]
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(launch_simulator(*options)) for _ in range(3)]


@pytest.fixture
def pickers(all_pickers: dict[str, dict[bool, Picker]], transport: str) -> dict[bool, Picker]:
    """Two pickers over the simulators: the one that serves TLS under True."""
    return all_pickers[transport]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def all_pickers(
    simulators: list[int], start_picker: StartPicker
) -> AsyncIterator[dict[str, dict[bool, Picker]]]:
    """The pickers of every transport."""
    async with _pairs(simulators, start_picker) as pairs:
        yield pairs


@pytest.fixture
def refusing_pickers(
    all_refusing_pickers: dict[str, dict[bool, Picker]], transport: str
) -> dict[bool, Picker]:
    """Pickers whose filter lets no endpoint serve: every request is told 429."""
    return all_refusing_pickers[transport]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def all_refusing_pickers(
    simulators: list[int], folder: Path, start_picker: StartPicker
) -> AsyncIterator[dict[str, dict[bool, Picker]]]:
    """The refusing pickers of every transport."""
    config = folder / "refusing.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: label-selector-filter, parameters: {matchLabels: {tier: none}}}]\n"
    )
    async with _pairs(simulators, start_picker, "--config-file", str(config)) as pairs:
        yield pairs


@contextlib.asynccontextmanager
async def _pairs(
    simulators: list[int], start_picker: StartPicker, *options: str
) -> AsyncIterator[dict[str, dict[bool, Picker]]]:
    async with contextlib.AsyncExitStack() as stack:
        pairs: dict[str, dict[bool, Picker]] = {}
        for transport in TRANSPORTS:
            secure = start_picker(transport, simulators, *options)
            plain = start_picker(transport, simulators, *options, "--secure-serving=false")
            pairs[transport] = {
                True: await stack.enter_async_context(secure),
                False: await stack.enter_async_context(plain),
            }
        yield pairs
