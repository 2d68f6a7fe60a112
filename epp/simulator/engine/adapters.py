"""
Adapters in memory: which are on the accelerator, which on the CPU; the longest unused goes first.

The accelerator holds as many as one step can compute; the CPU's memory holds more, those of the
accelerator among them. An adapter that is on the CPU is loaded quicker than one that is nowhere.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple


class Loads(NamedTuple):
    """What a step had to move: adapters to the accelerator, and of these from storage."""

    loaded: int
    fetched: int


_NONE = Loads(0, 0)


class ResidentAdapters:
    """The adapters in memory, by name."""

    def __init__(self, on_accelerator: int, on_cpu: int) -> None:
        self._slots = on_accelerator
        self._cpu_slots = on_cpu
        self._accelerator: OrderedDict[str, None] = OrderedDict()
        self._cpu: OrderedDict[str, None] = OrderedDict()

    @property
    def on_accelerator(self) -> tuple[str, ...]:
        """The names of those on the accelerator, the longest unused first."""
        return tuple(self._accelerator)

    @property
    def on_cpu(self) -> tuple[str, ...]:
        """The names of those in the CPU's memory, the longest unused first."""
        return tuple(self._cpu)

    def activate(self, names: Iterable[str]) -> Loads:
        """Bring these onto the accelerator; say what had to be moved for that."""
        loaded = fetched = 0
        for name in names:
            if name not in self._accelerator:
                loaded += 1
                fetched += name not in self._cpu
            self._accelerator[name] = self._cpu[name] = None
            self._accelerator.move_to_end(name)
            self._cpu.move_to_end(name)
        while len(self._accelerator) > self._slots:
            self._accelerator.popitem(last=False)
        while len(self._cpu) > self._cpu_slots:
            self._cpu.popitem(last=False)
        return Loads(loaded, fetched) if loaded else _NONE

    def holds(self, names: Iterable[str]) -> bool:
        """Whether all of these are on the accelerator."""
        return all(name in self._accelerator for name in names)

    def forget(self, name: str) -> None:
        """Drop an adapter that was unloaded from the server."""
        self._accelerator.pop(name, None)
        self._cpu.pop(name, None)
