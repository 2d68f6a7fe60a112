import pytest

from epp.simulator.engine.adapters import Loads, ResidentAdapters


def test_the_adapter_that_was_unused_for_longest_gives_up_its_slot():
    adapters = ResidentAdapters(2, 9)

    loaded = [adapters.activate(names).loaded for names in (["a", "b"], ["a"], ["c"], ["a"], ["b"])]

    assert loaded == [2, 0, 1, 0, 1]


def test_an_adapter_in_the_memory_of_the_cpu_is_not_fetched_again():
    adapters = ResidentAdapters(1, 2)

    loads = [adapters.activate([name]) for name in "abacb"]

    assert loads == [Loads(1, 1), Loads(1, 1), Loads(1, 0), Loads(1, 1), Loads(1, 1)]
    assert (adapters.on_accelerator, adapters.on_cpu) == (("b",), ("c", "b"))


@pytest.mark.parametrize("name", ["a", "nobody"])
def test_a_forgotten_adapter_is_nowhere(name: str):
    adapters = ResidentAdapters(2, 2)
    adapters.activate(["a", "b"])

    adapters.forget(name)

    assert name not in (*adapters.on_accelerator, *adapters.on_cpu)
    assert "b" in adapters.on_accelerator
