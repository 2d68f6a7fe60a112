import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from epp.simulator.exposition import Page


def parsed(page: Page) -> dict[str, Metric]:
    return {
        family.name: family for family in text_string_to_metric_families(page.render().decode())
    }


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        pytest.param(0.5, {"1.0": 1, "2.0": 1, "+Inf": 1}, id="below the first bound"),
        pytest.param(1.0, {"1.0": 1, "2.0": 1, "+Inf": 1}, id="a bound belongs to its bucket"),
        pytest.param(1.5, {"1.0": 0, "2.0": 1, "+Inf": 1}, id="between two bounds"),
        pytest.param(99.0, {"1.0": 0, "2.0": 0, "+Inf": 1}, id="beyond all bounds"),
    ],
)
def test_a_value_counts_in_each_bucket_that_holds_it(value: float, counts: dict[str, int]):
    page = Page()
    page.histogram("h", "Help.", {}, [1.0, 2.0]).observe(value)

    samples = parsed(page)["h"].samples
    buckets = {sample.labels["le"]: sample.value for sample in samples if "le" in sample.labels}
    rest = {sample.name: sample.value for sample in samples if not sample.labels}

    assert buckets == counts
    assert rest == {"h_count": 1, "h_sum": value}


def test_labels_may_hold_what_the_format_must_escape():
    page = Page()
    page.gauge("g", "Help.", {"model_name": 'a "b"\\\n'}).value = 2

    assert parsed(page)["g"].samples[0].labels == {"model_name": 'a "b"\\\n'}


def test_a_page_shows_what_moved_since_the_last():
    page = Page()
    gauge = page.gauge("g", "Help.", {})
    histogram = page.histogram("h", "Help.", {}, [1.0])
    shown = []
    for value in (1.0, 2.0, 2.0, 0.0):
        gauge.value = value
        histogram.observe(value)
        families = parsed(page)
        shown.append([families["g"].samples[0].value, families["h"].samples[-1].value])

    assert shown == [[1, 1], [2, 3], [2, 5], [0, 5]]


def test_a_histogram_shows_a_value_that_adds_nothing_to_its_sum():
    page = Page()
    histogram = page.histogram("h", "Help.", {}, [1.0])
    page.render()

    histogram.observe(0.0)

    assert b"h_count{} 1.0" in page.render()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        pytest.param(0, "0.0", id="nothing"),
        pytest.param(3, "3.0", id="a whole number"),
        pytest.param(0.525, "0.525", id="a fraction"),
        pytest.param(999999, "999999.0", id="below a million"),
        pytest.param(1962479616, "1.962479616e+09", id="large"),
        pytest.param(1.7959507475851789e9, "1.7959507475851789e+09", id="a time"),
    ],
)
def test_numbers_are_written_as_a_real_page_writes_them(value: float, written: str):
    page = Page()
    page.gauge("g", "Help.", {}).value = value

    assert page.render().decode().splitlines()[-1] == f"g{{}} {written}"


def test_counters_and_histograms_say_when_each_series_began():
    page = Page()
    for engine in ("0", "1"):
        page.counter("c_total", "Help.", {"engine": engine})
        page.histogram("h", "Help.", {"engine": engine}, [])
        page.gauge("g", "Help.", {"engine": engine})

    names = [line.partition(" ")[0] for line in page.render().decode().splitlines()]
    text = page.render().decode()

    assert 'c_created{engine="0"}' in names
    assert 'c_created{engine="1"}' in names
    assert 'h_created{engine="1"}' in names
    assert text.count("# TYPE c_created gauge") == text.count("# TYPE h_created gauge") == 1
    assert "g_created" not in text
