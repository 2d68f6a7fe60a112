"""The commands: tables, JSON, pictures, and what they refuse."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from epp.simulator.study import lora, priority
from epp.simulator.study.command import study


def call(*arguments: str) -> Result:
    return CliRunner().invoke(study, [*arguments, "--processes", "1"], catch_exceptions=False)


QUICK = {
    "lora": ["lora", "--seeds", "1"],
    "priority": ["priority", "--seeds", "1", "--seconds", "15", "--no-strict-order"],
}


def test_the_lora_table_has_published_and_simulated_figures_side_by_side():
    result = call(*QUICK["lora"])

    assert result.exit_code == 0
    for expected in ("99,070", "16.75", "bimodal", "skip for stop", "sigma 1.2", "one run"):
        assert expected in result.stdout
    assert result.stderr == ""


def test_figures_outside_the_tolerance_are_named():
    outside = [one for one in lora.compare(_one_seed()) if one.outside and not one.bimodal]

    shown = " ".join(call(*QUICK["lora"]).stdout.split())

    assert outside
    assert len(outside) == shown.count("outside 10%")
    assert "More than 10% off the published figure: skip P99 TTFT ms." in shown


def _one_seed() -> list[lora.Outcome]:
    return [lora.attempt(trial) for trial in lora.trials(1)]


def test_the_lora_figures_come_as_json():
    figures = json.loads(call(*QUICK["lora"], "--json").stdout)

    assert figures["seeds"] == 1
    assert figures["stop"]["requests_per_second"]["published"] == 2.49
    assert 6 < figures["gap"]["simulated"]["mean"] < 8.5
    assert sorted(one["seeds"] for one in figures["skip_by_first_wave"].values()) == [[], [0]]


def test_the_priority_table_tells_the_load_and_every_variant():
    result = call(*QUICK["priority"])

    assert result.exit_code == 0
    for name in priority.VARIANTS:
        assert result.stdout.count(f" {name} ") + (name == priority.REFERENCE) >= 3
    assert "3 requests/s, 32 to 256 prompt" in result.stdout
    assert "Poisson arrivals for 15 s" in result.stdout
    assert "newcomers" not in result.stdout


def test_what_is_read_from_the_table_is_computed_from_it():
    shown = " ".join(call(*QUICK["priority"]).stdout.split())
    figures = json.loads(call(*QUICK["priority"], "--json").stdout)["variants"]
    waits = {
        name: one["classes"]["interactive"]["p99_ttft_seconds"]["mean"]
        for name, one in figures.items()
    }

    least = min(waits, key=waits.__getitem__)

    assert f"interactive P99 TTFT, s: least under {least} ({waits[least]:.2f})" in shown


@pytest.mark.timeout(60)
def test_the_strict_order_has_a_table_of_its_own():
    result = call("priority", "--seeds", "1", "--seconds", "1", "--strict-order")

    assert result.exit_code == 0
    assert "a swapped-out request, and newcomers for 120 s" in result.stdout
    assert "the time outside goes from" in result.stdout


@pytest.mark.parametrize("name", QUICK)
def test_a_picture_is_a_png_of_some_size(tmp_path: Path, name: str):
    path = tmp_path / "picture.png"

    result = call(*QUICK[name], "--picture", str(path))

    with Image.open(path) as image:
        image.load()
        assert result.exit_code == 0
        assert image.format == "PNG"
        assert image.width > 1000 < 2 * image.height


def test_a_picture_may_be_an_svg(tmp_path: Path):
    path = tmp_path / "picture.svg"

    call(*QUICK["lora"], "--picture", str(path))

    assert "<svg" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--seeds", "0"], "0 is not in the range x>=1", id="no seed"),
        pytest.param(["--seeds", "many"], "'many' is not a valid integer", id="no number"),
        pytest.param(["--processes", "0"], "0 is not in the range x>=1", id="no process"),
        pytest.param(["--picture", "a.gif"], "a.gif must end in .png or .svg", id="a GIF"),
        pytest.param(
            ["--picture", "/nowhere/a.png"], "there is no folder /nowhere", id="no such folder"
        ),
    ],
)
def test_bad_flags_are_refused_before_anything_is_run(
    name: str, arguments: list[str], complaint: str
):
    result = CliRunner().invoke(study, [name, *arguments])

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_a_study_without_time_is_refused():
    result = CliRunner().invoke(study, ["priority", "--seconds", "0"])

    assert result.exit_code == 2
    assert "--seconds" in result.stderr
