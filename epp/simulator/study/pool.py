"""
The pool: independent runs on several processes, their outcomes in the order of the runs.

What a run gives depends on what it is given and nothing else, so the number of processes changes
how long a study takes and not what it says. Processes are spawned, not forked: a progress bar has
a thread of its own, and a fork would copy its locks and not the thread.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def map_runs(
    work: Callable[[_T], _R],
    tasks: Sequence[_T],
    *,
    processes: int,
    track: Callable[[Iterable[_R]], Iterable[_R]] = iter,
) -> Sequence[_R]:
    """
    Return what `work` makes of each task, in their order.

    `track` gets to see the outcomes as they come. With one process all is done in this one.
    """
    processes = min(processes, len(tasks))
    if processes <= 1:
        return list(track(map(work, tasks)))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as executor:
        try:
            return list(track(executor.map(work, tasks)))
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
