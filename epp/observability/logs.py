"""
Logs: one line of JSON an event on standard output, set up in this one place.

structlog (the core) and the standard library's logging (plugins, libraries) end in the same
handler, so that one set of rules holds for every line: `time`, `level`, `event` and `logger` come
first, then the fields. A line is one write.

Nothing that a client sent may get into a log by accident. So an exception is shown by its types and
frames and never by its message, which may quote a body (a ConfigError, which quotes the operator's
own document, is the exception); a field that is no plain value is shown by its type; and libraries,
some of which print headers when they debug, never say less than a warning.
"""

import itertools
import json as standard_json
import logging
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import PurePath
from types import TracebackType
from typing import IO, Any

import msgspec
import structlog

from epp.framework import ConfigError, EndpointId

Write = Callable[[bytes], object]

MAX_TEXT = 4096
"""Longer strings are cut: no line needs more, and some libraries quote whole payloads."""
MAX_FRAMES = 40
"""The innermost frames shown of one exception; recursion may leave a thousand."""
MAX_ERRORS = 10
"""Exceptions shown of a chain or a group; a group may hold one an endpoint."""

_OWN_LOGGERS = ("epp", "epp_plugins")
_QUIET_LOGGERS = {
    "aiohttp.access": logging.CRITICAL + 1,
    # Its warnings are about peers that left, and in debug mode they quote call arguments.
    "asyncio": logging.ERROR,
}
_RECORD_KEYS = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_PRINTED_TYPES = (EndpointId, PurePath)


def level_of(verbosity: int) -> int:
    """Return the least level shown: warnings to 1, information from 2, debugging from 4."""
    if verbosity < 2:
        return logging.WARNING
    return logging.INFO if verbosity < 4 else logging.DEBUG


