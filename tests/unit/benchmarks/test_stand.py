"""The stand: Envoy without the picker, and the kernel's account of a process."""

import os
import time

import msgspec
import pytest

from benchmarks import stand
from benchmarks.workloads import REFERENCES
from epp.demo import envoy


@pytest.mark.parametrize("name", REFERENCES.values())
def test_without_the_picker_envoy_leads_straight_to_the_upstream(name: str) -> None:
    tree = msgspec.yaml.decode(stand.without_picker(envoy.reference(name), 4242))
    resources = tree["static_resources"]
    [manager] = resources["listeners"][0]["filter_chains"][0]["filters"]
    [cluster] = resources["clusters"]
    [route] = manager["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]

    assert [one["name"] for one in manager["typed_config"]["http_filters"]] == [
        "envoy.filters.http.router"
    ]
    assert route["route"]["cluster"] == cluster["name"]
    assert list(envoy._addresses(cluster)) == [{"address": "127.0.0.1", "port_value": 4242}]


def test_the_page_that_is_scraped_has_the_size_of_a_real_one() -> None:
    assert 50_000 < stand.PAGE.stat().st_size < 70_000


def test_the_kernels_account_of_a_process_is_its_own() -> None:
    before = time.process_time()
    account = stand.cpu_seconds(os.getpid())
    after = time.process_time()

    assert before <= account <= after
