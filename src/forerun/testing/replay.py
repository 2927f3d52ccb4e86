"""Replays a recording (engine/recording.py): the scheduler decides again, without a model, and every step is compared.

    for step in Replay(read_recording(path)):         one for each step of the recording, with the plan in words
        ...

Tokens are names that tell nothing but where prompts are the same, so an answer ends where the recording says so. What
drafters and grammars said is recorded too; everything else (admission, prefixes, chunks, draft lengths, eviction,
recovery) is decided by the scheduler as it is now. Bookkeeping is checked after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from forerun.core.adapters import AdapterSet, scope_of
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout, Tokens
from forerun.core.request import OutputDelta
from forerun.core.scheduler import Scheduler
from forerun.core.segment import StoredSegment, segment_key
from forerun.core.step import DraftRequest, Proposal, StepPlan, StepResult
from forerun.engine.plan_text import SegmentNumbers, plan_digest, plan_lines
from forerun.engine.recording import Answers, Arrival, Cancel, Clear, Line, Look, Pace, Pin, Plan, Result, Session
from forerun.errors import ForerunError

_NOBODY = "0" * 32
"""The tenant's half of a scope that is everyone's (core.adapters.scope_of)."""


class DivergedError(ForerunError):
    """The scheduler asked, or was told, something that cannot be in this recording: it went another way before."""


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One step, decided again."""

    session: int
    """Which start of the engine it belongs to, from 1 on."""
    number: int
    """Of the step in its session, from 1 on."""
    now: float
    lines: tuple[str, ...]
    """The plan in words."""
    is_same: bool
    """Whether it is the plan of the recording."""


@dataclass(slots=True)
class _Told:
    """What others are going to tell the scheduler, in order."""

    proposals: Iterator[tuple[Proposal, ...]] = field(default_factory=lambda: iter(()))
    forced: Iterator[tuple[int, ...] | None] = field(default_factory=lambda: iter(()))
    accepted: Iterator[int] = field(default_factory=lambda: iter(()))

    def begin(self, answers: Answers) -> None:
        self.proposals, self.forced = iter(answers.proposals), iter(answers.forced)
        self.accepted = iter(answers.accepted)


class ReplayedVocabulary:
    """Names instead of tokens: any 31 bits, none of which says anything."""

    size = 2**31
    end_tokens: frozenset[int] = frozenset()

    def piece(self, token: int) -> bytes:  # noqa: ARG002
        return b""


class ReplayedScheduler(Scheduler):
    """A scheduler whose tenants are scopes already."""

    def scope_of(self, tenant: str, adapters: AdapterSet = ()) -> str:
        of_adapters = scope_of("", adapters, self.config.adapters)[len(_NOBODY) :]
        return (tenant or _NOBODY) + of_adapters if of_adapters else tenant


class Replay(Iterable[ReplayedStep]):
    """One replay of a recording, made by going through its steps. Reads the recording twice: who ends with which token
    has to be known when a request arrives.

    It ends with the first step that is not as recorded. Going through it raises DivergedError where the scheduler asks
    what nobody asked before, AssertionError where its bookkeeping contradicts itself, and whatever else it raises.
    """

    def __init__(self, lines: Callable[[], Iterable[Line]]) -> None:
        self._lines = lines
        self.scheduler: ReplayedScheduler | None = None
        """The one at work; looking at it between steps is what replays are for."""
        self.requests = 0

    def __iter__(self) -> Iterator[ReplayedStep]:
        ends = _ends(self._lines())
        session: _Session | None = None
        number = 0
        for line in self._lines():
            if isinstance(line, Session):
                number += 1
                session = _Session(line, number, ends.get(number, {}))
                self.scheduler = session.scheduler
                continue
            if session is None:
                raise DivergedError("the recording does not begin with a session")
            self.requests += isinstance(line, Arrival)
            step = session.take(line)
            if step is not None:
                yield step
                if not step.is_same:  # what came of the recorded one does not belong to it
                    return