def configure(*, verbosity: int, json: bool = True, stream: IO[Any] | None = None) -> "RequestLog":
    """
    Set up all logging of this process, and return the log of requests that goes with it.

    Only loggers named `epp` or `epp_plugins` and those below follow the verbosity. The stream may
    take bytes or text and is standard output where none is given; without `json`, lines are for a
    person's eyes. May be called again: the last call counts.
    """
    level = level_of(verbosity)
    write = line_writer(stream or sys.stdout)
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _LineHandler)]:
        root.removeHandler(handler)
    root.addHandler(_LineHandler(write, _json_line if json else _console_line))
    root.setLevel(logging.WARNING)
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(level)
    for name, quiet_level in _QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(quiet_level)
    structlog.configure(
        processors=[_hand_over],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    return RequestLog(write if level <= logging.INFO else None, json=json)


class RequestLog:
    """
    The one line a request, past all machinery: at thousands of requests a second it has to be.

    Fields are plain values (text, numbers, booleans, None): the caller vouches for what is in them.
    Without a `write` every line is dropped.
    """

    __slots__ = ("_render", "_write")

    def __init__(self, write: Write | None, *, json: bool = True) -> None:
        self._write = write
        self._render = _json_line if json else _console_line

    def line(self, fields: Mapping[str, object]) -> None:
        """Write the line of one request."""
        if self._write is not None:
            head = {"time": _now(), "level": "info", "event": "request", "logger": "epp.request"}
            self._write(self._render({**head, **fields}))


def line_writer(stream: IO[Any]) -> Write:
    """
    Return a function that puts a whole line on the stream, at once.

    A line that cannot be written (a full disk, a closed stream) is lost: a log must not fail a
    request.
    """
    raw = getattr(stream, "buffer", stream)
    as_text = not hasattr(stream, "buffer") and hasattr(stream, "encoding")

    def write(line: bytes) -> None:
        try:
            raw.write(line.decode() if as_text else line)
            raw.flush()
        except (OSError, ValueError):
            return

    return write


def traceback_text(error: BaseException) -> str:
    """
    Return the types and frames of an exception and of what caused it, outermost first.

    No message is in it but that of a ConfigError.
    """
    lines: list[str] = []
    for one, link in itertools.islice(_chain(error), MAX_ERRORS):
        shown = f"{type_name(one)}: {one}" if isinstance(one, ConfigError) else type_name(one)
        lines += [f"{link}{shown}", *_frames(one.__traceback__)]
    return "\n".join(lines)


def type_name(error: BaseException) -> str:
    """Return the full name of an exception's type, without the module of built-in ones."""
    kind = type(error)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return prefix + kind.__qualname__


class _LineHandler(logging.Handler):
    """Where every line of the process but those of RequestLog is made."""

    def __init__(self, write: Write, render: Callable[[Mapping[str, object]], bytes]) -> None:
        super().__init__()
        self._write_line = write
        self._render = render

    def emit(self, record: logging.LogRecord) -> None:
        message: object = record.msg
        if isinstance(message, dict):
            fields = dict(message)
            event = str(fields.pop("event", ""))
            exc_info = fields.pop("exc_info", None)
        else:
            fields = {key: v for key, v in vars(record).items() if key not in _RECORD_KEYS}
            event = _message_of(record)
            exc_info = record.exc_info
        line: dict[str, object] = {
            "time": _now(),
            "level": record.levelname.lower(),
            "event": event[:MAX_TEXT],
            "logger": record.name,
        }
        for key, value in fields.items():
            line.setdefault(key, _plain(value))
        error = _error_of(exc_info)
        if error is not None:
            line["exception"] = type_name(error)
            line["traceback"] = traceback_text(error)
        self._write_line(self._render(line))


def _hand_over(
    _logger: object, _method: str, event: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Give a structlog event, whole, to the standard library's logger of its name."""
    return (dict(event),), {}


def _message_of(record: logging.LogRecord) -> str:
    template = str(record.msg)
    if record.name == "asyncio":
        # What follows its first line are reprs: of tasks with their exceptions, of callbacks.
        return template.split("\n", 1)[0]
    arguments = record.args
    if not arguments:
        return template
    try:
        if isinstance(arguments, Mapping):
            return template % {key: _argument(value) for key, value in arguments.items()}
        return template % tuple(_argument(value) for value in arguments)
    except (KeyError, TypeError, ValueError):
        # A template that does not fit its arguments is the library's mistake, not a crash of ours.
        return template


def _argument(value: object) -> object:
    if isinstance(value, ConfigError):
        return value  # of the operator's own making, and for the operator to read
    return _plain(value) if isinstance(value, BaseException | bytes | bytearray) else value


def _plain(value: object) -> object:
    """Return what may be shown of a field's value: itself where it is plain, else its type."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, BaseException):
        return type_name(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, _PRINTED_TYPES) else _type_only(value)


def _type_only(value: object) -> str:
    return f"<{type(value).__name__}>"


def _error_of(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    elif exc_info is True:
        exc_info = sys.exception()
    return exc_info if isinstance(exc_info, BaseException) else None


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield an exception, the members of a group, and the causes, each with how it came about."""
    seen: set[int] = set()
    todo = [(error, "")]
    while todo:
        one, link = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one, link
        cause = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if cause is not None:
            todo.append((cause, "caused by " if one.__cause__ else "while handling "))
        if isinstance(one, BaseExceptionGroup):
            todo += [(member, "with ") for member in reversed(one.exceptions)]


def _frames(trace: TracebackType | None) -> Iterator[str]:
    for frame, number in deque(traceback.walk_tb(trace), maxlen=MAX_FRAMES):
        yield f"  {frame.f_code.co_filename}:{number} in {frame.f_code.co_qualname}"


def _now() -> str:
    seconds, fraction = divmod(time.time(), 1.0)
    return f"{_until_second(int(seconds))}.{int(fraction * 1e3):03d}Z"


@lru_cache(maxsize=2)
def _until_second(seconds: int) -> str:
    """Return a second as ISO 8601 has it; many lines fall into one."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]


_encode = msgspec.json.Encoder(enc_hook=_type_only).encode


def _json_line(line: Mapping[str, object]) -> bytes:
    try:
        return _encode(line) + b"\n"
    except (OverflowError, ValueError):
        # Half a surrogate pair or a giant integer; rare, so the slower encoder that bears them.
        return standard_json.dumps(line, default=_type_only).encode() + b"\n"


def _console_line(line: Mapping[str, object]) -> bytes:
    fields = dict(line)
    time, level, event, logger = (
        str(fields.pop(key)) for key in ("time", "level", "event", "logger")
    )
    trace = fields.pop("traceback", None)
    parts = [time[11:-1], f"{level.upper():<8}", _word(event), f"[{logger}]"]
    parts += [f"{key}={_word(value, bare=False)}" for key, value in fields.items()]
    tail = f"\n{trace}" if trace else ""
    return (" ".join(parts) + tail + "\n").encode(errors="backslashreplace")


def _word(value: object, *, bare: bool = True) -> str:
    """Return a value as one word of a console line: quoted where it would not stand for itself."""
    if isinstance(value, str) and value.isprintable() and (bare or " " not in value):
        return value
    return standard_json.dumps(value, default=_type_only)
