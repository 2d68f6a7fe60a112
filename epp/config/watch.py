"""
Watching files: their bytes whenever any of them changes.

By content and not by time stamp: a mounted ConfigMap changes by a symbolic link, and editors write
files anew. A file that cannot be read meanwhile is one that has not changed yet.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path

Contents = Mapping[Path, bytes]


async def changes(
    files: Callable[[], Iterable[Path]], known: Contents, *, interval: float
) -> AsyncIterator[Contents]:
    """
    Yield the contents of the files each time they are not what they were, looking every so often.

    `known` is what was read of them before. Which files there are may change: one that comes is no
    change by itself, and one that cannot be read is taken for what it was.
    """
    contents = dict(known)
    while True:
        await asyncio.sleep(interval)
        found = await asyncio.to_thread(_read, list(files()))
        changed = any(contents.get(path, data) != data for path, data in found.items())
        contents.update(found)
        if changed:
            yield contents


def _read(files: Iterable[Path]) -> Contents:
    found = {}
    for path in files:
        # A path with a zero byte is no OSError.
        with contextlib.suppress(OSError, ValueError):
            found[path] = path.read_bytes()
    return found
