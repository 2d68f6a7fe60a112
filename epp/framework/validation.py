"""
Validation messages: what msgspec found wrong, in words that name the place, the value and the cure.
"""

import difflib
import re
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MAX_SHOWN_CHARS = 60

Step = str | int


def described(error: msgspec.ValidationError, value: object, schema: Any, *, root: str = "") -> str:
    """
    Return the error's message: where in `value`, what is there, what `schema` expects there.

    `root` names the whole, before the path within it. A key that is not known is compared with
    those that are.
    """
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`")
    steps = _steps(path)
    where = (root + path).lstrip(".")
    text = text[0].lower() + text[1:]
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        text = f"unknown field `{unknown[1]}`{near(unknown[1], _fields(_type_at(schema, steps)))}"
    elif steps is not None and "missing required" not in text:
        found = _value_at(value, steps)
        if isinstance(found, str | int | float | bool):
            shown = repr(found)
            text += f": {shown[:_MAX_SHOWN_CHARS]}{'…' if len(shown) > _MAX_SHOWN_CHARS else ''}"
    return f"{where}: {text}" if where else text


def near(word: str, known: Iterable[str]) -> str:
    """Return a hint to be put after a word that is not known: what was meant, or what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known are {', '.join(known)}" if known else "; nothing may stand here"


def _steps(path: str) -> list[Step] | None:
    """Return the steps of a path; None where it leads through a mapping and leaves its key out."""
    steps: list[Step] = []
    for name, index in _STEP.findall(path):
        if index == "...":
            return None
        steps.append(name or int(index))
    return steps


def _value_at(value: object, steps: Iterable[Step]) -> object:
    for step in steps:
        try:
            value = value[step]  # type: ignore[index]  # a wrong step is answered below
        except (TypeError, LookupError):
            return None
    return value


def _type_at(schema: Any, steps: Iterable[Step] | None) -> Any:
    """Return the type that a schema has at the end of some steps, None where they lead nowhere."""
    for step in steps or ():
        schema = _plain(schema)
        if isinstance(step, int):
            schema = next(iter(get_args(schema)), None)
        else:
            schema = _fields(schema).get(step)
    return _plain(schema) if steps is not None else None


def _plain(schema: Any) -> Any:
    """Return what a type is without annotations, and without None."""
    if get_origin(schema) is Annotated:
        return _plain(get_args(schema)[0])
    if get_origin(schema) in (Union, UnionType):
        return _plain(next((one for one in get_args(schema) if one is not type(None)), None))
    return schema


def _fields(schema: Any) -> dict[str, Any]:
    if not (isinstance(schema, type) and issubclass(schema, msgspec.Struct)):
        return {}
    return {one.encode_name: one.type for one in msgspec.structs.fields(schema)}
