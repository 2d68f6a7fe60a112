"""
The parsers by path: which dialect a request is in.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epp.framework import BadRequest, ParsedRequest, Parser, PluginInstance
from epp.observability.metrics import Metrics, PluginCall

DEFAULT_PATH = "/v1/completions"
"""What a request without any path is taken for: NGINX Gateway Fabric sends none."""

_PATH_HEADERS = (":path", "x-original-path", "x-forwarded-path")
_REMEMBERED_PATHS = 1024


class Dialect(NamedTuple):
    """A parser, contained, and the claim by which a path chose it ("" for the fallback)."""

    claim: str
    parser: Parser
    call: PluginCall

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest:
        """Return the facts of a body; raises BadRequest, or PluginFailed where the parser fails."""
        with self.call:
            return self.parser.parse_request(path, headers, body)


class ParserTable:
    """Finds the parser whose longest claim ends the path at a boundary, else the fallback."""

    def __init__(self, parsers: Sequence[PluginInstance], metrics: Metrics) -> None:
        self._claims: dict[str, Dialect] = {}
        self._fallback: Dialect | None = None
        for instance in parsers:
            call = metrics.plugin("parser", instance)
            parser: Parser = instance.plugin
            for claim in parser.claims:
                self._claims.setdefault(claim.strip("/"), Dialect(claim, parser, call))
            if not parser.claims and self._fallback is None:
                self._fallback = Dialect("", parser, call)
        self._longest_first = sorted(self._claims, key=len, reverse=True)
        self._remembered: dict[str, Dialect] = {}

    def find(self, path: str) -> Dialect:
        """Return the dialect of a path without its query; raise BadRequest where there is none."""
        known = self._remembered.get(path)
        if known is not None:
            return known
        dialect = self._search(path.rstrip("/"))
        # Paths are the client's to choose: remember only so many.
        if len(self._remembered) < _REMEMBERED_PATHS:
            self._remembered[path] = dialect
        return dialect

    def _search(self, path: str) -> Dialect:
        for claim in self._longest_first:
            if path.endswith(claim):
                before = path[: -len(claim)]
                if not before or before[-1] in "/.":
                    return self._claims[claim]
        if self._fallback is None:
            raise BadRequest("no parser registered matching path suffix")
        return self._fallback


def path_of(headers: Mapping[str, str]) -> str:
    """Return the path of a request without its query."""
    for name in _PATH_HEADERS:
        path = headers.get(name)
        if path:
            return path.partition("?")[0]
    return DEFAULT_PATH