class _Session:
    """One start of the recorded engine."""

    def __init__(self, session: Session, number: int, ends: dict[int, int]) -> None:
        self._number = number
        self._ends = ends
        self._told = _Told()
        self._numbers = SegmentNumbers()
        self._plan: StepPlan | None = None
        self._steps = 0
        curves = [LiveCosts(CostCurve.from_json(curve)) for curve in session.costs]
        self.scheduler = ReplayedScheduler(
            session.config,
            ReplayedVocabulary(),
            costs=StepCosts(curves[0], curves[1] if len(curves) > 1 else None) if curves else None,
            pace=None if session.pace is None else LiveCosts(CostCurve.from_json(session.pace)),
            lookups=[_ReplayedDrafter(name, self._told) for name in session.lookups],
            stored=_adopted(session, self._numbers),
        )

    def take(self, line: Line) -> ReplayedStep | None:
        """What happened next; the step where that was one's decision."""
        scheduler = self.scheduler
        match line:
            case Arrival():
                self._arrive(line)
            case Cancel():
                scheduler.abort(str(line.number), line.now)
            case Pace(is_paused=True):
                scheduler.pause(str(line.number))
            case Pace():
                scheduler.resume(str(line.number))
            case Look():
                scheduler.look_up(PromptLayout.of_text([0]))
            case Pin():
                scheduler.pin(line.prompt, line.scope, line.until)
            case Clear():
                scheduler.clear_cache(line.scope)
            case Plan():
                return self._schedule(line)
            case Result():
                self._update(line)
        return None

    def _arrive(self, line: Arrival) -> None:
        end = self._ends.get(line.number)
        stops = line.ends if end is None else (*line.ends, end)
        request = replace(
            line.request,
            params=replace(line.request.params, stop_token_ids=stops),
            constraint=_ReplayedConstraint(self._told) if line.has_constraint else None,
            forced=_ReplayedHook(self._told) if line.has_hook else None,
        )
        self.scheduler.add(request)

    def _schedule(self, line: Plan) -> ReplayedStep:
        self._told.begin(line.answers)
        self._steps += 1
        self._plan = plan = self.scheduler.schedule(line.now)
        lines = plan_lines(plan, self._numbers)
        is_same = plan_digest(lines) == line.digest
        return ReplayedStep(self._number, self._steps, line.now, tuple(lines), is_same)

    def _update(self, line: Result) -> list[OutputDelta]:
        if self._plan is None:
            raise DivergedError("a result comes before any plan")
        self._told.begin(line.answers)
        deltas = self.scheduler.update(self._plan, self._own(line.result))
        self.scheduler.check_integrity()
        return deltas

    def _own(self, result: StepResult) -> StepResult:
        """A result with this replay's keys."""
        try:
            return replace(
                result,
                stored={self._key(number): size for number, size in result.stored.items()},
                stored_from={self._key(number): first for number, first in result.stored_from.items()},
                unrestorable=tuple(map(self._key, result.unrestorable)),
                store_events=tuple(replace(event, key=self._key(event.key)) for event in result.store_events),
            )
        except (IndexError, ValueError) as error:
            raise DivergedError(f"a result is about a segment that was never stored: {error}") from error

    def _key(self, number: str) -> str:
        return self._numbers.key(int(number))


def _ends(lines: Iterable[Line]) -> dict[int, dict[int, int]]:
    """With which token each request of each session ended, of those that one ended."""
    ends: dict[int, dict[int, int]] = {}
    session = 0
    for line in lines:
        if isinstance(line, Session):
            session += 1
        elif isinstance(line, Result):
            known = ends.setdefault(session, {})
            known.update((number, name) for number, name in line.ended if name is not None)
    return ends


def _adopted(session: Session, numbers: SegmentNumbers) -> list[StoredSegment]:
    """What was on disk, under the keys that its names give."""
    keys: dict[str, str] = {}
    waiting, model_key = list(session.stored), session.config.model_key
    while waiting:
        ready = [one for one in waiting if one.header.parent in keys or not one.header.parent]
        if not ready:  # stranded: what it went on from was gone already
            ready = waiting
        for one in ready:
            header = one.header
            parent = keys.get(header.parent, header.parent)
            keys[header.key] = segment_key(model_key, header.scope, parent, header.start, header.content)
        waiting = [one for one in waiting if one.header.key not in keys]
    adopted: list[StoredSegment] = []
    for one in session.stored:
        header = one.header
        numbers.of(keys[header.key])
        own = replace(header, key=keys[header.key], parent=keys.get(header.parent, header.parent))
        adopted.append(replace(one, header=own))
    return adopted


class _ReplayedDrafter:
    def __init__(self, name: str, told: _Told) -> None:
        self.name = name
        self._told = told

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """What was recorded. Where nobody was asked the plans differ already, or are about to."""
        proposals = next(self._told.proposals, ())
        return list(proposals) if len(proposals) == len(requests) else [Proposal()] * len(requests)


class _ReplayedConstraint:
    """Implements core.grammar.TokenConstraint, as far as a scheduler asks."""

    problem: str | None = None

    def __init__(self, told: _Told) -> None:
        self._told = told

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:  # noqa: ARG002
        raise DivergedError("a scheduler asks no grammar which tokens may come")

    def accepted(self, history: TokenHistory, block: Sequence[int], tokens: Sequence[int]) -> int:  # noqa: ARG002
        count = next(self._told.accepted, None)
        if count is None:
            raise DivergedError("a grammar was not asked here how many tokens it lets come")
        return count

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:  # noqa: ARG002
        return _next_forced(self._told)


class _ReplayedHook:
    def __init__(self, told: _Told) -> None:
        self._told = told

    def forced(self, output: Tokens, limit: int) -> Sequence[int]:  # noqa: ARG002
        return _next_forced(self._told)


def _next_forced(told: _Told) -> Sequence[int]:
    for tokens in told.forced:
        if tokens is None:
            raise ValueError("the recorded one raised")
        return tokens
    raise DivergedError("it was not asked here which tokens are forced")
