"""The load in flight under the real director: requests that end in every way leave nothing."""

import random
from pathlib import Path

import msgspec

from epp.framework import EndpointId, EndpointRemoved, RawRequest, TerminationCause
from support.core import Core

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: lookahead-load-scorer
  - type: lmetric-scorer
  - type: inflight-load-producer
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: lookahead-load-scorer
      - pluginRef: lmetric-scorer
"""


async def test_two_thousand_requests_leave_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    core = Core([{}] * 8, config=config)
    director, rng = core.app.director, random.Random(3)
    # Ids are the clients' to choose, and collide.
    headers = {":path": "/v1/completions", ":method": "POST", "x-request-id": "one-for-all"}
    still_open = []
    for at in range(2000):
        if at % 100 == 99:
            # One leaves and returns, while requests to it are open.
            core.app.datastore.apply(EndpointRemoved(EndpointId("default", f"pod-{at // 100 % 8}")))
            core.add(at // 100 % 8, {})
        body = msgspec.json.encode({"model": "m", "prompt": "x" * rng.randrange(60_000)})
        still_open.append(await director.handle_request(RawRequest(headers, body)))
        while still_open and (rng.random() < 0.5 or at == 1999):
            routed = still_open.pop(rng.randrange(len(still_open)))
            if rng.random() < 0.7:
                status = rng.choice([200, 200, 400, 500, 503])
                served = rng.choice([None, "192.168.1.1:8000", "10.9.9.9:1"])
                director.on_response_headers(
                    routed, status=status, media="json", served=served, body_follows=True
                )
                if rng.random() < 0.7:
                    director.on_response_body(routed, b"{")
            director.finish(routed, rng.choice(list(TerminationCause)))

    assert core.in_flight == 0
    (producer,) = [
        one.plugin for one in core.app.configuration.plugins if one.type == "inflight-load-producer"
    ]
    assert producer.dump_state() == {"endpoints": 0, "tokens": 0}
    assert core.total("epp_plugin_errors_total") == 0
