"""Lines that parse, levels that follow -v, and nothing of a client's in any of them."""

import asyncio
import io
import json
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from epp.framework import BadRequest, ConfigError, EndpointId
from epp.observability import logs

CANARY = "CANARY-of-a-prompt"

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(stream: io.BytesIO) -> Lines:
    logs.configure(verbosity=4, stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def fail_over(body: object) -> None:
    message = f"cannot read {body!r}"
    raise ValueError(message)


def test_an_event_is_one_line_of_json_that_starts_with_the_common_keys(lines: Lines) -> None:
    structlog.get_logger("epp.app").info("ready", endpoints=3)

    [line] = lines()
    assert list(line) == ["time", "level", "event", "logger", "endpoints"]
    assert line | {"time": None} == {
        "time": None,
        "level": "info",
        "event": "ready",
        "logger": "epp.app",
        "endpoints": 3,
    }


def test_the_time_is_in_utc_with_milliseconds(lines: Lines) -> None:
    structlog.get_logger("epp.app").info("ready")

    [line] = lines()
    assert line["time"][-5:-4] == "."
    assert line["time"].endswith("Z")
    assert datetime.fromisoformat(line["time"]).utcoffset() is not None


def test_plugins_that_use_the_standard_library_come_out_the_same(lines: Lines) -> None:
    logging.getLogger("epp.plugin").warning("%d of %s", 2, "three", extra={"signal": "queue"})

    [line] = lines()
    assert (line["event"], line["logger"], line["signal"]) == ("2 of three", "epp.plugin", "queue")


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [
        pytest.param(0, ["warning"], id="0 shows warnings"),
        pytest.param(1, ["warning"], id="1 shows warnings"),
        pytest.param(2, ["info", "warning"], id="2, the default, shows information"),
        pytest.param(3, ["info", "warning"], id="3 shows information"),
        pytest.param(4, ["debug", "info", "warning"], id="4 shows debugging"),
        pytest.param(9, ["debug", "info", "warning"], id="more than 4 shows debugging"),
    ],
)
@pytest.mark.parametrize("of", [structlog.get_logger, logging.getLogger], ids=["structlog", "std"])
def test_the_verbosity_says_what_is_shown(
    verbosity: int, shown: list[str], of: Callable[[str], Any], stream: io.BytesIO
) -> None:
    logs.configure(verbosity=verbosity, stream=stream)
    for level in ("debug", "info", "warning"):
        getattr(of("epp.app"), level)("hello")

    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == shown


def test_configuring_again_replaces_the_first_time(lines: Lines) -> None:
    second = io.BytesIO()
    logs.configure(verbosity=2, stream=second)
    structlog.get_logger("epp.app").info("ready")

    assert (len(lines()), len(second.getvalue().splitlines())) == (0, 1)


@pytest.mark.parametrize(
    "name", ["aiohttp.server", "grpc", "hpack.hpack", "some_library"], ids=lambda name: str(name)
)
def test_libraries_never_say_less_than_a_warning(name: str, lines: Lines) -> None:
    logging.getLogger(name).debug("Decoded header %s", CANARY)
    logging.getLogger(name).info("Decoded header %s", CANARY)
    logging.getLogger(name).warning("careful")

    assert [line["event"] for line in lines()] == ["careful"]


def test_there_is_no_access_log(lines: Lines) -> None:
    logging.getLogger("aiohttp.access").error("GET /metrics")

    assert lines() == []


@pytest.mark.parametrize("of", [structlog.get_logger, logging.getLogger], ids=["structlog", "std"])
def test_an_unknown_error_shows_type_and_frames_but_not_its_message(
    of: Callable[[str], Any], lines: Lines, stream: io.BytesIO
) -> None:
    try:
        fail_over(CANARY)
    except ValueError:
        of("epp.app").exception("failed")

    [line] = lines()
    assert line["exception"] == "ValueError"
    assert "test_logs.py" in line["traceback"]
    assert "in fail_over" in line["traceback"]
    assert CANARY.encode() not in stream.getvalue()


def test_causes_and_members_of_groups_are_shown_without_their_messages(lines: Lines) -> None:
    try:
        try:
            fail_over(CANARY)
        except ValueError as error:
            raise ExceptionGroup(CANARY, [KeyError(CANARY), BadRequest(CANARY)]) from error
    except ExceptionGroup as group:
        structlog.get_logger("epp.app").error("failed", exc_info=group)

    [line] = lines()
    starts = [row for row in line["traceback"].splitlines() if not row.startswith(" ")]
    assert starts == [
        "ExceptionGroup",
        "with KeyError",
        "with epp.framework.errors.BadRequest",
        "caused by ValueError",
    ]
    assert CANARY not in json.dumps(line)


def test_errors_that_cause_each_other_end(lines: Lines) -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    structlog.get_logger("epp.app").error("failed", exc_info=first)

    assert lines()[0]["traceback"] == "ValueError\ncaused by KeyError"


def test_endless_recursion_leaves_a_short_traceback(lines: Lines) -> None:
    def recurse() -> None:
        recurse()

    try:
        recurse()
    except RecursionError as error:
        structlog.get_logger("epp.app").error("failed", exc_info=error)

    assert len(lines()[0]["traceback"].splitlines()) == 1 + logs.MAX_FRAMES


def test_a_plugins_warning_says_what_is_wrong_with_a_configuration(lines: Lines) -> None:
    error = ConfigError("endpoints[0] (a): port 'x', expected 1 to 65535")
    logging.getLogger("epp.plugin.file-discovery").warning("kept as it was: %s", error)

    assert lines()[0]["event"] == f"kept as it was: {error}"


