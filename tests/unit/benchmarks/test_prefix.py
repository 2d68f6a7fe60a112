"""The prefix benchmark measures what it says: hits where prompts share, and none where not."""

import pytest

from benchmarks import prefix
from epp.testing import request


@pytest.mark.parametrize(
    ("shared", "least", "most"), [(0.0, 0.0, 0.0), (0.2, 0.19, 0.2), (1.0, 1.0, 1.0)]
)
def test_prompts_share_as_much_as_they_are_to(shared: float, least: float, most: float) -> None:
    traffic = prefix.Traffic(3, prefix.TOKENS, shared)
    traffic.warm(times=2)

    match = traffic.producer.produce(request(traffic.prompt(), model="bench"), traffic.view)

    assert match.total_blocks == prefix.TOKENS // 64
    assert all(least <= one / match.total_blocks <= most for one in match.matched_blocks)


def test_a_batch_sends_requests_and_ends_them() -> None:
    traffic = prefix.Traffic(2, 640, 0.0)
    means = traffic.batch()

    assert len(means) == 4
    assert all(microseconds > 0 for microseconds in means)
    assert traffic.producer.dump_state()["heldBlocks"] == 10 * prefix.BATCH


def test_memory_is_measured_of_all_that_was_sent() -> None:
    default, endless = prefix.memory(prompts=16)

    assert default.sent == endless.sent == endless.held == 16 * (prefix.MEMORY_TOKENS // 64)
    assert default.taken > 0
    assert 0.5 < endless.taken / endless.reported < 2
