"""
The errors of the picker: each class carries its HTTP status, its code and its drop reason.

    EPPError
    ├── BadRequest           400
    │   └── BodyTooLarge     413
    ├── Rejected             429   never reached a model server; capacity exists, come back
    │   └── Saturated              rejected-saturated
    ├── Unavailable          503   nothing can serve the request
    │   └── NoEndpoints            rejected-no-endpoints
    └── PluginFailed         500   names plugin and extension point, chains the cause
    ConfigError                    start-up only: where in the document, and what was expected
    ScrapeError                    a scrape that yields nothing; never crosses into the request path

Statuses and drop reasons are the field's (Endpoint Picker Protocol, llm-d-router). A client sees
the message of an EPPError, except that of PluginFailed, which is replaced by a fixed text.
"""

from typing import ClassVar


class EPPError(Exception):
    """
    A request that cannot be routed, and what its client is told.

    The message is a clause in lower case without a full stop; it never holds anything of a prompt.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "Internal"
    reason: ClassVar[str | None] = None

    @property
    def public_message(self) -> str:
        """What the client may read."""
        return str(self)


class BadRequest(EPPError):
    """The request itself is wrong; sending it again will not help."""

    status = 400
    code = "BadRequest"


class BodyTooLarge(BadRequest):
    """The request body is larger than the configured limit."""

    status = 413
    code = "PayloadTooLarge"


class Rejected(EPPError):
    """The request was refused by policy before it reached a model server."""

    status = 429
    code = "ResourceExhausted"


class Saturated(Rejected):
    """Every candidate was filtered out, or the pool is full."""

    reason = "rejected-saturated"


class Unavailable(EPPError):
    """Nothing can serve the request now."""

    status = 503
    code = "ServiceUnavailable"


class NoEndpoints(Unavailable):
    """The pool, or the gateway's subset of it, has no endpoint."""

    reason = "rejected-no-endpoints"


class PluginFailed(EPPError):
    """A plugin raised where its answer was needed."""

    def __init__(self, extension_point: str, plugin_type: str, name: str) -> None:
        super().__init__(f"{extension_point} plugin {name!r} (type {plugin_type}) failed")
        self.extension_point = extension_point
        self.plugin_type = plugin_type
        self.name = name

    @property
    def public_message(self) -> str:
        """A fixed text: what a plugin raises may hold anything."""
        return "the endpoint picker failed to decide; see its log under this request's id"


class ConfigError(Exception):
    """
    A configuration that cannot be used; the message says where, what was found, what was expected.

    Raised at start-up, and by a discovery that re-reads a file.
    """


class ScrapeError(Exception):
    """
    A sample of an endpoint that could not be had or holds nothing usable.

    `reason` is one of a closed set, since it becomes a metric label.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
