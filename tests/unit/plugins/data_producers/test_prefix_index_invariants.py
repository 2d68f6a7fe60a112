"""The prefix index against a plain one: every block by itself, in a list by time of use."""

from collections import Counter
from itertools import accumulate
from typing import Any

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

CAPACITY = 9
ENDPOINTS = 4

REFUSED = {
    TerminationCause.MODEL_SERVER_ERROR,
    TerminationCause.REFUSED,
    TerminationCause.MOVED,
}
LOST = {
    TerminationCause.CLIENT_DISCONNECTED,
    TerminationCause.DRAINED,
    TerminationCause.FAILED,
}

prompts = st.text("xy", max_size=12)
places = st.integers(0, ENDPOINTS - 1)
capacities = st.sampled_from([1, 3, 5, CAPACITY, CAPACITY])


class PlainHolder:
    """What one endpoint was sent: each beginning of a prompt, the least recent first."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.proven: set[str] = set()

    def learn(self, prompt: str, capacity: int, *, proven: bool = False) -> int:
        beginnings = [prompt[: end + 1] for end in range(min(len(prompt), capacity))]
        new = [at for at, one in enumerate(beginnings) if one not in self.held]
        self.held = [one for one in self.held if one not in beginnings] + beginnings[::-1]
        if proven:
            self.proven.update(beginnings)
        self.held = self.held[-capacity:]
        self.proven &= set(self.held)
        return min(new, default=len(prompt))

    def take_back(self, prompt: str, start: int) -> None:
        lost = {prompt[: end + 1] for end in range(start, len(prompt))} - self.proven
        held = {one for one in self.held if one not in lost}
        self.held = [one for one in self.held if held.issuperset(accumulate(one))]
        self.proven &= set(self.held)

    def matched(self, prompt: str) -> int:
        for depth in range(len(prompt)):
            if prompt[: depth + 1] not in self.held:
                return depth
        return len(prompt)


class PrefixIndex(RuleBasedStateMachine):
    """Requests, failures, restarts, other cache sizes and the passing of time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = [endpoint(str(at)) for at in range(ENDPOINTS)]
        self.plain = [PlainHolder() for _ in range(ENDPOINTS)]
        self.open: list[tuple[InferenceRequest, SchedulingResult, Any]] = []
        self.producer = ApproximatePrefixProducer(
            context=PluginContext("test", clock=lambda: self.now),
            block_size_tokens=64,
            lru_capacity_per_server=CAPACITY,
        )

    @rule(prompt=prompts, to=places, capacity=capacities)
    def send(self, prompt: str, to: int, capacity: int) -> None:
        self.rescrape(to, capacity)
        asked = self.ask(prompt)
        scored = [ScoredEndpoint(self.pool[to], 1.0)]
        result = SchedulingResult({"p": ProfileResult(scored, self.pool, {})}, "p")
        self.producer.pre_request(asked, result)
        plain, capacity = self.plain[to], min(capacity, CAPACITY)
        start = plain.learn(prompt, capacity) if prompt else 0
        self.open.append((asked, result, (plain, prompt, start, capacity, to)))

    @rule(prompt=prompts)
    def match(self, prompt: str) -> None:
        match = self.ask(prompt).attributes.get(PREFIX_MATCH)
        assert match is not None
        assert [one.matched(prompt) for one in self.plain] == list(match.matched_blocks)

    @rule(data=st.data(), cause=st.sampled_from(TerminationCause), begun=st.booleans())
    def finish(self, data: st.DataObject, cause: TerminationCause, *, begun: bool) -> None:
        if not self.open:
            return
        at = data.draw(st.integers(0, len(self.open) - 1))
        asked, result, (plain, prompt, start, _, to) = self.open.pop(at)
        if begun:
            self.producer.on_first_byte(asked, result)
        self.producer.on_response_complete(asked, result, cause, None)
        if cause in REFUSED or (cause in LOST and not begun):
            plain.take_back(prompt, start)
        elif cause is not TerminationCause.RESPONSE_UNSEEN and plain is self.plain[to] and prompt:
            holder = self.producer._index._holders[self.pool[to].load]
            plain.learn(prompt, holder.capacity, proven=True)

    @rule(place=places)
    def restart(self, place: int) -> None:
        self.pool[place] = endpoint(str(place))
        self.plain[place] = PlainHolder()

    @rule(seconds=st.sampled_from([0.0, 1.5, 30.0]))
    def wait(self, seconds: float) -> None:
        """Requests come by meanwhile, so that nobody who is there is forgotten."""
        self.now += seconds
        self.ask("")

    @rule()
    def wait_long(self) -> None:
        """Those that restarted are forgotten."""
        for _ in range(21):
            self.wait(30.0)

    def rescrape(self, place: int, capacity: int) -> None:
        """A new snapshot of the same life."""
        before = self.pool[place]
        fresh = endpoint(str(place), block_size=64, num_blocks=capacity)
        self.pool[place] = type(before)(
            before.id, before.address, 8000, metrics=fresh.metrics, load=before.load
        )

    def ask(self, prompt: str) -> InferenceRequest:
        asked = request("".join(letter * 256 for letter in prompt))
        asked.attributes.put(PREFIX_MATCH, self.producer.produce(asked, EndpointView(self.pool)))
        return asked

    @invariant()
    def stretches_are_held_by_exactly_those_in_their_masks(self) -> None:
        index = self.producer._index
        holders = [*index._holders.values(), *index._retired]
        by_slot = {holder.slot: holder for holder in holders}

        held = Counter(stretch.blocks[0] for holder in holders for stretch in holder.uses)

        assert len(by_slot) == len(holders)
        assert held == {first: one.holders.bit_count() for first, one in index._stretches.items()}
        by_end = {stretch.blocks[-1]: stretch for stretch in index._stretches.values()}
        for first, stretch in index._stretches.items():
            assert stretch.blocks[0] == first
            assert stretch.proven & ~stretch.holders == 0
            if stretch.depth:
                before = by_end[stretch.before]
                assert before.end == stretch.depth
                assert stretch.holders & ~before.holders == 0
                assert stretch.proven & ~before.proven == 0
            held_by = [slot for slot, holder in by_slot.items() if stretch in holder.uses]
            assert stretch.holders == sum(1 << slot for slot in held_by)

    @invariant()
    def counts_are_the_sums_of_their_parts(self) -> None:
        index = self.producer._index

        for holder in index._holders.values():
            assert holder.count == sum(len(one.blocks) for one in holder.uses)
            assert holder.count <= holder.capacity <= CAPACITY
            assert len(holder._order) <= 2 * len(holder.uses) + 65
        blocks = [block for one in index._stretches.values() for block in one.blocks]
        assert len(blocks) == len(set(blocks)) == index._blocks


PrefixIndex.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestPrefixIndex = PrefixIndex.TestCase
