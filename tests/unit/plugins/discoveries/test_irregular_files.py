"""What stands where the endpoints file should be: it is refused and never waited for."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epp.framework import ConfigError, EndpointUpserted, PluginContext
from epp_plugins.discoveries.static_file import FileDiscovery
from epp_plugins.discoveries.static_file.endpoints_file import EndpointsFile

GOOD = b"endpoints: [{name: a, address: 10.0.0.1, port: 8000}]"

Maker = Callable[[Path], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def fifo(path: Path) -> Iterator[None]:
    os.mkfifo(path)
    yield


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    path.mkdir()
    yield


@contextlib.contextmanager
def device(path: Path) -> Iterator[None]:
    path.symlink_to("/dev/zero")
    yield


@contextlib.contextmanager
def unix_socket(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        yield


@contextlib.contextmanager
def link_to_a_fifo(path: Path) -> Iterator[None]:
    os.mkfifo(path.with_name("fifo"))
    path.symlink_to("fifo")
    yield


MAKERS = pytest.mark.parametrize(
    "make", [fifo, folder, device, unix_socket, link_to_a_fifo], ids=lambda make: make.__name__
)


@MAKERS
def test_only_a_regular_file_is_read(tmp_path: Path, make: Maker) -> None:
    path = tmp_path / "endpoints.yaml"
    with make(path), pytest.raises(ConfigError) as raised:
        EndpointsFile(path).read()

    assert str(raised.value) == f"{path}: expected a file of endpoints: it is not a regular file"


@MAKERS
def test_what_takes_the_place_of_a_file_for_a_time_is_a_fault_once(
    tmp_path: Path, make: Maker
) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_bytes(GOOD)
    file = EndpointsFile(path)
    before = file.read()
    path.unlink()
    with make(path):
        with pytest.raises(ConfigError, match="it is not a regular file"):
            file.read()
        meanwhile = file.read()
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    path.write_bytes(GOOD.replace(b"8000", b"9000"))
    after = file.read()

    assert [entry.port for entry in before or []] == [8000]
    assert meanwhile is None
    assert [entry.port for entry in after or []] == [9000]


def test_a_fifo_that_takes_the_place_in_the_very_moment_is_not_waited_for(tmp_path: Path) -> None:
    regular = tmp_path / "regular"
    regular.write_bytes(GOOD)

    class Swapped(type(tmp_path)):  # type: ignore[misc]
        """A FIFO that still was a file when it was looked at."""

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            return regular.stat(follow_symlinks=follow_symlinks)

    path = Swapped(tmp_path / "endpoints.yaml")
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it is not a regular file"):
        EndpointsFile(path).read()


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_bytes(GOOD)
    path = tmp_path / "endpoints.yaml"
    path.symlink_to("real.yaml")

    assert len(EndpointsFile(path).read() or []) == 1


async def test_discovery_of_a_fifo_ends_with_an_error_of_configuration(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    os.mkfifo(path)
    events = FileDiscovery(path=str(path), context=PluginContext("file-discovery")).discover()
    with pytest.raises(ConfigError, match="it is not a regular file"):
        await anext(events)


async def test_discovery_of_a_file_begins_with_its_endpoints(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_bytes(GOOD)
    events = FileDiscovery(path=str(path), context=PluginContext("file-discovery")).discover()

    assert isinstance(await anext(events), EndpointUpserted)
