"""How likely a drafted token is accepted: learned per drafter, per request and per position.

A request starts from what all requests taught about the drafter and soon trusts its own record. Position matters: what
follows four confirmed tokens of a copy is nearly sure, what follows a guess is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.origins import Origins
from forerun.core.request import ForcedTokens
from forerun.core.step import Proposal
from forerun.core.suffix import WrittenText

POSITIONS = 16
"""Later positions share the last one's record."""
_FIRST_GUESS = 0.5
_SHARED_TRUST = 5.0
"""A drafter's first guess counts like this many trials."""
_REQUEST_TRUST = 4.0
"""What all requests taught counts like this many of a request's own trials."""
_SUREST = 0.98
"""No position is expected to be surer than this before it was tried, unless its drafter is certain of all it says."""
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

    def add(self, position: int, *, accepted: bool) -> None:
        at = min(position, POSITIONS - 1)
        self.trials[at] = self.trials[at] * self._memory + 1
        self.successes[at] = self.successes[at] * self._memory + accepted

    def blend(self, position: int, expected: float, trust: float) -> float:
        """The rate at a position, `expected` counting like `trust` trials."""
        return (expected * trust + self.successes[position]) / (trust + self.trials[position])


class DrafterRecord:
    """What one drafter achieved over all requests of a tenant. `first_guess`: the rate to start from, `surer`: the
    share of the doubt that each accepted token takes from the next one."""

    __slots__ = ("_first_guess", "_record", "_surer", "surest")

    def __init__(self, first_guess: float = _FIRST_GUESS, surer: float = 0.0) -> None:
        self._surer = surer
        self._first_guess = first_guess
        self.surest = max(first_guess, _SUREST)
        """No position is expected to be surer before the request tried it."""
        self._record = _Record(_SHARED_MEMORY)

    def rates(self) -> list[float]:
        """For each position the probability that its token is accepted once all before it were.

        Of a position that was hardly tried the one before it says what to expect.
        """
        rates: list[float] = []
        rate = self._first_guess
        for position in range(POSITIONS):
            rate = self._record.blend(position, rate, _SHARED_TRUST)
            rates.append(rate)
            rate += (1 - rate) * self._surer
        return rates

    def first_rate(self) -> float:
        """The first of `rates`."""
        return self._record.blend(0, self._first_guess, _SHARED_TRUST)

    def add(self, position: int, *, accepted: bool) -> None:
        self._record.add(position, accepted=accepted)


class Acceptance:
    """One request's record with one drafter, on top of what all requests taught."""

    __slots__ = ("_record", "_shared")

    def __init__(self, shared: DrafterRecord) -> None:
        self._shared = shared
        self._record = _Record(_REQUEST_MEMORY)

    def rates(self) -> list[float]:
        """For each position the probability that its token is accepted once all before it were.

        What this request shows at one position moves what is expected of the next ones.
        """
        rates: list[float] = []
        shift = 0.0
        for position, shared in enumerate(self._shared.rates()):
            expected = min(max(shared + shift, 0.0), self._shared.surest)
            rate = self._record.blend(position, expected, _REQUEST_TRUST)
            shift = rate - shared
            rates.append(rate)
        return rates

    def first_rate(self) -> float:
        """The first of `rates`."""
        return self._record.blend(0, self._shared.first_rate(), _REQUEST_TRUST)

    def chances(self, length: int) -> list[float]:
        """Probability that a block of `length` is accepted up to and including each position."""
        chances: list[float] = []
        chance = 1.0
        rates = self.rates()
        for position in range(length):
            chance *= rates[min(position, POSITIONS - 1)]
            chances.append(chance)
        return chances

    def add(self, accepted: int, proposed: int) -> None:
        """Learn from a block: `accepted` of `proposed` tokens; those after the first refused one were never tried."""
        for position in range(min(accepted + 1, proposed)):
            self.add_one(position, accepted=position < accepted)

    def add_one(self, position: int, *, accepted: bool) -> None:
        """Learn from one token, also one that was only compared with what came (being right for free counts too)."""
        self._record.add(position, accepted=accepted)
        self._shared.add(position, accepted=accepted)


@dataclass(slots=True)
class RememberedProposal:
    """A proposal that got no rows, to be compared with the tokens that come from `at` on."""

    drafter: str
    proposal: Proposal
    at: int
    compared: int = 0
    """Tokens of it that came true so far."""


class RequestDrafting:
    """What speculation did for one request, and what it learned from it."""

    __slots__ = (
        "acceptance",
        "by_drafter",
        "doubts",
        "forced",
        "is_model_off",
        "is_off",
        "look_again_at",
        "look_up_at",
        "model_grade",
        "plain_ms",
        "remembered",
        "saved_ms",
        "useful_at",
        "written",
    )

    def __init__(self, forced: ForcedTokens | None = None) -> None:
        self.acceptance: dict[tuple[str, int], Acceptance] = {}
        """By drafter and grade."""
        self.remembered: dict[str, RememberedProposal] = {}
        """By drafter."""
        self.forced = forced
        """The request's hook; None once it raised."""
        self.written: WrittenText | None = None
        """How far the text is in the suffix index."""
        self.by_drafter: dict[str, tuple[int, int]] = {}
        """Drafted and accepted tokens of each drafter."""
        self.doubts = 0
        """Failed steps with its drafts in them that it got past without drafts."""
        self.is_off = False
        """It drafts nothing any more, since drafts seem to make steps fail."""
        self.is_model_off = False
        """The draft model failed for this request, which goes on without it."""
        self.look_again_at = 0
        """Known tokens from which on it is asked again whether filling the draft's memory pays."""
        self.model_grade = 0
        """How the draft model's latest proposals are chosen and verified: acceptance is learned for each way."""
        self.look_up_at = 0
        """Known tokens from which on the next lookup is due."""
        self.useful_at = 0
        """Known tokens when a lookup was last of use."""
        self.plain_ms = 0.0
        """What the tokens so far would have taken at the measured plain rate."""
        self.saved_ms = 0.0
        """Measured time against the plain rate at the same depth and load; negative where drafting cost time."""

    def remember(self, drafter: str, proposal: Proposal, at: int) -> None:
        """Keep a proposal for comparison, unless one of the drafter's is being compared."""
        if proposal.tokens and drafter not in self.remembered:
            self.remembered[drafter] = RememberedProposal(drafter, proposal, at)

    def count(self, proposed: Origins, accepted: int) -> None:
        """Of a block's proposed tokens the first `accepted` were confirmed."""
        for drafter, length in proposed:
            drafted, confirmed = self.by_drafter.get(drafter, (0, 0))
            right = min(accepted, length)
            self.by_drafter[drafter] = (drafted + length, confirmed + right)
            accepted -= right
