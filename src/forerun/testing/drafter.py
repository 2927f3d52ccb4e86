"""A draft model of any quality."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forerun.core.memory import DENSE, MemoryKind
from forerun.core.race import uniform
from forerun.core.sampling import TokenDistribution, draft_token
from forerun.core.step import (
    DraftRequest,
    Proposal,
)
from forerun.testing.memory import FakeMemory, remember
from forerun.testing.model import fake_logits


class FakeDrafter:
    """A draft model with its own memory. `quality`: how often it thinks what the target thinks, 0 to 1."""

    name = "draft"

    def __init__(self, n_ctx: int, vocabulary_size: int, quality: float = 0.5, kind: MemoryKind = DENSE) -> None:
        self.memory = FakeMemory(n_ctx, kind)
        self.quality = quality
        self.rows = 0
        """Rows evaluated so far."""
        self._size = vocabulary_size

    def evaluate(self, sequence_id: int, tokens: Iterable[int], position: int) -> None:
        codes = [int(token) for token in tokens]
        self.memory.append(sequence_id, codes, position)
        self.rows += len(codes)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Proposal:
        self.evaluate(request.sequence_id, request.tokens[request.held :], request.held)
        proposed: list[int] = []
        drawn_from: list[TokenDistribution] = []
        while True:
            token, distribution = self._choose(request, proposed)
            proposed.append(token)
            if distribution is not None and request.wants_distributions:
                drawn_from.append(distribution)
            if len(proposed) == request.limit:
                return Proposal(tuple(proposed), drawn_from=tuple(drawn_from))
            if len(proposed) == 1:
                remember(self.memory, request.sequence_id)
            self.evaluate(request.sequence_id, proposed[-1:], request.tokens.size + len(proposed) - 1)

    def _choose(self, request: DraftRequest, proposed: Sequence[int]) -> tuple[int, TokenDistribution | None]:
        digest = self.memory.digest(request.sequence_id)
        if uniform(digest, 10**6) >= self.quality:
            digest += 1
        logits = fake_logits(digest, self._size)
        if request.sampling is None:
            return int(logits.argmax()), None
        return draft_token(logits, request.sampling, proposed)
