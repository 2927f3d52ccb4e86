"""Who asks when: users by the clock, or a crowd that always has something waiting."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol

from forerun.core.request import FinishReason, OutputDelta, Request
from forerun.simulation.conversation import Conversation, random_tokens
from forerun.simulation.workload import Workload


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and whose it is."""

    request: Request
    group: int
    user: int


class Crowd(Protocol):
    """Asks, and hears the answers. Times are seconds of the simulation, and never go back."""

    def asks(self, now: float, waiting: int) -> Iterator[Asked]:
        """What is asked up to `now`, while so many requests wait."""
        ...

    def gives_up(self, now: float) -> Iterator[str]:
        """Requests that nobody waits for any more."""
        ...

    def hears(self, delta: OutputDelta, now: float) -> None:
        """What a step added to a request."""
        ...

    def refused(self, request_id: str, now: float) -> None:
        """A request was not taken."""
        ...

    def next_at(self) -> float | None:
        """When something happens next without an answer; None: nothing does."""
        ...


@dataclass(slots=True)
class _Open:
    """A request that is being answered."""

    conversation: Conversation
    answer: list[int] = field(default_factory=list)


class _Conversations:
    """What both crowds are made of: systems by group, and what is open."""

    def __init__(self, workload: Workload) -> None:
        self.groups = workload.groups
        self.open: dict[str, _Open] = {}
        self._ids = count()
        dice = Random(f"{workload.seed} systems")
        self._systems = [random_tokens(dice, group.system_tokens) for group in self.groups]

    def begin(self, index: int, user: int, dice: Random) -> Conversation:
        return Conversation(index, self.groups[index], user, self._systems[index], dice)

    def ask(self, conversation: Conversation, now: float) -> Asked:
        request = conversation.ask(str(next(self._ids)), now)
        self.open[request.id] = _Open(conversation)
        return Asked(request, conversation.index, conversation.user)


@dataclass(order=True, slots=True)
class _Event:
    at: float
    number: int
    """In order of planning, so that equal times have an order."""
    conversation: Conversation | None = field(compare=False, default=None)
    """Whose next turn it is."""
    beginner: tuple[int, int] | None = field(compare=False, default=None)
    """Group and user who begins a conversation."""
    impatient: str | None = field(compare=False, default=None)
    """A request that is cancelled unless it has begun to be answered."""


class TimedCrowd:
    """Users by the clock. Who lives in an open group begins conversations whatever became of the last one."""

    def __init__(self, workload: Workload, load: float = 1.0) -> None:
        """`load` divides all pauses: twice the load, half as long."""
        self._talk = _Conversations(workload)
        self._until = workload.seconds
        self._load = load
        self._events: list[_Event] = []
        self._given_up: list[str] = []
        self._numbers = count()
        self._dice = {
            (index, user): Random(f"{workload.seed} {index} {user}")
            for index, group in enumerate(workload.groups)
            for user in range(group.count)
        }
        for index, user in self._dice:
            self._plan_beginning(index, user, 0.0)

    def _plan_beginning(self, index: int, user: int, now: float) -> None:
        pause = self._dice[index, user].expovariate(1 / self._talk.groups[index].every_seconds) / self._load
        if now + pause < self._until:
            self._plan(now + pause, beginner=(index, user))

    def _plan(
        self,
        at: float,
        *,
        conversation: Conversation | None = None,
        beginner: tuple[int, int] | None = None,
        impatient: str | None = None,
    ) -> None:
        heapq.heappush(self._events, _Event(at, next(self._numbers), conversation, beginner, impatient))

    def asks(self, now: float, waiting: int) -> Iterator[Asked]:
        del waiting
        while self._events and self._events[0].at <= now:
            event = heapq.heappop(self._events)
            if event.impatient is not None:
                self._lose_patience(event.impatient)
                continue
            conversation = event.conversation
            if event.beginner is not None:
                conversation = self._begin(*event.beginner, event.at)
            if conversation is not None:
                asked = self._talk.ask(conversation, event.at)
                if (patience := conversation.group.patience_seconds) is not None:
                    self._plan(event.at + patience, impatient=asked.request.id)
                yield asked

    def _begin(self, index: int, user: int, now: float) -> Conversation:
        if self._talk.groups[index].arrivals == "open":
            self._plan_beginning(index, user, now)
        return self._talk.begin(index, user, Random(self._dice[index, user].getrandbits(63)))

    def _lose_patience(self, request_id: str) -> None:
        being_answered = self._talk.open.get(request_id)
        if being_answered is not None and not being_answered.answer:
            self._given_up.append(request_id)

    def gives_up(self, now: float) -> Iterator[str]:
        del now
        given_up, self._given_up = self._given_up, []
        yield from given_up

    def hears(self, delta: OutputDelta, now: float) -> None:
        being_answered = self._talk.open[delta.request_id]
        being_answered.answer += delta.tokens
        if delta.finish_reason is None:
            return
        del self._talk.open[delta.request_id]
        conversation = being_answered.conversation
        if conversation.has_ended or delta.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._after(conversation, now)
        else:
            pause = conversation.hear(being_answered.answer) / self._load
            self._plan(now + pause, conversation=conversation)

    def _after(self, conversation: Conversation, now: float) -> None:
        if conversation.group.arrivals == "closed":
            self._plan_beginning(conversation.index, conversation.user, now)

    def refused(self, request_id: str, now: float) -> None:
        self._after(self._talk.open.pop(request_id).conversation, now)

    def next_at(self) -> float | None:
        return self._events[0].at if self._events else None


class BackloggedCrowd:
    """The same conversations in the same proportions, but always some waiting, nobody first, and nobody who thinks:
    what an engine can do at most."""

    def __init__(self, workload: Workload, backlog: int) -> None:
        """`backlog`: requests that wait at any time."""
        calm = {"priority": 0, "patience_seconds": None}
        self._groups = [group.model_copy(update=calm) for group in workload.groups]
        self._rates = [group.conversations_per_second for group in workload.groups]
        self._talk = _Conversations(workload)
        self._talk.groups = tuple(self._groups)
        self._until = workload.seconds
        self._backlog = backlog
        self._dice = Random(f"{workload.seed} backlog")
        self._next: list[Conversation] = []

    def asks(self, now: float, waiting: int) -> Iterator[Asked]:
        if now >= self._until:
            return
        for conversation in self._next:
            yield self._talk.ask(conversation, now)
        missing = self._backlog - waiting - len(self._next)
        self._next = []
        for _ in range(missing):
            (index,) = self._dice.choices(range(len(self._groups)), self._rates)
            user = self._dice.randrange(self._groups[index].count)
            yield self._talk.ask(self._talk.begin(index, user, Random(self._dice.getrandbits(63))), now)

    def gives_up(self, now: float) -> Iterator[str]:
        del now
        yield from ()

    def hears(self, delta: OutputDelta, now: float) -> None:
        del now
        being_answered = self._talk.open[delta.request_id]
        being_answered.answer += delta.tokens
        if delta.finish_reason is None:
            return
        del self._talk.open[delta.request_id]
        conversation = being_answered.conversation
        if delta.finish_reason is FinishReason.LENGTH and not conversation.has_ended:
            conversation.hear(being_answered.answer)
            self._next.append(conversation)

    def refused(self, request_id: str, now: float) -> None:
        del now
        del self._talk.open[request_id]

    def next_at(self) -> float | None:
        return None
