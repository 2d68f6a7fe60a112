"""
What the typed decoder does not look at: UTF-8 and the length of integers in what it passes over.

msgspec checks the brackets, escapes and surrogates of a value that it does not build, but neither
of these two, and a model server would choke on both. So the body is scanned for them, which is far
quicker than to decode it in full, whatever it holds: a large body might hold millions of small
values, which would take seconds to build.
"""

MAX_DIGITS = 4300
"""As many digits as Python, and with it vLLM, takes an integer to have."""

_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord("x") for byte in range(256))
_MANY = b"0" * (MAX_DIGITS + 1)
_BLOCK = MAX_DIGITS // 2  # a row of too many digits fills one of these whole, wherever it begins
_BEFORE_NO_INTEGER = (b".", b"e", b"E", b"+", b"e-", b"E-")
_BEHIND_NO_INTEGER = (b".", b"e", b"E")


def check(body: bytes) -> None:
    """Raise UnicodeDecodeError or ValueError where JSON that was decoded is still not usable."""
    if not body.isascii():
        body.decode()
    for at in range(0, len(body) - _BLOCK, _BLOCK):
        if body[at : at + _BLOCK].isdigit():
            _refuse_giants(body)
            return


def _refuse_giants(body: bytes) -> None:
    """Raise ValueError if a row of too many digits is an integer outside of strings."""
    digits = body.translate(_DIGITS)
    at = digits.find(_MANY)
    quotes, counted = 0, 0
    while at >= 0:
        stretch = body[counted:at]
        quotes += stretch.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"')
        end = counted = digits.find(b"x", at)
        of_float = stretch.endswith(_BEFORE_NO_INTEGER) or body.startswith(_BEHIND_NO_INTEGER, end)
        if quotes % 2 == 0 and not of_float:
            message = f"the body holds an integer of more than {MAX_DIGITS} digits"
            raise ValueError(message)
        at = digits.find(_MANY, end)
