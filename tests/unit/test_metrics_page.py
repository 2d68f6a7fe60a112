"""What `epp metrics parse` says of a page, and of what was typed."""

from pathlib import Path

import msgspec
import pytest

from epp import metrics_page
from epp.framework import ConfigError

PAGE = Path(__file__).parents[1] / "data" / "vllm" / "metrics_under_load.txt"


async def test_an_unknown_engine_is_named_by_the_option_that_was_typed() -> None:
    with pytest.raises(ConfigError) as raised:
        await metrics_page.describe(str(PAGE), "nope")

    assert str(raised.value) == (
        "--engine: unknown engine 'nope'; known are sglang, triton, triton-tensorrt-llm,"
        " trtllm-serve, vllm"
    )


async def test_a_page_that_is_too_laborious_is_named(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_bytes(
        b"".join(b'vllm:num_requests_waiting{engine="%d"} 1\n' % at for at in range(1025))
    )
    with pytest.raises(ConfigError) as raised:
        await metrics_page.describe(str(path), "vllm")

    assert str(raised.value) == (
        f"{path}: the page has more than 1024 series of vllm:num_requests_waiting"
    )


async def test_a_page_of_the_engine_is_described() -> None:
    described = msgspec.json.decode(await metrics_page.describe(str(PAGE), "vllm"))

    assert (described["waiting"], described["running"], described["parse_errors"]) == (18, 4, 0)
