"""Whatever a page holds, it is read or refused; and what was written is what is read."""

import math

from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from epp.framework import EndpointUpdate, ScrapeError
from epp.testing import endpoint
from epp_plugins.extractors.model_server_metrics import ModelServerMetricsExtractor
from epp_plugins.extractors.model_server_metrics.exposition import (
    Sample,
    Scanner,
    Selector,
    parse_labels,
)

EXTRACTOR = ModelServerMetricsExtractor()
ENDPOINT = endpoint()

# Pieces that pages are made of, so that what is random comes near to what is read.
FRAGMENTS = st.sampled_from(
    [
        b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc", b"vllm:lora_requests_info",
        b"vllm:cache_config_info", b"vllm:gpu_cache_usage_perc", b"{", b"}", b'"', b"\\", b",",
        b"=", b"\n", b"\r\n", b" ", b"\t", b"#", b"# TYPE ", b" histogram", b"_count",
        b'engine="0"', b'block_size="16"', b'num_gpu_blocks="None"', b'max_lora="x"',
        b'quantile="0.5"', b'running_lora_adapters="a,b"', b"1", b"-1", b"NaN", b"+Inf", b"1e308",
        b"1e999", b"\xff",
    ]
)  # fmt: skip
ODD_PAGES = st.lists(st.one_of(FRAGMENTS, st.binary(max_size=8)), max_size=60).map(b"".join)

LABEL_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not name.startswith("__") and name not in ("le", "quantile")
)
LABEL_VALUES = st.text(
    st.one_of(st.sampled_from('\\"{},=# \n'), st.characters(codec="utf-8")), max_size=12
).filter(lambda value: "\r" not in value)
VALUES = st.one_of(
    st.integers(0, 2**53).map(float), st.floats(0, 1e15), st.sampled_from([0.0, 1.0, 0.5])
)


def is_sound(update: EndpointUpdate) -> bool:
    counts = (update.waiting, update.running, update.block_size, update.num_blocks)
    return (
        all(count is None or (isinstance(count, int) and count >= 0) for count in counts)
        and (update.kv_usage is None or 0.0 <= update.kv_usage <= 1.0)
        and update.parse_errors >= 0
    )


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=400), ODD_PAGES))
@example(b'vllm:num_requests_waiting 1e308\nvllm:num_requests_waiting{a="b"} 9007199254740992')
def test_random_bytes_are_read_or_refused(page: bytes) -> None:
    try:
        update = EXTRACTOR.extract(ENDPOINT, page)
    except ScrapeError:
        return

    assert is_sound(update)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_labels_or_are_not(raw: bytes) -> None:
    labels = parse_labels(raw)

    assert labels is None or isinstance(labels, dict)


@settings(deadline=None)
@given(
    st.lists(LABEL_NAMES, min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.tuples(
            st.just(names),
            st.dictionaries(
                st.tuples(*(LABEL_VALUES for _ in names)), VALUES, min_size=1, max_size=5
            ),
        )
    )
)
def test_what_prometheus_writes_is_what_is_read(
    family: tuple[list[str], dict[tuple[str, ...], float]],
) -> None:
    names, values = family
    registry = CollectorRegistry()
    Counter("other", "m 9", registry=registry).inc()
    Histogram("m_seconds", 'm{a="b"} 9', registry=registry).observe(3)
    gauge = Gauge("m", 'Help with \\ and\nm 9 and "quotes".', names, registry=registry)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
    found = Scanner(["m"]).scan(generate_latest(registry)).series(Selector("m"))
    expected = {
        frozenset(zip(names, labels, strict=True)): value for labels, value in values.items()
    }

    assert {frozenset((s.labels or {}).items()): s.value for s in found} == expected
    assert len(found) == len(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(VALUES, st.integers(0, 2**45)), min_size=1, max_size=6))
def test_of_dated_samples_the_newest_is_read(samples: list[tuple[float, int]]) -> None:
    page = "".join(f"m {value!r} {moment}\n" for value, moment in samples)
    found = Scanner(["m"]).scan(page.encode()).series(Selector("m"))
    newest = max(moment for _, moment in samples)
    expected = [value for value, moment in samples if moment == newest][-1]

    assert found == [Sample({}, expected, float(newest))]


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=8))
def test_engines_add_up_whatever_they_say(values: list[float]) -> None:
    page = "".join(
        f'vllm:num_requests_waiting{{engine="{at}"}} {value!r}\n' for at, value in enumerate(values)
    )
    usable = [value for value in values if math.isfinite(value) and 0 <= value <= 2**53]
    update = EXTRACTOR.extract(ENDPOINT, page.encode() + b"vllm:num_requests_running 1\n")

    assert update.waiting == (int(sum(usable)) if usable else None)
    assert update.parse_errors == len(values) - len(usable)
