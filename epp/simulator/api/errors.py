"""
Errors: every answer that is no 200, in the words and the shape of vLLM 0.32.

Clients tell refusals apart by status, `type` and `param`; the messages are the real ones wherever a
capture of the real server has them.
"""

import json
from http import HTTPStatus
from typing import Any

import msgspec


class APIError(Exception):
    """An answer other than 200, in the shape that vLLM gives it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self._document = {
            "error": {"message": message, "type": kind, "param": param, "code": status}
        }

    @property
    def body(self) -> bytes:
        """The body of a response."""
        return msgspec.json.encode(self._document)

    @property
    def event(self) -> bytes:
        """The event that ends a stream."""
        return b"data: " + json.dumps(self._document).encode() + b"\n\n"


def of_parameter(message: str, name: str, value: object) -> APIError:
    """Return the refusal of a parameter's value; the message names both."""
    return APIError(f"{message} (parameter={name}, value={value})", param=name)


def validation(complaint: str | dict[str, Any], param: str | None = None) -> APIError:
    """Return the refusal of a body that has not the form it should have."""
    return APIError(f"1 validation error:\n  {complaint}", kind="Bad Request", param=param)


def unknown_model(name: str, base: str) -> APIError:
    """Return the refusal of a model that is not here; adapters are never told as valid names."""
    return APIError(
        f"The model `{name}` does not exist. Valid aliases: {base}.",
        status=404,
        kind="NotFoundError",
        param="model",
    )


def engine_dead() -> APIError:
    """Return what becomes of every request in an engine that died."""
    return APIError(
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        status=500,
        kind="InternalServerError",
    )


def busy() -> APIError:
    """Return the refusal of a server whose queue is as long as it may be."""
    return APIError(
        "The engine is currently busy and cannot accept new requests."
        " Please try again later or on a different instance.",
        status=503,
        kind="Service Unavailable",
    )


def on_demand(status: int) -> APIError:
    """Return a failure that was asked for by a fault switch."""
    phrases = {one.value: one.phrase for one in HTTPStatus}
    phrases[HTTPStatus.INTERNAL_SERVER_ERROR] = "InternalServerError"
    kind = phrases.get(status, "Error")
    return APIError("This failure was asked for.", status=status, kind=kind)
