"""
The command line: argv and environment to options; the only reader of either.

Every flag of `epp serve` has an environment variable of the same name with the prefix EPP_.
Commands import what they need when they run, so that `--help` is quick.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from epp import __version__

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h|us|µs|ns)?")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SIZE = re.compile(r"(\d+)\s*([kKMG]i?)?B?")
_BYTES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
_BYTES |= {"ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


MAX_SIZE = 1 << 30


class Duration(click.ParamType[float]):
    """A time as Go writes it (`1m30s`, `200ms`), or a number of seconds."""

    name = "duration"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return seconds."""
        if isinstance(value, int | float):
            return float(value)
        parts = _DURATION.findall(value)
        bare = len(parts) > 1 and any(not unit for _, unit in parts)
        if not parts or bare or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is no duration such as 30s, 200ms or 1m30s", param, ctx)
        seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
        if seconds < self._least:
            self.fail(f"{value!r} is too short: at least {self._least:g} s", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A number of bytes, with the suffixes k, M, G, Ki, Mi, Gi."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return bytes."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is no size such as 1048576, 10Mi or 25MB", param, ctx)
        size = int(match[1]) * _BYTES[match[2] or ""]
        if not 1 <= size <= MAX_SIZE:
            self.fail(f"{value!r} is not between 1 byte and 1 GiB", param, ctx)
        return size


class Verbosity(click.IntRange):
    """A number that may follow `-v` directly, with a blank or with `=`."""

    name = "level"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the number."""
        return super().convert(str(value).removeprefix("="), param, ctx)  # type: ignore[arg-type]


def _option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option with its EPP_ variable."""
    longest = max((name for name in names if name.startswith("-")), key=len).lstrip("-")
    variable = "EPP_" + longest.upper().replace("-", "_")
    settings.setdefault("show_default", True)
    return click.option(*names, envvar=variable, show_envvar=True, **settings)


def _switch(name: str, **settings: Any) -> Callable[[Any], Any]:
    """A boolean as Go's flags are: `--name`, `--name=true`, `--name=false`."""
    return _option(name, type=bool, is_flag=False, flag_value=True, **settings)


_PORT = click.IntRange(0, 65535)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="epp")
def main() -> None:
    """The endpoint picker: Envoy asks it which model server gets a request."""


@main.command()
@_option("--grpc-port", type=_PORT, default=9002, help="ext_proc port; 0 takes a free one.")
@_option("--grpc-health-port", type=_PORT, default=9003, help="gRPC health port.")
@_option("--metrics-port", type=_PORT, default=9090, help="/metrics and the /debug pages.")
@_option("--bind-address", default="", help="Address to listen on.  [default: all, IPv4 and IPv6]")
@_option("--config-file", type=_FILE, help="An EndpointPickerConfig in YAML.")
@_option("--endpoints-file", type=_FILE, help="The endpoints in YAML, re-read when it changes.")
@_switch("--secure-serving", default=True, help="Serve ext_proc over TLS.")
@_option(
    "--cert-path",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with tls.crt and tls.key.  [default: a self-signed certificate]",
)
@_option(
    "--drain-timeout",
    type=Duration(),
    default="30s",
    help="How long running streams may take to finish after SIGTERM.",
)
@_option(
    "--answer-timeout",
    type=Duration(least=0.001),
    default="1s",
    help="How long a request may wait for data producers; then it is decided without them.",
)
@_option(
    "--max-request-bytes",
    type=Size(),
    default="64Mi",
    help="Largest request body; beyond it the client gets a 413.",
)
@_option(
    "--refresh-metrics-interval",
    type=Duration(least=0.001),
    default="200ms",
    help="How often an endpoint is scraped, in pools of up to 20; larger ones stretch it.",
)
@_option(
    "--scrape-timeout", type=Duration(least=0.001), default="1s", help="Time-out of one scrape."
)
@_option(
    "--metrics-staleness-threshold",
    type=Duration(least=0.001),
    default="2s",
    help="Age beyond which scraped values are not trusted.",
)
@_option(
    "-v",
    "--v",
    "verbosity",
    type=Verbosity(0, 10),
    default=2,
    help="0 warnings only, 2 one line a request, 4 debug.",
)
def serve(**flags: Any) -> None:
    """Run the endpoint picker until SIGTERM."""
    # gRPC's core writes to stderr what it also raises; ours are the words to read.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from epp import app
    from epp.observability import logs

    log = logs.configure(verbosity=flags.pop("verbosity"))
    _run(lambda: app.serve(app.Options(**flags), log))


@main.command()
@click.option("--once", is_flag=True, help="Run the load once, print the summary, exit 0.")
@click.option("--seconds", type=float, help="End after so many seconds.  [default: 10 with --once]")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the load.")
def demo(**flags: Any) -> None:
    """Start simulators, the picker and a real Envoy on loopback; show where requests go."""
    from epp.demo import show

    _run(lambda: show.run(**flags))


@main.group()
def metrics() -> None:
    """Look at model servers' metrics as the collector does."""


@metrics.command("parse")
@click.argument("location", metavar="FILE|URL")
@click.option("--engine", default="vllm", show_default=True, help="Whose names to look for.")
def metrics_parse(location: str, engine: str) -> None:
    """Print as JSON what the collector reads from a metrics page ("-" is standard input)."""
    from epp import metrics_page

    async def read() -> None:
        click.echo(await metrics_page.describe(location, engine))

    _run(read)


@main.command()
@click.option("--grpc", "address", required=True, help="HOST:PORT of a picker's ext_proc port.")
@click.option(
    "--body",
    type=click.File("rb"),
    help='File with the request body ("-": standard input); without it a GET is sent.',
)
@click.option("--header", "headers", multiple=True, metavar="K=V", help="A header; repeatable.")
@click.option("--path", default="/v1/completions", show_default=True, help="The request's path.")
@click.option(
    "--mode",
    type=click.Choice(["full-duplex", "buffered", "streamed", "none", "unconfigured"]),
    default="full-duplex",
    show_default=True,
    help="The request body mode to play; unconfigured is a client that is no Envoy.",
)
@click.option("--plaintext", is_flag=True, help="No TLS; else any certificate is accepted.")
@click.option("--timeout", type=Duration(), default="10s", show_default=True)
def send(address: str, body: Any, headers: Sequence[str], **flags: Any) -> None:
    """Play Envoy for one request, and print each reply as JSON."""
    from epp.extproc import client

    pairs = [header.partition("=") for header in headers]
    wrong = [name for name, separator, _ in pairs if not separator or not name]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not of the form K=V", param_hint="--header")
    request = client.PlayedRequest(
        headers=[(name, value) for name, _, value in pairs],
        body=body.read() if body is not None else None,
        path=flags["path"],
        mode=flags["mode"],
    )

    async def play() -> None:
        async for line in client.play(
            address, request, plaintext=flags["plaintext"], timeout_seconds=flags["timeout"]
        ):
            click.echo(line)

    _run(play)


def _run(coroutine: Callable[[], Any]) -> None:
    """Run a command on the quickest loop there is, and turn its expected errors into one line."""
    from epp.framework import ConfigError

    failed: BaseException | None = None
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(coroutine())
    except* ConfigError as group:
        failed = _first(group)
    except* KeyboardInterrupt:
        sys.exit(130)
    if failed is not None:
        click.echo(f"epp: {failed}", err=True)
        sys.exit(2)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
