"""
Watching a file: its bytes whenever they change.

By content and not by time stamp: a mounted ConfigMap changes by a symbolic link, and editors write
files anew. A file that cannot be read meanwhile is one that has not changed yet.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path


async def changes(path: Path, known: bytes, *, interval: float) -> AsyncIterator[bytes]:
    """Yield the file's bytes each time they are not what they were, looking every so often."""
    while True:
        await asyncio.sleep(interval)
        try:
            found = await asyncio.to_thread(path.read_bytes)
        except OSError:
            continue
        if found != known:
            known = found
            yield found
