"""
A burst between two scrapes spreads, though no metric changes: what was sent is remembered.

The whole decision is run, with one scorer alone, over eight idle endpoints of frozen metrics.
"""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from epp.framework import EndpointUpdate, RawRequest
from support.core import Core

REQUESTS = 160
CACHE = EndpointUpdate(block_size=16, num_blocks=20_000)
MOST = 24

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: {scorer}
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: {scorer}
"""


@pytest.mark.parametrize("prompt", [8, 40_000], ids=["short", "long"])
@pytest.mark.parametrize(
    "scorer",
    [
        "active-request-scorer",
        "lookahead-load-scorer",
        "lmetric-scorer",
        "token-load-scorer",
        "load-aware-scorer",
        "queue-scorer",
        "running-requests-size-scorer",
        "kv-cache-utilization-scorer",
    ],
)
async def test_a_burst_spreads_over_idle_endpoints(
    tmp_path: Path, scorer: str, prompt: int
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(scorer=scorer))
    core = Core([{}] * 8, config=config)
    for one in core.app.datastore.endpoints():
        core.app.datastore.record(one.id, CACHE, in_flight=0)
    headers = {":path": "/v1/completions", ":method": "POST"}
    picks: Counter[str] = Counter()
    for at in range(REQUESTS):
        text = f"{at} " + "x" * prompt
        body = msgspec.json.encode({"model": "m", "prompt": text, "stream": True})
        routed = await core.app.director.handle_request(RawRequest(headers, body))
        picks[routed.decision.destination] += 1

    assert len(picks) == 8
    assert max(picks.values()) <= MOST
