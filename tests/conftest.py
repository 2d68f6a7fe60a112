"""What every test gets: seeded randomness, and no blocking call inside the event loop."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

# pytest-asyncio would else open a loop before the first async test and never close it.
asyncio.get_event_loop_policy().set_event_loop(None)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[BlockBuster]:
    with blockbuster_ctx("epp") as guard:
        yield guard
