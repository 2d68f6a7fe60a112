import random
from collections.abc import Callable
from pathlib import Path

import pytest

from epp.framework import ConfigError, EndpointUpdate, Registry, ScrapeError
from epp.testing import endpoint
from epp_plugins.extractors.model_server_metrics import EngineConfig, ModelServerMetricsExtractor

CAPTURES = Path(__file__).parents[3] / "data" / "vllm"
ENGINE_LABEL = "llm-d.ai/engine-type"

TINY = frozenset({"tiny-llama"})

REAL_PAGES = {
    "metrics_idle_fresh.txt": EndpointUpdate(
        waiting=0,
        running=0,
        kv_usage=0.0,
        base_models=TINY,
        block_size=128,
        num_blocks=8192,
    ),
    "metrics_under_load.txt": EndpointUpdate(
        waiting=18,
        running=4,
        kv_usage=0.0009765923032318824,
        running_adapters=frozenset("ac"),
        waiting_adapters=frozenset("ac"),
        max_adapters=2,
        base_models=TINY,
        block_size=32,
        num_blocks=32768,
    ),
    "metrics_dp2_under_load.txt": EndpointUpdate(
        waiting=12,
        running=8,
        kv_usage=(0.0007629627368999081 + 0.0007324442274239118) / 2,
        running_adapters=frozenset("abc"),
        waiting_adapters=frozenset("abc"),
        max_adapters=2,
        base_models=TINY,
        block_size=32,
        num_blocks=2 * 65536,
    ),
    "metrics_after_preemption.txt": EndpointUpdate(
        waiting=0,
        running=0,
        kv_usage=0.0,
        running_adapters=frozenset(),
        waiting_adapters=frozenset(),
        max_adapters=2,
        base_models=TINY,
        block_size=32,
        num_blocks=41,
    ),
}


def read(page: str | bytes, *, engine: str = "vllm", **labels: str) -> EndpointUpdate:
    extractor = ModelServerMetricsExtractor(default_engine=engine)
    return extractor.extract(
        endpoint(labels=labels), page.encode() if isinstance(page, str) else page
    )


@pytest.mark.parametrize("name", REAL_PAGES)
def test_pages_of_a_real_vllm_are_read(name: str) -> None:
    assert read((CAPTURES / name).read_bytes()) == REAL_PAGES[name]


def test_the_base_models_are_those_that_series_of_load_name() -> None:
    page = (
        'vllm:num_requests_waiting{model_name="llama"} 1\n'
        'vllm:num_requests_running{model_name="qwen"} 1\n'
        'vllm:lora_requests_info{max_lora="2",model_name="x"} 1\n'
    )

    assert read(page).base_models == frozenset({"llama", "qwen"})


def test_a_page_that_names_no_model_leaves_the_base_models_as_they_were() -> None:
    assert read("vllm:num_requests_waiting 1\n").base_models is None


@pytest.mark.parametrize(
    "reorder",
    [
        lambda lines, rng: rng.sample(lines, len(lines)),
        lambda lines, _: lines[::-1],
        lambda lines, _: sorted(lines),
    ],
    ids=["shuffled", "reversed", "sorted"],
)
@pytest.mark.parametrize("name", REAL_PAGES)
def test_the_order_of_lines_does_not_matter(
    name: str,
    reorder: Callable[[list[bytes], random.Random], list[bytes]],
    rng: random.Random,
) -> None:
    lines = (CAPTURES / name).read_bytes().splitlines()

    assert read(b"\n".join(reorder(lines, rng))) == REAL_PAGES[name]