def test_the_message_of_a_configuration_error_is_shown(lines: Lines) -> None:
    error = ConfigError("unknown plugin type 'nope'")
    structlog.get_logger("epp.app").error("failed", exc_info=error)

    assert lines()[0]["traceback"] == (
        "epp.framework.errors.ConfigError: unknown plugin type 'nope'"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(True, True, id="a boolean"),
        pytest.param("text", "text", id="text"),
        pytest.param(0.5, 0.5, id="a number"),
        pytest.param(float("nan"), None, id="not a number"),
        pytest.param(None, None, id="nothing"),
        pytest.param(("a", 1), ["a", 1], id="a sequence"),
        pytest.param({"a": b"x"}, {"a": "<1 bytes>"}, id="a mapping"),
        pytest.param(EndpointId("default", "a"), "default/a", id="an endpoint's id"),
        pytest.param(Path("a.yaml"), "a.yaml", id="a path"),
        pytest.param(CANARY.encode(), f"<{len(CANARY)} bytes>", id="bytes by their length"),
        pytest.param(ValueError(CANARY), "ValueError", id="an error by its type"),
        pytest.param(io.StringIO(CANARY), "<StringIO>", id="anything else by its type"),
        pytest.param("x" * 5000, "x" * logs.MAX_TEXT, id="long text, cut"),
    ],
)
def test_fields_show_plain_values_only(value: object, shown: object, lines: Lines) -> None:
    structlog.get_logger("epp.app").info("event", field=value)

    assert lines()[0]["field"] == shown


def test_arguments_of_a_message_show_no_errors_or_bytes(lines: Lines) -> None:
    logging.getLogger("some_library").error("%s: %s", ValueError(CANARY), CANARY.encode())
    logging.getLogger("some_library").error("%(error)s", {"error": ValueError(CANARY)})

    assert [line["event"] for line in lines()] == [
        f"ValueError: <{len(CANARY)} bytes>",
        "ValueError",
    ]


def test_a_message_that_does_not_fit_its_arguments_is_shown_as_it_is(lines: Lines) -> None:
    # Past the handlers of pytest, which raise where a message does not fit.
    [handler] = [one for one in logging.getLogger().handlers if isinstance(one, logs._LineHandler)]
    handler.handle(logging.makeLogRecord({"msg": "%d endpoints", "args": ("three",)}))

    assert lines()[0]["event"] == "%d endpoints"


async def test_what_asyncio_says_of_a_lost_task_quotes_nothing(lines: Lines) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "Task exception was never retrieved", "exception": ValueError(CANARY)}
        | {"future": ValueError(CANARY)}
    )

    [line] = lines()
    assert line["event"] == "Task exception was never retrieved"
    assert line["exception"] == "ValueError"
    assert CANARY not in json.dumps(line)


def test_the_common_keys_cannot_be_overwritten(lines: Lines) -> None:
    structlog.get_logger("epp.app").info("event", level="fatal", logger="other", time="never")

    [line] = lines()
    assert (line["level"], line["logger"]) == ("info", "epp.app")


@pytest.mark.parametrize(
    "value", ["half a pair \ud83d", 2**70], ids=["half a surrogate pair", "a giant integer"]
)
def test_values_that_the_quick_encoder_refuses_still_make_a_line(
    value: object, lines: Lines
) -> None:
    structlog.get_logger("epp.app").info("event", field=value)

    assert lines()[0]["field"] == value


def test_a_request_is_one_line_in_one_write() -> None:
    written: list[bytes] = []
    logs.RequestLog(written.append).line({"model": "llama\nforged line", "status": 200})

    [line] = written
    assert line.count(b"\n") == 1
    assert json.loads(line) | {"time": None} == {
        "time": None,
        "level": "info",
        "event": "request",
        "logger": "epp.request",
        "model": "llama\nforged line",
        "status": 200,
    }


@pytest.mark.parametrize(
    ("verbosity", "count"), [(1, 0), (2, 1)], ids=["warnings only", "information"]
)
def test_the_log_of_requests_follows_the_verbosity(
    verbosity: int, count: int, stream: io.BytesIO
) -> None:
    logs.configure(verbosity=verbosity, stream=stream).line({"status": 200})

    assert len(stream.getvalue().splitlines()) == count


@pytest.mark.usefixtures("stream")
def test_a_line_for_people_quotes_what_is_not_one_word() -> None:
    text = io.StringIO()
    requests = logs.configure(verbosity=2, json=False, stream=text)
    requests.line({"model": "a\nb", "status": 200, "endpoint": "default/a"})

    _, _, rest = text.getvalue().partition(" ")
    assert rest == 'INFO     request [epp.request] model="a\\nb" status=200 endpoint=default/a\n'


@pytest.mark.usefixtures("stream")
def test_a_line_for_people_ends_with_the_traceback() -> None:
    text = io.StringIO()
    logs.configure(verbosity=2, json=False, stream=text)
    structlog.get_logger("epp.app").error("failed", exc_info=ValueError(CANARY))

    assert text.getvalue().endswith(" failed [epp.app] exception=ValueError\nValueError\n")


def test_a_line_that_cannot_be_written_is_lost_without_harm(stream: io.BytesIO) -> None:
    requests = logs.configure(verbosity=2, stream=stream)
    stream.close()
    requests.line({"status": 200})
    structlog.get_logger("epp.app").info("event")

    assert stream.closed


@pytest.mark.usefixtures("stream")
def test_standard_output_is_where_lines_go_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(verbosity=2)
    structlog.get_logger("epp.app").info("ready")

    assert json.loads(capsys.readouterr().out)["event"] == "ready"
