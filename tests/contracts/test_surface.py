"""The public surface is exact and sorted, and every module imports alone."""

import pkgutil
import subprocess
import sys

import pytest

import epp
import epp_plugins
from epp import framework


def test_the_surface_is_sorted_and_complete() -> None:
    public = {
        name
        for name, value in vars(framework).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }

    assert public == set(framework.__all__)
    assert sorted(framework.__all__, key=lambda name: (not name.isupper(), name)) == list(
        framework.__all__
    )


def modules() -> list[str]:
    return sorted(
        module.name
        for package in (epp, epp_plugins)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    )


@pytest.mark.timeout(60)
def test_every_module_imports_alone() -> None:
    # One process for all: each module is imported with none of ours loaded before it.
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    for loaded in [m for m in sys.modules if m.split('.')[0] in ('epp', 'epp_plugins')]:\n"
        "        del sys.modules[loaded]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *modules()], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("heavy", ["grpc", "aiohttp", "google.protobuf", "rich"])
def test_help_is_quick_to_come(heavy: str) -> None:
    program = f"import sys, epp.cli; sys.exit({heavy!r} in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
