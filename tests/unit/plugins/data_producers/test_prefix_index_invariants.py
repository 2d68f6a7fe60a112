"""The prefix index stays whole whatever happens: its size is the sum of its parts."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.framework import (
    PREFIX_MATCH,
    EndpointView,
    InferenceRequest,
    PluginContext,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.testing import endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer

CAPACITY = 5
ENDPOINTS = 4

prompts = st.text("xy", max_size=7)
places = st.integers(0, ENDPOINTS - 1)


class PrefixIndex(RuleBasedStateMachine):
    """
    Requests, failures, restarts and the passing of time, in any order.

    Beside the index stands a naive model: the prompts that each endpoint was sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = [endpoint(str(at)) for at in range(ENDPOINTS)]
        self.sent: list[set[str]] = [set() for _ in range(ENDPOINTS)]
        self.open: list[tuple[InferenceRequest, SchedulingResult]] = []
        self.producer = ApproximatePrefixProducer(
            context=PluginContext("test", clock=lambda: self.now),
            block_size_tokens=64,
            lru_capacity_per_server=CAPACITY,
        )

    @rule(prompt=prompts, to=places)
    def send(self, prompt: str, to: int) -> None:
        asked = self.ask(prompt)
        scored = [ScoredEndpoint(self.pool[to], 1.0)]
        result = SchedulingResult({"p": ProfileResult(scored, self.pool, {})}, "p")
        self.producer.pre_request(asked, result)
        self.open.append((asked, result))
        self.sent[to].add(prompt)

    @rule(prompt=prompts)
    def match(self, prompt: str) -> None:
        match = self.ask(prompt).attributes.get(PREFIX_MATCH)
        assert match is not None
        for sent, blocks in zip(self.sent, match.matched_blocks, strict=True):
            assert blocks == 0 or any(one.startswith(prompt[:blocks]) for one in sent)

    @rule(data=st.data(), cause=st.sampled_from(TerminationCause))
    def finish(self, data: st.DataObject, cause: TerminationCause) -> None:
        if self.open:
            at = data.draw(st.integers(0, len(self.open) - 1))
            asked, result = self.open.pop(at)
            self.producer.on_response_complete(asked, result, cause, None)

    @rule(place=places)
    def restart(self, place: int) -> None:
        self.pool[place] = endpoint(str(place))
        self.sent[place] = set()

    @rule(seconds=st.sampled_from([1.0, 200.0, 301.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, prompt: str) -> InferenceRequest:
        asked = request("".join(letter * 256 for letter in prompt))
        asked.attributes.put(PREFIX_MATCH, self.producer.produce(asked, EndpointView(self.pool)))
        return asked

    @invariant()
    def every_block_is_held_by_exactly_those_in_its_mask(self) -> None:
        index = self.producer._index
        holders = [*index._holders.values(), *index._retired]
        by_slot = {holder.slot: holder for holder in holders}

        held = Counter(block for holder in holders for block in holder.blocks)

        assert len(by_slot) == len(holders)
        assert held == {block: mask.bit_count() for block, mask in index._masks.items()}
        assert all(
            block in by_slot[slot].blocks
            for block, mask in index._masks.items()
            for slot in range(mask.bit_length())
            if mask >> slot & 1
        )

    @invariant()
    def nobody_holds_more_than_the_capacity(self) -> None:
        holders = self.producer._index._holders.values()

        assert all(len(holder.blocks) <= CAPACITY for holder in holders)


PrefixIndex.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPrefixIndex = PrefixIndex.TestCase
