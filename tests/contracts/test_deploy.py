"""Every configuration that is shipped loads, and every example works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from epp.config import loader
from epp.framework import EndpointView, Registry
from epp.testing import assert_conforms, endpoint, request

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIGS = sorted([*DEPLOY.glob("configs/*.yaml"), *DEPLOY.glob("examples/*/config.yaml")])
PACKAGE = DEPLOY / "examples" / "package"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_configuration_loads(path: Path) -> None:
    built = loader.load(path.read_bytes(), Registry(folder=path.parent))

    assert built.warnings == []
    assert built.profiles[0].scorers or built.profiles[0].filters


def test_the_default_is_what_is_built_in() -> None:
    shipped = loader.load((DEPLOY / "configs/default.yaml").read_bytes(), Registry())
    built_in = loader.load(loader.DEFAULT_CONFIG, Registry())

    weights = [
        {one.name: weight for one, weight in built.profiles[0].scorers}
        for built in (shipped, built_in)
    ]
    assert weights[0] == weights[1]


def test_the_file_scores_and_conforms() -> None:
    folder = DEPLOY / "examples" / "single-file"
    plugin = Registry(folder=folder).load("prefer_zone.py:ZoneScorer")
    pool = EndpointView([endpoint("a", labels={"zone": "eu-1"}), endpoint("b")])

    assert_conforms(lambda: plugin(zone="eu-1"))
    assert plugin(zone="eu-1").score(request(), pool) == [1.0, 0.0]


@pytest.mark.timeout(60)
def test_the_package_can_be_installed_and_is_found(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, str(tmp_path), str(PACKAGE)], check=True, timeout=50)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    program = (
        "from epp.testing import assert_conforms, endpoint, request\n"
        "from epp.framework import EndpointView, Registry\n"
        "built = Registry().build('quiet-hours-filter', 'quiet', {'hour': 23}).plugin\n"
        "assert_conforms(lambda: built)\n"
        "pool = EndpointView([endpoint('a', labels={'quiet-hours': '22-6'}), endpoint('b')])\n"
        "print([one.id.name for one in built.filter(request(), pool)])"
    )

    kept = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    listed = subprocess.run(
        [sys.executable, "-m", "epp", "plugins", "quiet-hours-filter", "--json"],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip

    assert kept.stdout == "['b']\n"
    [one] = json.loads(listed.stdout)
    assert [parameter["name"] for parameter in one["parameters"]] == ["label", "hour"]
