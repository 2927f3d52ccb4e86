"""A scheduler that is recorded: what it is told and what it decides goes to a journal, as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import msgspec
import numpy as np
from numpy.typing import NDArray

from forerun.core.adapters import scope_of
from forerun.core.cache_report import CacheLookup
from forerun.core.config import SchedulerConfig
from forerun.core.costs import LiveCosts, StepCosts
from forerun.core.encoding import MediaEvent
from forerun.core.grammar import TokenConstraint
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout, Tokens
from forerun.core.request import FinishReason, ForcedTokens, OutputDelta, Request, SamplingParams
from forerun.core.running import RequestState
from forerun.core.scheduler import Scheduler
from forerun.core.segment import StoredSegment
from forerun.core.step import Drafter, DraftRequest, Proposal, StepPlan, StepResult, Vocabulary, tokens_of
from forerun.engine.disguise import Disguise
from forerun.engine.plan_text import SegmentNumbers, plan_digest, plan_lines
from forerun.engine.recording import (
    FORMAT,
    Answers,
    Arrival,
    Cancel,
    Clear,
    Journal,
    Look,
    Pace,
    Pin,
    Plan,
    Result,
    Session,
)


@dataclass(slots=True)
class _Told:
    """What others told the scheduler in one call."""

    proposals: list[tuple[Proposal, ...]] = field(default_factory=list)
    forced: list[tuple[int, ...] | None] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def answers(self) -> Answers:
        return Answers(proposals=tuple(self.proposals), forced=tuple(self.forced), accepted=tuple(self.accepted))


@dataclass(slots=True)
class _Known:
    """A request that is open."""

    number: int
    end: int
    """What goes on from its text so far (Disguise)."""


class Recorder:
    """Puts the words of a scheduler's calls into those of a recording. Owned by the scheduler that it records."""

    def __init__(self, journal: Journal, vocabulary: Vocabulary) -> None:
        self.journal = journal
        self.disguise = Disguise()
        self.numbers = SegmentNumbers()
        self._vocabulary = vocabulary
        self._requests: dict[str, _Known] = {}
        self._arrivals = 0
        self._told: _Told | None = None

    # --- what others say while the scheduler decides ---

    def listen(self) -> None:
        """From now on what others say is said to the scheduler, and not to the runner."""
        self._told = _Told()

    def heard(self) -> Answers:
        told, self._told = self._told, None
        return Answers() if told is None else told.answers()

    def proposed(self, requests: Sequence[DraftRequest], proposals: Sequence[Proposal]) -> None:
        if self._told is None:
            return
        named: list[Proposal] = []
        for request, proposal in zip(requests, proposals, strict=True):
            name = request.request.id if request.request is not None else ""
            named.append(replace(proposal, tokens=self.names(name, proposal.tokens), drawn_from=()))
        self._told.proposals.append(tuple(named))

    def forced(self, request_id: str, tokens: Sequence[int] | None) -> None:
        if self._told is not None:
            self._told.forced.append(None if tokens is None else self.names(request_id, tuple(tokens)))

    def accepted(self, count: int) -> None:
        if self._told is not None:
            self._told.accepted.append(count)

    def names(self, request_id: str, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Names of tokens that go on from what is known of a request."""
        known = self._requests.get(request_id)
        if known is None or not tokens:
            return ()
        names, _ = self.disguise.text(known.end, tokens)
        return tuple(names.tolist())

    # --- requests ---

    def arrived(self, request: Request, state: RequestState, *, has_state: bool) -> None:
        self._arrivals += 1
        prompt, end = self.disguise.layout(request.prompt)
        self._requests[request.id] = _Known(self._arrivals, end)
        named = replace(
            request,
            id=str(self._arrivals),
            prompt=prompt,
            params=_without_text(request.params),
            tenant=self.disguise.scope(scope_of(request.tenant)),
            forced=None,
            constraint=None,
        )
        line = Arrival(
            number=self._arrivals,
            request=named,
            has_constraint=request.constraint is not None,
            has_hook=request.forced is not None,
            ends=_ends(request.prompt, prompt, state) if has_state else (),
            text=self._text(request.prompt) if self.journal.has_text else None,
        )
        self.journal.write(line)

    def number(self, request_id: str) -> int | None:
        known = self._requests.get(request_id)
        return None if known is None else known.number

    def told(self, deltas: Sequence[OutputDelta]) -> tuple[list[tuple[int, int | None]], dict[int, str]]:
        """Move on by what requests were given: who ended and with which token, and the texts."""
        ended: list[tuple[int, int | None]] = []
        texts: dict[int, str] = {}
        for delta in deltas:
            known = self._requests.get(delta.request_id)
            if known is None:
                continue
            names, known.end = self.disguise.text(known.end, delta.tokens)
            if delta.text and self.journal.has_text:
                texts[known.number] = delta.text
            if delta.finish_reason is not None:
                by_token = names.size > 0 and delta.finish_reason is not FinishReason.LENGTH
                ended.append((known.number, int(names[-1]) if by_token else None))
                del self._requests[delta.request_id]
        return ended, texts

    def _text(self, prompt: PromptLayout) -> str:
        piece = self._vocabulary.piece
        tokens = np.concatenate([np.empty(0, np.int32), *(segment.tokens for segment in prompt.segments)])
        return b"".join(map(piece, tokens.tolist())).decode("utf-8", "replace")

    # --- the disk's contents, and results ---

    def stored(self, found: Iterable[StoredSegment]) -> tuple[StoredSegment, ...]:
        """What was found on disk, by names. What goes on from what was not found does so from nothing."""
        layouts: dict[str, PromptLayout] = {}
        waiting = {one.header.key: one for one in found}
        named: list[StoredSegment] = []
        for one in waiting.values():
            self.numbers.of(one.header.key)
            layout, before = self._before(one, waiting, layouts)
            content, _ = self.disguise.segments(one.header.content, before)
            scope, parent = self.disguise.scope(one.header.scope), one.header.parent
            header = replace(one.header, content=tuple(content), scope=scope, parent=parent)
            named.append(replace(one, header=header))
            layouts[one.header.key] = layout.extended(one.header.content)
        return tuple(named)

    def _before(
        self, one: StoredSegment, all_found: dict[str, StoredSegment], layouts: dict[str, PromptLayout]
    ) -> tuple[PromptLayout, int]:
        """The text before a stored segment, and what goes on from it."""
        chain: list[StoredSegment] = []
        parent = all_found.get(one.header.parent)
        while parent is not None and parent.header.key not in layouts and len(chain) < len(all_found):
            chain.append(parent)
            parent = all_found.get(parent.header.parent)
        for link in reversed(chain):
            begun = layouts.get(link.header.parent, PromptLayout())
            layouts[link.header.key] = begun.prefix(link.header.start).extended(link.header.content)
        layout = layouts.get(one.header.parent, PromptLayout()).prefix(one.header.start)
        return layout, self.disguise.layout(layout)[1]

    def result(self, result: StepResult, scheduler: Scheduler) -> StepResult:
        """A result by names and numbers."""
        number = self.numbers.of
        sequences = {
            sequence_id: replace(
                one, tokens=self.names(scheduler.request_of(sequence_id) or "", one.tokens), logprobs=None
            )
            for sequence_id, one in result.sequences.items()
        }
        return replace(
            result,
            sequences=sequences,
            faults={key: replace(fault, message="") for key, fault in result.faults.items()},
            stored={str(number(key)): size for key, size in result.stored.items()},
            stored_from={str(number(key)): first for key, first in result.stored_from.items()},
            unrestorable=tuple(str(number(key)) for key in result.unrestorable),
            store_events=tuple(replace(event, key=str(number(event.key))) for event in result.store_events),
            media_events=tuple(
                MediaEvent(
                    replace(event.span, identity=self.disguise.of(event.span.identity)),
                    "it failed" if event.error else "",
                )
                for event in result.media_events
            ),
        )


class RecordedScheduler(Scheduler):
    """A scheduler whose calls are recorded. What it decides is not changed by that."""

    def __init__(
        self,
        config: SchedulerConfig,
        vocabulary: Vocabulary,
        journal: Journal,
        *,
        costs: StepCosts | None = None,
        pace: LiveCosts | None = None,
        lookups: Sequence[Drafter] | None = None,
        stored: Iterable[StoredSegment] = (),
    ) -> None:
        found = tuple(stored)
        super().__init__(config, vocabulary, costs=costs, pace=pace, lookups=lookups, stored=found)
        self._recorder = Recorder(journal, vocabulary)
        names = self._drafting.watch_lookups(lambda drafter: _WatchedDrafter(drafter, self._recorder))
        curves = () if costs is None else (costs.target, costs.draft)
        session = Session(
            format=FORMAT,
            forerun=version("forerun"),
            config=config,
            costs=tuple(one.curve.as_json() for one in curves if one is not None),
            pace=None if pace is None or costs is not None else pace.curve.as_json(),
            lookups=tuple(names),
            stored=self._recorder.stored(found),
        )
        journal.write(session)

    def add(self, request: Request) -> None:
        forced, constraint = request.forced, request.constraint
        watched = replace(
            request,
            forced=forced and _WatchedHook(forced, request.id, self._recorder),
            constraint=constraint and _WatchedConstraint(constraint, request.id, self._recorder),
        )
        super().add(watched)
        self._recorder.arrived(request, self._requests[request.id], has_state=self.config.memory.has_state)

    def abort(self, request_id: str, now: float) -> OutputDelta | None:
        number = self._recorder.number(request_id)
        if number is not None:
            self._recorder.journal.write(Cancel(number=number, now=now))
        delta = super().abort(request_id, now)
        if delta is not None:
            self._recorder.told([delta])
        return delta

    def pause(self, request_id: str) -> None:
        self._write_pace(request_id, is_paused=True)
        super().pause(request_id)

    def resume(self, request_id: str) -> None:
        self._write_pace(request_id, is_paused=False)
        super().resume(request_id)

    def _write_pace(self, request_id: str, *, is_paused: bool) -> None:
        number = self._recorder.number(request_id)
        if number is not None:
            self._recorder.journal.write(Pace(number=number, is_paused=is_paused))

    def look_up(self, prompt: PromptLayout, scope: str = "") -> CacheLookup:
        self._recorder.journal.write(Look())
        return super().look_up(prompt, scope)

    def pin(self, prompt: PromptLayout, scope: str, until: float) -> int:
        disguise = self._recorder.disguise
        self._recorder.journal.write(Pin(prompt=disguise.layout(prompt)[0], scope=disguise.scope(scope), until=until))
        return super().pin(prompt, scope, until)

    def clear_cache(self, scope: str | None = None) -> int:
        self._recorder.journal.write(Clear(scope=None if scope is None else self._recorder.disguise.scope(scope)))
        return super().clear_cache(scope)

    def schedule(self, now: float) -> StepPlan:
        recorder, plan = self._recorder, None
        recorder.listen()
        began = time.perf_counter()
        try:
            plan = super().schedule(now)
        finally:
            took = time.perf_counter() - began
            answers = recorder.heard()
            line = Plan(now=now, answers=answers) if plan is None else _plan_line(plan, answers, recorder.numbers)
            recorder.journal.write(msgspec.structs.replace(line, took=took))
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[OutputDelta]:
        recorder = self._recorder
        named = recorder.result(result, self)
        recorder.listen()
        deltas: list[OutputDelta] = []
        began = time.perf_counter()
        try:
            deltas = super().update(plan, result)
        finally:
            took = time.perf_counter() - began
            answers = recorder.heard()
            ended, texts = recorder.told(deltas)
            recorder.journal.write(Result(result=named, answers=answers, ended=tuple(ended), texts=texts, took=took))
        return deltas


class _WatchedDrafter:
    def __init__(self, drafter: Drafter, recorder: Recorder) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._recorder = recorder

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = self._drafter.propose(requests)
        self._recorder.proposed(requests, proposals)
        return proposals


class _WatchedHook:
    def __init__(self, hook: ForcedTokens, request_id: str, recorder: Recorder) -> None:
        self._hook = hook
        self._request_id = request_id
        self._recorder = recorder

    def forced(self, output: Tokens, limit: int) -> Sequence[int]:
        tokens: list[int] | None = None
        try:
            tokens = list(self._hook.forced(output, limit))[:limit]
        finally:
            self._recorder.forced(self._request_id, tokens)
        return tokens


class _WatchedConstraint:
    def __init__(self, constraint: TokenConstraint, request_id: str, recorder: Recorder) -> None:
        self._constraint = constraint
        self._request_id = request_id
        self._recorder = recorder

    @property
    def problem(self) -> str | None:
        return self._constraint.problem

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:
        return self._constraint.allowed(history, block)

    def accepted(self, history: TokenHistory, block: Sequence[int], tokens: Sequence[int]) -> int:
        count = self._constraint.accepted(history, block, tokens)
        self._recorder.accepted(count)
        return count

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:
        tokens = tuple(self._constraint.forced(history, limit))
        self._recorder.forced(self._request_id, tokens)
        return tokens


def _plan_line(plan: StepPlan, answers: Answers, numbers: SegmentNumbers) -> Plan:
    prefill = sum(map(tokens_of, plan.prefill))
    rows = (len(plan.decode), sum(len(row.drafts) for row in plan.decode), prefill)
    return Plan(now=plan.now, digest=plan_digest(plan_lines(plan, numbers)), rows=rows, answers=answers)


def _without_text(params: SamplingParams) -> SamplingParams:
    """What scheduling goes by; not what the answer may say, nor where it ends."""
    return replace(params, stop=(), stop_token_ids=(), logit_bias={}, shown_tokens={}, grammar=None)


def _ends(prompt: PromptLayout, named: PromptLayout, state: RequestState) -> tuple[int, ...]:
    """Names of the prompt's tokens that end turns."""
    ends = list(state.sampling.end_tokens)
    found = [
        names.tokens[np.isin(segment.tokens, ends)]
        for segment, names in zip(prompt.segments, named.segments, strict=True)
    ]
    return tuple(np.concatenate([np.empty(0, np.int32), *found]).tolist())
