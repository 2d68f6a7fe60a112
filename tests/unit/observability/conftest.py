"""Logging as it was, for it is the one thing here that belongs to the whole process."""

import io
import logging
from collections.abc import Iterator

import pytest
import structlog

TOUCHED = (None, "epp", "epp_plugins", "asyncio", "aiohttp.access")


@pytest.fixture
def stream() -> Iterator[io.BytesIO]:
    """A stream to configure logging with; what was configured before is back afterwards."""
    loggers = [logging.getLogger(name) for name in TOUCHED]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield io.BytesIO()
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers
    structlog.reset_defaults()