def test_carriage_returns_and_a_last_line_without_an_end_do_not_matter() -> None:
    page = (CAPTURES / "metrics_under_load.txt").read_bytes()

    assert read(page.replace(b"\n", b"\r\n").rstrip()) == REAL_PAGES["metrics_under_load.txt"]


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html><body>vllm:num_requests_waiting 4</body></html>",
        "# TYPE vllm:num_requests_waiting gauge\n",
        "vllm:num_requests_waiting NaN\n",
        "sglang:num_queue_reqs 4\n",
        '{"error": "not found"}',
    ],
    ids=["empty", "HTML", "declared only", "nothing readable", "another engine", "JSON"],
)
def test_a_page_with_nothing_to_read_is_a_failed_scrape(page: str) -> None:
    with pytest.raises(ScrapeError) as raised:
        read(page)

    assert raised.value.reason == "unusable"


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-Inf", "-1", "abc", "1_0", "1e300", "", "0x10", "5 6 7"]
)
@pytest.mark.parametrize(
    ("family", "signal"),
    [
        ("vllm:num_requests_waiting", "waiting"),
        ("vllm:num_requests_running", "running"),
        ("vllm:kv_cache_usage_perc", "kv_usage"),
    ],
    ids=["waiting", "running", "kv_usage"],
)
def test_a_value_that_makes_no_sense_is_missing(family: str, signal: str, value: str) -> None:
    good = {
        "vllm:num_requests_waiting": "1",
        "vllm:num_requests_running": "1",
        "vllm:kv_cache_usage_perc": "1",
    }
    update = read("\n".join(f"{name} {v}" for name, v in (good | {family: value}).items()))

    assert getattr(update, signal) is None
    assert update.missing == {signal, "block_size", "num_blocks"}
    assert update.parse_errors == 1


def test_of_several_engines_those_that_can_be_read_count() -> None:
    update = read(
        'vllm:num_requests_waiting{engine="0"} 5\nvllm:num_requests_waiting{engine="1"} NaN\n'
    )

    assert (update.waiting, update.parse_errors) == (5, 1)


@pytest.mark.parametrize(
    ("page", "kv_usage"),
    [
        ("vllm:gpu_cache_usage_perc 0.9", 0.9),
        ("vllm:kv_cache_usage_perc 0.1", 0.1),
        ("vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1", 0.1),
        ("vllm:kv_cache_usage_perc 1.7", 1.0),
        ('vllm:kv_cache_usage_perc{engine="0"} 3\nvllm:kv_cache_usage_perc{engine="1"} 0', 0.5),
    ],
    ids=["old name", "new name", "the new name wins", "no more than full", "each engine's at most"],
)
def test_kv_usage_is_a_fraction_under_either_name(page: str, kv_usage: float) -> None:
    assert read(page).kv_usage == kv_usage


def test_adapters_of_the_past_may_be_many() -> None:
    """A model server keeps a line for every set of adapters that it ever had in use."""
    past = "".join(
        f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="a{at}"}} {at}\n'
        for at in range(5000)
    )

    assert read(past).running_adapters == {"a4999"}


def test_a_page_of_far_too_many_engines_is_a_failed_scrape() -> None:
    page = "".join(f'vllm:num_requests_waiting{{engine="{at}"}} 1\n' for at in range(1025))
    with pytest.raises(
        ScrapeError, match="more than 1024 series of vllm:num_requests_waiting"
    ) as e:
        read(page)

    assert e.value.reason == "payload"


def test_a_family_that_has_another_use_beside_the_adapters_may_not_be_longer() -> None:
    mine = EngineConfig(name="mine", queued_requests_spec="m", lora_spec="m")
    extractor = ModelServerMetricsExtractor(default_engine="mine", engine_configs=[mine])
    with pytest.raises(ScrapeError, match="more than 1024 series of m"):
        extractor.extract(endpoint(), b"m 1\n" * 1025)


def test_an_adapter_may_run_and_wait_at_once() -> None:
    update = read(
        'vllm:lora_requests_info{running_lora_adapters="a, b",waiting_lora_adapters="b,,c ",'
        'max_lora="4"} 1.5e9'
    )

    assert update.running_adapters == frozenset("ab")
    assert update.waiting_adapters == frozenset("bc")
    assert update.max_adapters == 4


