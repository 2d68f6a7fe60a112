"""
What the collector reads from a model server's metrics page, as JSON: for `epp metrics parse`.

It uses the very plugins that the collector uses, so that what is printed is what the picker sees.
"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from epp.framework import (
    ConfigError,
    Endpoint,
    EndpointId,
    EndpointUpdate,
    Registry,
    ScrapeError,
)

SOURCE = "metrics-data-source"
EXTRACTOR = "core-metrics-extractor"


async def describe(location: str, engine: str) -> str:
    """
    Return the update that a page yields, as indented JSON.

    `location` is a URL, a file, or "-" for standard input. Raises ConfigError where the page cannot
    be had, holds nothing usable, or the engine is unknown.
    """
    registry = Registry()
    try:
        extractor = registry.build(EXTRACTOR, EXTRACTOR, {"defaultEngine": engine}).plugin
    except ConfigError as error:
        # The parameter is called so in a configuration; here it was given as an option.
        message = str(error).replace("defaultEngine:", "--engine:", 1)
        raise ConfigError(message) from error
    try:
        page = await _fetch(registry, location) if "://" in location else _read(location)
        update: EndpointUpdate = extractor.extract(_endpoint("localhost", 80), page)
    except ScrapeError as error:
        message = f"{location}: {error}"
        raise ConfigError(message) from error
    return msgspec.json.format(msgspec.json.encode(_plain(update)), indent=2).decode()


def _plain(update: EndpointUpdate) -> dict[str, object]:
    """Sets as sorted lists, so that the output is the same in every run."""
    values = {name: getattr(update, name) for name in EndpointUpdate.__slots__}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in values.items()
    }


def _read(location: str) -> bytes:
    if location == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(location).read_bytes()
    except OSError as error:
        message = f"{location}: {error.strerror}"
        raise ConfigError(message) from error


async def _fetch(registry: Registry, location: str) -> bytes:
    url = urlsplit(location)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError as error:
        message = f"{location}: {error}"
        raise ConfigError(message) from error
    if url.scheme not in ("http", "https") or not url.hostname:
        message = f"{location}: expected http:// or https:// and a host"
        raise ConfigError(message)
    parameters = {"scheme": url.scheme, "path": url.path or "/metrics"}
    source = registry.build(SOURCE, SOURCE, parameters).plugin
    try:
        page: bytes = await source.poll(_endpoint(url.hostname, port))
    finally:
        await source.aclose()
    return page


def _endpoint(address: str, port: int) -> Endpoint:
    return Endpoint(EndpointId("default", "page"), address, port)
