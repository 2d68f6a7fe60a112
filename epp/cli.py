"""
The command line: argv and environment to options; the only reader of either.

Every flag of `epp serve` has an environment variable of the same name with the prefix EPP_.
Commands import what they need when they run, so that `--help` is quick.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from epp import __version__
from epp.commands.flags import Duration, Size, Verbosity, option, switch

T = TypeVar("T")

PLAIN_WIDTH = 160
"""How wide tables are where no terminal sets a limit."""

_PORT = click.IntRange(0, 65535)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="epp")
def main() -> None:
    """The endpoint picker: Envoy asks it which model server gets a request."""


@main.command()
@option("--grpc-port", type=_PORT, default=9002, help="ext_proc port; 0 takes a free one.")
@option("--grpc-health-port", type=_PORT, default=9003, help="gRPC health port.")
@option("--metrics-port", type=_PORT, default=9090, help="/metrics and the /debug pages.")
@option("--bind-address", default="", help="Address to listen on.  [default: all, IPv4 and IPv6]")
@option("--config-file", type=_FILE, help="An EndpointPickerConfig in YAML.")
@option("--endpoints-file", type=_FILE, help="The endpoints in YAML, re-read when it changes.")
@option(
    "--transport",
    type=click.Choice(["lean", "grpc"]),
    default="lean",
    help="What serves ext_proc: HTTP/2 frames of our own, or the gRPC library (docs/transport.md).",
)
@switch("--secure-serving", default=True, help="Serve ext_proc over TLS.")
@option(
    "--cert-path",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with tls.crt and tls.key.  [default: a self-signed certificate]",
)
@option(
    "--drain-timeout",
    type=Duration(),
    default="30s",
    help="How long running streams may take to finish after SIGTERM.",
)
@option(
    "--answer-timeout",
    type=Duration(least=0.001),
    default="1s",
    help="How long a request may wait for data producers; then it is decided without them.",
)
@switch(
    "--explain-header",
    default=False,
    help="Answer requests with the header x-epp-explain: 1 by their decision, in that header.",
)
@option(
    "--max-request-bytes",
    type=Size(),
    default="64Mi",
    help="Largest request body; beyond it the client gets a 413.",
)
@option(
    "--refresh-metrics-interval",
    type=Duration(least=0.001),
    default="200ms",
    help="How often an endpoint is scraped, in pools of up to 20; larger ones stretch it.",
)
@option(
    "--scrape-timeout", type=Duration(least=0.001), default="1s", help="Time-out of one scrape."
)
@option(
    "--metrics-staleness-threshold",
    type=Duration(least=0.001),
    default="2s",
    help="Age beyond which scraped values are not trusted.",
)
@option(
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

    request = client.PlayedRequest(
        headers=_pairs(headers),
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


@main.group()
def config() -> None:
    """Check a configuration, or show what it stands for."""


@config.command("check")
@click.argument("file")
def config_check(file: str) -> None:
    """Load FILE ("-" is standard input) as `serve` would, and say what is wrong with it."""
    from epp.commands import config as command

    click.echo(_told(lambda: command.check(file)))


@config.command("show")
@click.argument("file", required=False)
def config_show(file: str | None) -> None:
    """Print FILE, or the built-in configuration, as YAML with all defaults filled in."""
    from epp.commands import config as command

    click.echo(_told(lambda: command.show(file)), nl=False)


@main.command()
@click.argument("plugin_type", metavar="[TYPE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def plugins(plugin_type: str | None, as_json: bool) -> None:  # noqa: FBT001
    """List the plugin types with their parameters and defaults, or tell all about one."""
    from epp.commands import plugins as command

    found = _told(lambda: command.listed(plugin_type))
    _show(found, lambda: command.table(found), as_json=as_json)


@main.command()
@click.option(
    "--config", "config_file", type=_FILE, help="The configuration; else the built-in one."
)
@click.option("--state", "state_file", type=_FILE, required=True, help="The pool, written down.")
@click.option("--request", "request_file", type=_FILE, help="A request's JSON body.")
@click.option("--header", "headers", multiple=True, metavar="K=V", help="A header; repeatable.")
@click.option(
    "--draws",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="How often to pick: pickers are random, some only among equals.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is random.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def schedule(
    config_file: Path | None,
    state_file: Path,
    request_file: Path | None,
    headers: Sequence[str],
    as_json: bool,  # noqa: FBT001
    **options: int,
) -> None:
    """
    Say where a request would go, and why, without any traffic.

    \b
    The state file is YAML:
      endpoints:
      - name: a
        metrics: {waiting: 2, running: 5, kvUsage: 0.4, runningAdapters: [sql], maxAdapters: 4}
        labels: {tier: large}
        inFlight: 1
        served: [{model: sql, prompt: "a prompt that is cached there"}]
      - name: b
        metrics: {}
    """
    from epp.commands import config as config_command
    from epp.commands import schedule as command

    def decide() -> dict[str, Any]:
        state = command.read_state(command.read_file(state_file) or b"")
        pairs = {name.lower(): value for name, value in _pairs(headers)}
        raw = command.read_request(command.read_file(request_file), pairs)
        built = config_command.load(str(config_file) if config_file else None)
        return command.run(built, state, raw, **options)

    decided = _told(decide)
    _show(decided, lambda: command.table(decided), as_json=as_json)


@main.command()
@click.argument("request_id", required=False)
@click.option(
    "--address",
    default="127.0.0.1:9090",
    show_default=True,
    help="HOST:PORT of the picker's metrics and debug pages.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def explain(request_id: str | None, address: str, as_json: bool) -> None:  # noqa: FBT001
    """Say why a request went where it went: the latest one, or the one with REQUEST_ID."""
    from epp.commands import explain as command

    found = _told(lambda: command.find(command.fetch(address), request_id))
    _show(found, lambda: command.table(found), as_json=as_json)


def _pairs(headers: Sequence[str]) -> list[tuple[str, str]]:
    """Return headers given as K=V."""
    pairs = [header.partition("=") for header in headers]
    wrong = [name for name, separator, _ in pairs if not separator or not name]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not of the form K=V", param_hint="--header")
    return [(name, value) for name, _, value in pairs]


def _told(work: Callable[[], T]) -> T:
    """Return what a command works out, and turn its expected errors into one line."""
    from epp.framework import ConfigError

    try:
        return work()
    except ConfigError as error:
        click.echo(f"epp: {error}", err=True)
        sys.exit(2)


def _show(plain: Any, table: Callable[[], Any], *, as_json: bool) -> None:
    """Print a result as JSON or as a table."""
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    console.print(table())


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
