"""
Endpoints file: what it may hold, and when it has to be read again.

Everything is checked here, before anything of the file is believed: the whole file counts or none
of it does.
"""

import contextlib
import errno
import ipaddress
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from epp.framework import ConfigError, EndpointId
from epp_plugins.discoveries.static_file import strict_yaml

LARGEST_FILE_BYTES = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")

# Digits alone, and none of the zeros in front that make it another number elsewhere.
_PORT = re.compile(r"[1-9][0-9]{0,4}")

# The last label of a host name is never all digits, or 10.0.0.256 would be one.
_HOST_LABEL = r"[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,254}}\Z)({_HOST_LABEL}\.)*(?!\d+\.?\Z){_HOST_LABEL}\.?")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One endpoint as the file has it; `address` may be a DNS name."""

    name: str
    address: str
    port: int | str
    namespace: str = "default"
    labels: dict[str, str] = {}

    @property
    def id(self) -> EndpointId:
        """The endpoint's name in the picker."""
        return EndpointId(self.namespace, self.name)


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    endpoints: list[Any]


def parse(content: bytes) -> list[FileEntry]:
    """
    Return the entries of a file, addresses and ports in their plain form.

    Raises ConfigError that names the entry and says what was expected of it.
    """
    if len(content) > LARGEST_FILE_BYTES:
        message = f"expected at most {LARGEST_FILE_BYTES} bytes"
        raise ConfigError(message)
    try:
        document = msgspec.convert(strict_yaml.load(content), _Document)
    except msgspec.ValidationError as error:
        message = f"expected a document with a list `endpoints`: {_plain(error)}"
        raise ConfigError(message) from error
    entries: dict[EndpointId, FileEntry] = {}
    for at, raw in enumerate(document.endpoints):
        name = raw.get("name") if isinstance(raw, dict) else None
        place = f"endpoints[{at}]" + (f" ({name})" if isinstance(name, str) else "")
        try:
            entry = _entry(raw)
        except ValueError as error:
            message = f"{place}: {_plain(error)}"
            raise ConfigError(message) from error
        if entry.id in entries:
            message = f"{place}: expected a name of its own, {entry.id} is there twice"
            raise ConfigError(message)
        entries[entry.id] = entry
    return list(entries.values())


def _entry(raw: Any) -> FileEntry:
    entry = msgspec.convert(raw, FileEntry)
    for field, text in (("name", entry.name), ("namespace", entry.namespace)):
        if not _NAME.fullmatch(text):
            message = f"{field}: expected letters, digits and inside also '-_.', got {text!r}"
            raise ValueError(message)
    return msgspec.structs.replace(entry, address=_address(entry.address), port=_port(entry.port))


def _plain(error: Exception) -> str:
    """The message on one line, as a clause; `$` stands for what is at fault."""
    text = " ".join(str(error).split())
    return text[:1].lower() + text[1:].replace("`$.", "`")


def _address(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        literal = ipaddress.ip_address(bare)
    except ValueError:
        if _HOST.fullmatch(text):
            return text.rstrip(".").lower()
        literal = None
    if literal is None or literal.is_unspecified or literal.is_multicast or "%" in bare:
        message = f"address: expected an IPv4 or IPv6 address or a DNS name, got {text!r}"
        raise ValueError(message)
    return str(literal)


def _port(value: int | str) -> int:
    text = str(value)
    if _PORT.fullmatch(text) and int(text) <= 65535:
        return int(text)
    message = f"port: expected a number from 1 to 65535, got {value!r}"
    raise ValueError(message)


class EndpointsFile:
    """The file, read when it changed; whatever is wrong with it is raised once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._content: bytes | None = None
        self._fault = ""

    def read(self) -> list[FileEntry] | None:
        """
        Return the entries, None where the file is as it was; blocks.

        Raises ConfigError where it cannot be read, or not be understood.
        """
        try:
            with _opened(self._path) as file:
                # The stamp first: a change after it is seen the next time.
                status = os.fstat(file.fileno())
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if stamp == self._stamp:
                    return None
                content = file.read(LARGEST_FILE_BYTES + 1)
        except OSError as error:
            self._unreadable(error)
            return None
        self._stamp, self._fault = stamp, ""
        # A touched file, or a ConfigMap written anew, says what it said before.
        if content == self._content:
            return None
        self._content = content
        try:
            return parse(content)
        except ConfigError as error:
            message = f"{self._path}: {error}"
            raise ConfigError(message) from error

    def _unreadable(self, error: OSError) -> None:
        fault = error.strerror or type(error).__name__
        known, self._stamp, self._fault = self._fault, None, fault
        if fault != known:
            message = f"{self._path}: expected a file of endpoints: {fault}"
            raise ConfigError(message) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """
    Open a regular file, or what a link to one leads to; raise OSError where it is anything else.

    Opening a FIFO waits for a writer, reading a terminal for its user, and nothing ends a thread
    that waits. So nothing else is even opened, and what takes the file's place in that moment
    neither blocks nor is read.
    """
    _check_regular(path.stat())
    with open(path, "rb", opener=_open_without_waiting) as file:
        _check_regular(os.fstat(file.fileno()))
        yield file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
