"""How likely a drafted token is accepted: learned per drafter, per request and per position.

A request starts from what all requests taught about the drafter and soon trusts its own record. Position matters: what
follows four confirmed tokens of a copy is nearly sure, what follows a guess is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.step import Proposal

POSITIONS = 16
"""Later positions share the last one's record."""
_FIRST_GUESS = 0.5
_SHARED_TRUST = 4.0
"""A drafter's first guess counts like this many trials."""
_REQUEST_TRUST = 4.0
"""What all requests taught counts like this many of a request's own trials."""
_SHARED_MEMORY = 0.995
_REQUEST_MEMORY = 0.97
"""What is left of a trial's weight after the next one at the same position."""


class _Record:
    """Trials and successes at each position, older ones weighing less."""

    __slots__ = ("_memory", "successes", "trials")

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self.trials = [0.0] * POSITIONS
        self.successes = [0.0] * POSITIONS

    def add(self, accepted: int, proposed: int) -> None:
        """One block: `accepted` tokens confirmed of `proposed`; those after the first refused one were never tried."""
        for position in range(min(accepted + 1, proposed)):
            at = min(position, POSITIONS - 1)
            self.trials[at] = self.trials[at] * self._memory + 1
            self.successes[at] = self.successes[at] * self._memory + (position < accepted)


class DrafterRecord:
    """What one drafter achieved over all requests. `first_guess`: the rate to start from."""

    __slots__ = ("_first_guess", "_record")

    def __init__(self, first_guess: float = _FIRST_GUESS) -> None:
        self._first_guess = first_guess
        self._record = _Record(_SHARED_MEMORY)

    def rate(self, position: int) -> float:
        """Probability that the token at a position is accepted once all before it were."""
        at = min(position, POSITIONS - 1)
        trials, successes = self._record.trials[at], self._record.successes[at]
        return (self._first_guess * _SHARED_TRUST + successes) / (_SHARED_TRUST + trials)

    def add(self, accepted: int, proposed: int) -> None:
        self._record.add(accepted, proposed)


class Acceptance:
    """One request's record with one drafter, on top of what all requests taught."""

    __slots__ = ("_record", "_shared")

    def __init__(self, shared: DrafterRecord) -> None:
        self._shared = shared
        self._record = _Record(_REQUEST_MEMORY)

    def rate(self, position: int) -> float:
        """Probability that the token at a position is accepted once all before it were."""
        at = min(position, POSITIONS - 1)
        trials, successes = self._record.trials[at], self._record.successes[at]
        return (self._shared.rate(at) * _REQUEST_TRUST + successes) / (_REQUEST_TRUST + trials)

    def chances(self, length: int) -> list[float]:
        """Probability that a block of `length` is accepted up to and including each position."""
        chances: list[float] = []
        chance = 1.0
        for position in range(length):
            chance *= self.rate(position)
            chances.append(chance)
        return chances

    def add(self, accepted: int, proposed: int) -> None:
        """Learn from a block, also one that was only compared with what came (it costs nothing to be right)."""
        if proposed > 0:
            self._record.add(accepted, proposed)
            self._shared.add(accepted, proposed)


def shared_beginning(proposed: Sequence[int], came: Sequence[int]) -> int:
    """How many leading tokens of a proposal came true."""
    return next(
        (i for i, (a, b) in enumerate(zip(proposed, came, strict=False)) if a != b), min(len(proposed), len(came))
    )


@dataclass(frozen=True, slots=True)
class RememberedProposal:
    """A proposal that got no rows, to be compared with the tokens that come from `at` on."""

    drafter: str
    proposal: Proposal
    at: int


class RequestDrafting:
    """What speculation did for one request, and what it learned from it."""

    __slots__ = ("acceptance", "by_drafter", "remembered", "saved_ms")

    def __init__(self) -> None:
        self.acceptance: dict[tuple[str, int], Acceptance] = {}
        """By drafter and grade."""
        self.remembered: RememberedProposal | None = None
        self.by_drafter: dict[str, tuple[int, int]] = {}
        """Drafted and accepted tokens of each drafter."""
        self.saved_ms = 0.0
        """Measured time against the plain rate at the same depth and load; negative where drafting cost time."""

    def remember(self, drafter: str, proposal: Proposal, at: int) -> None:
        """Keep a proposal for comparison, unless one is being compared."""
        if self.remembered is None and proposal.tokens:
            self.remembered = RememberedProposal(drafter, proposal, at)

    def count(self, drafter: str, drafted: int, accepted: int) -> None:
        before = self.by_drafter.get(drafter, (0, 0))
        self.by_drafter[drafter] = (before[0] + drafted, before[1] + accepted)
