"""
Let through what no other parser understands: routed by load, byte for byte.

The exception are uploads of forms, such as audio to be transcribed: they name their model in a
field, which is read where it is found cheaply, so that adapters still get their requests.
"""

import re
from collections.abc import Collection, Mapping

from epp.framework import ParsedRequest, Parser, Usage

MAX_PARTS = 64
MAX_NAME_BYTES = 256

_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary="?([^";,\s]{1,70})', re.IGNORECASE)
# The head of a form's part named `model` that is no file, up to the empty line behind it. Lines are
# counted and short, so that a body made to mislead costs no more than another.
_MODEL_HEAD = re.compile(
    rb"\r\n(?:[^\r\n]{1,200}\r\n){0,8}?"
    rb'content-disposition:[ \t]*form-data;[ \t]*name="?model"?[ \t]*\r\n'
    rb"(?:[^\r\n]{1,200}\r\n){0,8}\r\n",
    re.IGNORECASE,
)


class PassthroughParser(Parser):
    """
    Claims no path and is the fallback of all; knows no prompt, and a model only from forms.

    It never refuses a body.
    """

    claims: Collection[str] = ()

    def parse_request(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest:
        """Return the form's model, if there is one, and nothing else."""
        boundary = _BOUNDARY.match(headers.get("content-type", ""))
        if boundary is None:
            return ParsedRequest()
        return ParsedRequest(model=_form_model(body, boundary[1].encode("utf-8", "replace")))

    def parse_usage(self, document: bytes) -> Usage | None:
        """Return None: nothing is known of the response."""
        return None

    def rewrite_model(self, body: bytes, model: str) -> bytes:
        """Return the body as it is."""
        return body


def _form_model(body: bytes, boundary: bytes) -> str | None:
    """Return the value of the field `model`, or None where the first parts hold none."""
    delimiter = b"\r\n--" + boundary
    at = body.find(delimiter[2:]) - 2  # the first one stands without the line break
    for _ in range(MAX_PARTS):
        start = at + len(delimiter)
        at = body.find(delimiter, start)
        if at < 0:
            return None
        head = _MODEL_HEAD.match(body, start)
        if head is not None and head.end() <= at <= head.end() + MAX_NAME_BYTES:
            return body[head.end() : at].decode("utf-8", "replace") or None
    return None
