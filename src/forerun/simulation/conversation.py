"""One user's conversation: each prompt is all that was said before, and a new message."""

from __future__ import annotations

from random import Random

import numpy as np

from forerun.core.prompt import PromptLayout, Tokens, as_tokens
from forerun.core.request import Request, SamplingParams
from forerun.simulation.workload import UserGroup

VOCABULARY_SIZE = 32_000


def random_tokens(dice: Random, count: int) -> Tokens:
    """Tokens that nobody else has."""
    numbers = np.random.default_rng(dice.getrandbits(63))
    return as_tokens(numbers.integers(0, VOCABULARY_SIZE, count, dtype=np.int32))


class Conversation:
    """What a user says, drawn in advance turn by turn; what is answered comes from outside."""

    __slots__ = ("_dice", "_turns_left", "group", "held", "index", "user")

    def __init__(self, index: int, group: UserGroup, user: int, system: Tokens, dice: Random) -> None:
        """`index`: of the group. `system`: what all prompts of the group begin with."""
        self.index = index
        self.group = group
        self.user = user
        self.held = system
        """All that was said so far."""
        self._dice = dice
        self._turns_left = round(group.turns.draw(dice))

    @property
    def has_ended(self) -> bool:
        return self._turns_left <= 0

    def ask(self, request_id: str, now: float) -> Request:
        """The next message, as a request."""
        self._turns_left -= 1
        message = random_tokens(self._dice, _count(self.group.message_tokens.draw(self._dice)))
        self.held = as_tokens(np.concatenate([self.held, message]))
        params = SamplingParams(max_tokens=_count(self.group.answer_tokens.draw(self._dice)), ignore_eos=True)
        return Request(
            id=request_id,
            prompt=PromptLayout.of_text(self.held),
            params=params,
            arrival=now,
            priority=self.group.priority,
            drawn_seed=self._dice.getrandbits(63),
        )

    def hear(self, answer: list[int]) -> float:
        """The answer to the last message; returns the seconds until the next one."""
        self.held = as_tokens(np.concatenate([self.held, as_tokens(answer)]))
        return self.group.think_seconds.draw(self._dice)


def _count(amount: float) -> int:
    return max(1, round(amount))
