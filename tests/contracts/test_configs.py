"""Every configuration that is shipped is valid for what reads it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from epp.demo import envoy, processes

ROOT = Path(__file__).parents[2]
ENVOY_FILES = sorted((ROOT / "deploy" / "envoy").glob("*.yaml"))


@pytest.mark.parametrize("path", ENVOY_FILES, ids=lambda path: path.stem)
def test_envoy_takes_its_reference_configurations(path: Path) -> None:
    binary = shutil.which(processes.command("envoy"))
    assert binary is not None, "the development extras bring an Envoy"

    done = subprocess.run(
        [binary, "--mode", "validate", "-l", "error", "-c", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.parametrize("path", ENVOY_FILES, ids=lambda path: path.stem)
def test_the_references_are_found_by_name(path: Path) -> None:
    assert envoy.reference(path.stem) == path.read_text()
    assert envoy.speaks_tls(path.read_text())