@pytest.mark.parametrize(
    ("label", "block_size", "errors"),
    [
        ('block_size="16",', 16, 0),
        ('block_size="0",', 0, 0),
        ('block_size="4096",', 4096, 0),
        ('block_size="None",', None, 1),
        ('block_size="-16",', None, 1),
        ('block_size="16.0",', None, 1),
        (f'block_size="{"9" * 5000}",', None, 1),
        ("", None, 0),
        ('_block_size="7",hash_block_size="8",note=",block_size=\\"9\\"",', None, 0),
    ],
    ids=["usual", "zero", "large", "None", "negative", "decimal", "endless", "absent", "alike"],
)
def test_the_block_size_is_what_the_label_says(
    label: str, block_size: int | None, errors: int
) -> None:
    update = read(f'vllm:cache_config_info{{{label}num_gpu_blocks="512"}} 1')

    assert (update.block_size, update.num_blocks) == (block_size, 512)
    assert ("block_size" in update.missing) == (block_size is None)
    assert update.parse_errors == errors


def test_blocks_of_size_zero_are_something_that_was_read() -> None:
    update = read('vllm:cache_config_info{block_size="0",num_gpu_blocks="0"} 1')

    assert (update.block_size, update.num_blocks) == (0, 0)


def test_a_malformed_line_of_the_cache_is_counted() -> None:
    update = read('vllm:cache_config_info{block_size="16" 1\nvllm:num_requests_waiting 1')

    assert (update.block_size, update.parse_errors) == (None, 1)


BUILT_IN_PAGES = {
    "sglang": (
        """
sglang:num_queue_reqs 3
sglang:num_running_reqs 2
sglang:token_usage 0.5
sglang:cache_config_info{page_size="64",num_pages="11147"} 1
""",
        EndpointUpdate(waiting=3, running=2, kv_usage=0.5, block_size=64, num_blocks=11147),
    ),
    "trtllm-serve": (
        """
trtllm_num_requests_waiting 3
trtllm_num_requests_running 2
trtllm_kv_cache_utilization 0.5
trtllm_kv_cache_tokens_per_block 32
trtllm_kv_cache_max_blocks 900
""",
        EndpointUpdate(waiting=3, running=2, kv_usage=0.5, block_size=32, num_blocks=900),
    ),
    "triton-tensorrt-llm": (
        """
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 2
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 32
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 900
""",
        EndpointUpdate(waiting=3, running=2, kv_usage=0.5, block_size=32, num_blocks=900),
    ),
    "triton": (
        """
nv_inference_pending_request_count{model="a",version="1"} 1
nv_inference_pending_request_count{model="b",version="1"} 2
nv_inference_exec_count{model="a",version="1"} 123456
""",
        EndpointUpdate(waiting=3),
    ),
}


@pytest.mark.parametrize("engine", BUILT_IN_PAGES)
def test_other_engines_are_built_in(engine: str) -> None:
    page, update = BUILT_IN_PAGES[engine]

    assert read(page, engine=engine) == update


@pytest.mark.parametrize(
    ("labels", "waiting"),
    [
        ({}, 1),
        ({ENGINE_LABEL: "sglang"}, 2),
        ({"inference.networking.k8s.io/engine-type": "sglang"}, 2),
        ({ENGINE_LABEL: "vllm", "inference.networking.k8s.io/engine-type": "sglang"}, 1),
        ({ENGINE_LABEL: "something-new"}, 1),
        ({ENGINE_LABEL: ""}, 1),
    ],
    ids=["none", "label", "legacy label", "both", "unknown", "empty"],
)
def test_a_label_of_the_endpoint_tells_the_engine(labels: dict[str, str], waiting: int) -> None:
    page = "vllm:num_requests_waiting 1\nsglang:num_queue_reqs 2\n"

    assert read(page, **labels).waiting == waiting


