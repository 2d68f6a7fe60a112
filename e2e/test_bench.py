"""The benchmarks run, through real processes, and leave none behind."""

import signal
import sys
from pathlib import Path

import msgspec
import pytest

from epp.demo import processes


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks", "--quick", *arguments]


def children(pid: int) -> list[int]:
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if (text := _read(path / "stat")) and text.rpartition(")")[2].split()[1] == str(pid)
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended meanwhile
        return ""


async def test_a_short_request_is_measured_beside_the_floor(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    argv = command("--only", "short-lean", "--json", str(figures))
    async with processes.started("bench", argv, tmp_path) as bench:
        code = await bench.process.wait()
    assert code == 0, bench.text()
    results = msgspec.json.decode(figures.read_bytes())
    [scenario] = results["scenarios"]

    assert scenario["name"] == "short-lean"
    assert min(scenario["picker"]["ratio"], scenario["floor"]["ratio"]) > 0
    assert scenario["to_floor"] > 0
    assert results["at_rest"]["resident_mb"] > 10


async def test_a_run_that_is_stopped_stops_what_it_started(tmp_path: Path) -> None:
    argv = command("--only", "short-lean")
    async with processes.started("bench", argv, tmp_path) as bench:
        await bench.wait_for(lambda text: "measuring short-lean" in text or None)
        started = children(bench.pid)
        code = await bench.stop(signal.SIGTERM)
    left = [pid for pid in started if _read(Path(f"/proc/{pid}/stat"))]

    assert (code, left) == (1, [])
    assert len(started) >= 6
    assert "broke: terminated" in bench.text()


@pytest.mark.parametrize(
    ("module", "options", "shown"),
    [
        pytest.param("simulator_engine", ["--quick"], "256 at once, KV events", id="engine"),
        pytest.param(
            "simulator_streams",
            ["--streams", "20", "--seconds", "0.5", "--time-scale", "0.1"],
            "20 streams at once",
            id="streams",
        ),
    ],
)
async def test_the_simulator_is_measured(
    module: str, options: list[str], shown: str, tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", f"benchmarks.{module}", *options]
    async with processes.started("bench", argv, tmp_path) as bench:
        code = await bench.process.wait()

    assert code == 0, bench.text()
    assert shown in bench.text()
