"""The acceptance cases go through both doors."""

from collections.abc import Iterator

import pytest

from epp.app import TRANSPORTS
from support.doors import TRANSPORT


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_cases_"):
        metafunc.fixturenames.append("transport")
        metafunc.parametrize("transport", TRANSPORTS, indirect=True)


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> Iterator[None]:
    """Which door the test goes through."""
    token = TRANSPORT.set(request.param)
    yield
    TRANSPORT.reset(token)