def test_the_label_and_the_names_can_be_configured() -> None:
    mine = EngineConfig(
        name="mine", queued_requests_spec="queue{kind=in}", running_requests_spec=""
    )
    extractor = ModelServerMetricsExtractor(
        engine_label_key="engine", default_engine="mine", engine_configs=[mine]
    )
    page = b'queue{kind="in"} 4\nqueue{kind="out"} 9\nvllm:num_requests_waiting 1\n'
    own = extractor.extract(endpoint(), page)
    other = extractor.extract(endpoint(labels={"engine": "vllm"}), page)

    assert own == EndpointUpdate(waiting=4)
    assert other.waiting == 1


def test_a_configured_engine_takes_over_what_it_does_not_say_of_the_built_in_one() -> None:
    renamed = EngineConfig(name="vllm", queued_requests_spec="vllm:waiting_v2", lora_spec="")
    extractor = ModelServerMetricsExtractor(engine_configs=[renamed])
    page = (CAPTURES / "metrics_under_load.txt").read_bytes() + b"vllm:waiting_v2 77\n"
    update = extractor.extract(endpoint(), page)

    assert (update.waiting, update.running) == (77, 4)
    assert (update.running_adapters, update.max_adapters) == (None, None)


def test_a_label_without_a_name_is_not_wanted() -> None:
    mine = EngineConfig(name="mine", cache_info_spec="c", cache_block_size_label_name="size")
    extractor = ModelServerMetricsExtractor(default_engine="mine", engine_configs=[mine])
    update = extractor.extract(endpoint(), b'c{size="16",count="8"} 1\n')

    assert update == EndpointUpdate(block_size=16)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"defaultEngine": "vlm"}, "defaultEngine: unknown engine 'vlm'; known are sglang, triton"),
        ({"engineConfigs": [{"name": "default", "loraSpec": "x"}]}, r"engineConfigs\[0\].name"),
        ({"engineConfigs": [{"name": "", "loraSpec": "x"}]}, r"engineConfigs\[0\].name"),
        ({"engineConfigs": [{"name": "x", "loraSpec": "y"}] * 2}, r"\[1\].*configured twice"),
        ({"engineConfigs": [{"name": "x"}]}, "engine 'x' reads no family at all"),
        ({"engineConfigs": [{"name": "x", "loraSpec": "a b"}]}, "engine 'x': expected `name`"),
        ({"engineConfigs": [{"name": "x", "customMetrics": []}]}, "unknown field `customMetrics`"),
        ({"engineConfigs": [{"loraSpec": "x"}]}, "missing required field `name`"),
        ({"engines": []}, "unknown field `engines`"),
    ],
    ids=[
        "unknown default", "reserved name", "empty name", "same name", "nothing to read",
        "bad spec", "unknown field", "no name", "unknown parameter",
    ],
)  # fmt: skip
def test_a_configuration_that_makes_no_sense_is_refused(
    parameters: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Registry().build("core-metrics-extractor", "metrics", parameters)


def test_the_parameters_are_those_of_the_field() -> None:
    parameters = {
        "engineLabelKey": "engine",
        "defaultEngine": "mine",
        "engineConfigs": [
            {
                "name": "mine",
                "queuedRequestsSpec": "q",
                "runningRequestsSpec": "r",
                "kvUsageSpec": "k",
                "loraSpec": "l",
                "cacheInfoSpec": "c",
                "cacheBlockSizeLabelName": "size",
                "cacheNumBlocksLabelName": "count",
            }
        ],
    }
    plugin = Registry().build("core-metrics-extractor", "metrics", parameters).plugin
    page = b'q 1\nr 2\nk 0.5\nl{max_lora="3"} 9\nc{size="16",count="8"} 1\n'

    assert plugin.extract(endpoint(), page) == EndpointUpdate(
        waiting=1,
        running=2,
        kv_usage=0.5,
        running_adapters=frozenset(),
        waiting_adapters=frozenset(),
        max_adapters=3,
        block_size=16,
        num_blocks=8,
    )
