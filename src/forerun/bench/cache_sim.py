"""Replays a trace on the real catalog of stored segments (core/tiers.py), without a model, a pool or a store.

Each request in order of arrival: its prompt is looked up, what it shares counts as hit, and what a sequence would hold
at its end, prompt and recorded answer, is stored, for which others may have to go. Nothing else keeps prefixes: hits
are what the tier gives, as if the pool held no idle ones. Copies take no time and never fail. A request is stored as
soon as it has arrived, so that one which comes while it runs can share it, as it can share what a running sequence
holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.bench.trace import Trace, TraceRequest
from forerun.core.prompt import PromptLayout
from forerun.core.radix import PrefixTree
from forerun.core.recompute import RecomputeCost
from forerun.core.segment import SegmentSizes
from forerun.core.step import DropSegment, KvOperation, StepPlan, StepResult, StoreSegment
from forerun.core.stored import KvSegment, Tier
from forerun.core.tiers import PrefixTiers
from forerun.core.value import retention

EVERYTHING = 2**62
"""A budget that is never reached, in bytes."""
_SEQUENCE = 0


@dataclass(frozen=True, slots=True)
class Hits:
    """How much of its prompts a cache spared."""

    tokens: int
    saved_seconds: float
    """Prefill of those tokens, by the cost of recomputing them."""

    @classmethod
    def of(cls, lengths: Sequence[int], cost: RecomputeCost) -> Hits:
        """From the tokens that each prompt shared with what was there."""
        return cls(sum(lengths), sum(cost.ms(0, length) for length in lengths) / 1000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one policy within one budget."""

    policy: str
    budget: int
    """Bytes."""
    hits: Hits
    lengths: tuple[int, ...]
    """Hit tokens of each request."""
    most_used: int
    """Bytes."""
    evicted: int
    """Segments."""
    policy_us: float
    """Microseconds of Python a request, lookup and keys of segments included."""


def ideal_lengths(requests: Sequence[TraceRequest]) -> list[int]:
    """How much of each prompt was part of anything seen before; all but the last token, which must be evaluated."""
    tree: PrefixTree[str] = PrefixTree()
    lengths: list[int] = []
    for number, request in enumerate(requests):
        match = next(tree.match(PromptLayout.of_text(request.prompt)), None)
        lengths.append(min(match.depth if match else 0, request.prompt.size - 1))
        tree.insert(number, PromptLayout.of_text(request.content))
    return lengths


def simulate(trace: Trace, policy: str, budget: int, cost: RecomputeCost) -> Outcome:
    """Replay a trace within a budget of bytes. Raises ValueError for an unknown policy."""
    cache = _Cache(policy, budget, trace.bytes_per_token)
    started = time.perf_counter()
    lengths = [cache.serve(request) for request in trace.requests]
    each = (time.perf_counter() - started) / max(len(lengths), 1)
    hits = Hits.of(lengths, cost)
    return Outcome(policy, budget, hits, tuple(lengths), cache.most_used, cache.evicted, each * 1e6)


class _Cache:
    """A host tier, and a runner that copies everything at once."""

    def __init__(self, policy: str, budget: int, bytes_per_token: int) -> None:
        self._tree: PrefixTree[KvSegment] = PrefixTree()
        self._operations: list[KvOperation] = []
        self._sizes = SegmentSizes(per_token=bytes_per_token)
        host, disk = Tier(budget, retention(policy)), Tier(0, retention("lru"))
        self._tiers = PrefixTiers(self._tree, self._operations.append, host, disk, sizes=self._sizes)
        self.most_used = 0
        self.evicted = 0

    def serve(self, request: TraceRequest) -> int:
        """Look a prompt up and store what its sequence holds at the end; returns the tokens that were there."""
        tiers, prompt = self._tiers, PromptLayout.of_text(request.prompt)
        tiers.now = request.at
        stored = tiers.find(list(self._tree.match(prompt)), prompt, prompt.logical_tokens - 1)
        found = stored.boundary.logical_tokens
        tiers.use(stored, found)
        tiers.store(_SEQUENCE, PromptLayout.of_text(request.content), "")
        self._copy(request.at)
        self.most_used = max(self.most_used, tiers.host.used)
        return found

    def _copy(self, now: float) -> None:
        operations = tuple(self._operations)
        self._operations.clear()
        self.evicted += sum(isinstance(operation, DropSegment) for operation in operations)
        stored = dict(self._stores(operations))
        self._tiers.learn(StepPlan(now, operations), StepResult(0.0, stored=stored), now)

    def _stores(self, operations: Sequence[KvOperation]) -> Iterator[tuple[str, int]]:
        for operation in operations:
            if isinstance(operation, StoreSegment):
                yield operation.header.key, self._sizes.predict(operation.header.tokens)
