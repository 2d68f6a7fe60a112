"""What every test gets: seeded randomness, and no blocking call inside the event loop."""

import asyncio
import io
import random
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings

from epp.observability import logs

# A slow machine is no failure: time is for the benchmarks.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")

# pytest-asyncio would else open a loop before the first async test and never close it.
asyncio.get_event_loop_policy().set_event_loop(None)


@pytest.fixture(autouse=True)
def _quiet_logs() -> None:
    logs.configure(verbosity=2, stream=io.BytesIO())


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[BlockBuster]:
    with blockbuster_ctx("epp") as guard:
        for function in guard.functions.values():
            function.can_block_in("epp/app.py", "__init__")  # a start reads its configuration
            function.can_block_in("epp/metrics_page.py", "describe")  # a tool that does one thing
        # Collecting a closed gRPC server takes a lock, in whatever test that happens.
        guard.functions["threading.Lock.acquire"].deactivate()
        yield guard
