"""
What the typed decoder does not look at: text and numbers in fields that routing does not read.

msgspec skips an unknown field by its brackets and quotes alone. A model server would choke on bad
text or an endless number there, so such a body is refused here. A body of usual size is simply
decoded in full, in a few microseconds. A large one might hold millions of small values, which
would take seconds to build: it is scanned, and decoded only where it looks suspicious.
"""

import re

import msgspec

DECODED_BYTES = 1 << 16
MAX_DIGITS = 4300
"""As many digits as Python, and with it vLLM, takes an integer to have."""

_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord("x") for byte in range(256))
_GIANT = b"0" * (MAX_DIGITS + 1)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_decode = msgspec.json.Decoder().decode


def check(body: bytes) -> None:
    """Raise msgspec.DecodeError, RecursionError or UnicodeDecodeError where a body is no JSON."""
    if len(body) > DECODED_BYTES:
        if not body.isascii():
            body.decode()
        if _GIANT not in body.translate(_DIGITS) and _SURROGATE.search(body) is None:
            return
    _decode(body)
