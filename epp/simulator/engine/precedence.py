"""
Precedence: running requests that lose their seats to more urgent waiting ones.

Before a step, the waiting requests are looked at in their order, as their admission will: with the
seats, blocks and tokens that the running ones leave, and the limits on adapters and classes. Where
one lacks a seat or blocks, and requests that it outranks can give enough, those are sent away, the
least urgent first. Nobody is sent away for a request that could not be admitted even then: one that
would not fit, that no tokens are left for, or whose adapter or class is at its limit.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from epp.simulator.engine.batch import Batch
from epp.simulator.engine.request import ActiveRequest

if TYPE_CHECKING:
    from epp.simulator.engine.scheduler import Scheduler


class Precedence:
    """What one step has left for those who wait, while seats change hands."""

    def __init__(self, scheduler: "Scheduler", batch: Batch, limit: int, now: float) -> None:
        self._scheduler = scheduler
        self._batch = batch
        self._limit = limit
        self._now = now
        running = scheduler.running
        self._seats = scheduler.options.max_num_seqs - len(running)
        self._blocks = scheduler.cache.free_blocks - scheduler.watermark_blocks
        self._blocks -= sum(self._growth(one) for one in running)
        self._budget = batch.budget - sum(self._tokens(one) for one in running)
        self._adapters = {one.adapter.name for one in running if one.adapter is not None}
        self._classes = scheduler.class_room()

    def apply(self) -> None:
        """Send away whom the waiting requests outrank and need to."""
        scheduler = self._scheduler
        for request in list(scheduler.waiting):
            if self._budget <= 0:
                return
            if self._lacks_adapter(request):
                if scheduler.options.lora_waiting == "stop":
                    return
            elif not any(
                room <= 0 and request.priority >= least for least, room in self._classes.items()
            ) and not self._seat(request):
                return

    def _seat(self, request: ActiveRequest) -> bool:
        """Reckon with a request's admission; False if it cannot be had."""
        cache = self._scheduler.cache
        total = len(request.tokens)
        tokens = min(total, self._limit, self._budget)
        reserved = total if self._scheduler.options.reserve_full_prompt else tokens
        shared = cache.lookup(request.hashes, total)
        blocks = cache.blocks_for(reserved)
        fitting = max(0, blocks - len(shared)) + cache.free_among(shared)
        if self._seats <= 0 or fitting > self._blocks:
            # What it shares may go with those who are sent away, so it is not counted on.
            victims = self._victims(request, 1 - self._seats, blocks - self._blocks)
            if victims is None:
                return False
            for victim in victims:
                self._send_away(victim)
            fitting = blocks
        self._seats -= 1
        self._blocks -= fitting
        self._budget -= min(total, self._limit, self._budget)
        if request.adapter is not None:
            self._adapters.add(request.adapter.name)
        for least in self._classes:
            self._classes[least] -= request.priority >= least
        return True

    def _victims(
        self, request: ActiveRequest, seats: int, blocks: int
    ) -> Sequence[ActiveRequest] | None:
        """
        Return whom a waiting request outranks and needs to send away, the least urgent first.

        `seats` and `blocks` are what it lacks. None where it cannot have them.
        """
        policy = self._scheduler.policy
        assert policy is not None
        own = policy.rank(request, self._now).level
        ranked = [(policy.rank(one, self._now), one) for one in self._scheduler.running]
        ranked.sort(key=itemgetter(0), reverse=True)
        victims: list[ActiveRequest] = []
        for rank, victim in ranked:
            if (seats <= 0 and blocks <= 0) or not own < rank.level - policy.margin:
                break
            if victim.forced_out < policy.patience:
                victims.append(victim)
                seats -= 1
                blocks -= self._scheduler.cache.held_alone(victim.blocks) + self._growth(victim)
        return victims if seats <= 0 and blocks <= 0 else None

    def _send_away(self, victim: ActiveRequest) -> None:
        scheduler = self._scheduler
        self._blocks += self._growth(victim)
        self._budget += self._tokens(victim)
        free = scheduler.cache.free_blocks
        victim.forced_out += 1
        self._batch.sent_away.add(victim.id)
        scheduler.preempt(self._batch, scheduler.running.index(victim), self._now)
        self._blocks += scheduler.cache.free_blocks - free
        self._seats += 1

    def _lacks_adapter(self, request: ActiveRequest) -> bool:
        return (
            request.adapter is not None
            and request.adapter.name not in self._adapters
            and len(self._adapters) >= self._scheduler.options.max_loras
        )

    def _tokens(self, running: ActiveRequest) -> int:
        """Return how many tokens a running request will take of the step."""
        return min(len(running.tokens) - running.computed, self._limit)

    def _growth(self, running: ActiveRequest) -> int:
        """Return how many blocks it will take for them."""
        end = running.computed + self._tokens(running)
        return max(0, self._scheduler.cache.blocks_for(end) - len(running.blocks))
