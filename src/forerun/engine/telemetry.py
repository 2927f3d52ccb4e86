"""What the engine has done since it started, counted once a step.

    runner ── plan, result ──► Telemetry ◄── deltas ── worker
                                   │ snapshot, between two steps
                                   ▼
                            EngineTelemetry, a value

Counting costs a step a few microseconds: a draft's verification is counted as one fact (who proposed it, how long it
was, how far it was right), and sorted by position only where somebody looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from forerun.core.origins import OWN_CHOICE, TARGET, Origins, first
from forerun.core.request import FinishReason, OutputDelta, Usage
from forerun.core.stats import SchedulerStats
from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    DropSegment,
    FetchSegment,
    ForkSequence,
    KvOperation,
    PersistSegment,
    RemoveSegment,
    RestoreSegment,
    Runner,
    SequenceResult,
    StepPlan,
    StepResult,
    StoreSegment,
    TruncateSequence,
    tokens_of,
)
from forerun.engine.histogram import Buckets, Histogram

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COPY_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
ROWS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
DECODE, DRAFT, PREFILL = ROW_KINDS = ("decode", "draft", "prefill")
RESIDENT, HOST, DISK = CACHE_TIERS = ("resident", "host", "disk")

_OPERATIONS: dict[type[KvOperation], str] = {
    ClearSequence: "clear",
    TruncateSequence: "truncate",
    ForkSequence: "fork",
    StoreSegment: "store",
    RestoreSegment: "restore",
    DropSegment: "drop",
    PersistSegment: "persist",
    FetchSegment: "fetch",
    RemoveSegment: "remove",
}
OPERATIONS = tuple(_OPERATIONS.values())
_MOST_FACTS = 1024
"""Different verifications that are held before they are sorted by position."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """A drafter's proposals by their place in the draft, the first one first."""

    proposed: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTelemetry:
    """A look at an engine between two steps. Counts have gone up since it started."""

    started: float
    """When the engine started, on its clock: tells one start from the next."""
    stats: SchedulerStats
    step_seconds: Histogram
    rows: Mapping[str, Histogram]
    """Rows of a step, by kind: each step counts in each."""
    store_seconds: Histogram
    """Copying prefixes to host memory, of steps that did."""
    restore_seconds: Histogram
    """Copying them back, of steps that did."""
    computed_tokens: int
    """Tokens evaluated as prompts; what a preempted or rebuilt request has to evaluate again counts again."""
    cached_tokens: Mapping[str, int]
    """Prompt tokens of finished requests that were reused, by where they came from."""
    output_tokens: Mapping[str, int]
    """By who came up with them: "target", or the drafter whose proposals it confirmed."""
    drafts: Mapping[str, DraftCounts]
    operations: Mapping[str, int]
    """Memory operations, by kind; segments for those that store, restore and drop."""
    failed_steps: Mapping[str, int]
    """By kind of failure."""
    finished: Mapping[str, int]
    """Requests that ended, by finish reason."""
    errors: Mapping[str, int]
    """Requests that ended with an error, by its class."""


_Fact: TypeAlias = tuple[Origins | str, int, int, int]
"""Who proposed a row's own drafts, how many those were, how many were verified, how many confirmed."""


class _DraftFacts:
    """Verified drafts, sorted by drafter and position when somebody looks."""

    def __init__(self, model_drafter: str) -> None:
        self._model_drafter = model_drafter
        self._facts: dict[_Fact, int] = {}
        self._proposed: dict[str, list[int]] = {}
        self._accepted: dict[str, list[int]] = {}

    def add(self, row: DecodeRow, result: SequenceResult) -> None:
        facts, key = self._facts, (row.origins or row.drafter, len(row.drafts), result.drafted, result.accepted)
        facts[key] = facts.get(key, 0) + 1
        if len(facts) > _MOST_FACTS:
            self._sort()

    def snapshot(self) -> dict[str, DraftCounts]:
        self._sort()
        return {
            drafter: DraftCounts(tuple(counts), tuple(self._accepted[drafter]))
            for drafter, counts in self._proposed.items()
        }

    def _sort(self) -> None:
        for (who, own, drafted, accepted), times in self._facts.items():
            for position, drafter in enumerate(self._drafters(who, own, drafted)):
                proposed = self._proposed.setdefault(drafter, [])
                confirmed = self._accepted.setdefault(drafter, [])
                for counts in (proposed, confirmed):
                    counts.extend([0] * (position + 1 - len(counts)))
                proposed[position] += times
                confirmed[position] += times if position < accepted else 0
        self._facts.clear()

    def _drafters(self, who: Origins | str, own: int, drafted: int) -> list[str]:
        """Whose each drafted token is: the row's own drafts come first, a draft model's follow."""
        origins: Origins = ((who, own),) if isinstance(who, str) else who
        names = [name for name, count in first(origins, min(own, drafted)) for _ in range(count)]
        return names + [self._model_drafter] * (drafted - len(names))


class Telemetry:
    """Counts what steps do and what becomes of requests. Owned and used by the engine thread."""

    def __init__(self, model_drafter: str, started: float = 0.0) -> None:
        """`model_drafter`: what the draft model is called; `started`: the time, on the engine's clock."""
        self._started = started
        self._step_seconds = Buckets(STEP_SECONDS)
        self._decode_rows, self._draft_rows, self._prefill_rows = (Buckets(ROWS) for _ in ROW_KINDS)
        self._store_seconds = Buckets(COPY_SECONDS)
        self._restore_seconds = Buckets(COPY_SECONDS)
        self._computed_tokens = 0
        self._cached_tokens = dict.fromkeys(CACHE_TIERS, 0)
        self._output_tokens: dict[str, int] = {}
        self._drafts = _DraftFacts(model_drafter)
        self._operations: Counter[str] = Counter()
        self._failed_steps: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def count_step(self, plan: StepPlan, result: StepResult) -> None:
        """A step that was performed, or failed. Steps without rows count with their operations alone."""
        for operation in plan.operations:
            self._operations[_OPERATIONS[type(operation)]] += 1
        times = result.times
        if times.storing > 0:
            self._store_seconds.add(times.storing)
        if times.restoring > 0:
            self._restore_seconds.add(times.restoring)
        if not (plan.decode or plan.prefill):
            return
        self._step_seconds.add(result.elapsed)
        if result.failure is not None:
            self._failed_steps[result.failure.kind.value] += 1
            return
        self._count_rows(plan, result.sequences)

    def _count_rows(self, plan: StepPlan, sequences: Mapping[int, SequenceResult]) -> None:
        drafted = 0
        for row in plan.decode:
            verified = sequences.get(row.sequence_id)
            if verified is not None and verified.drafted:
                drafted += verified.drafted
                self._drafts.add(row, verified)
        prefill = sum(map(tokens_of, plan.prefill)) if plan.prefill else 0
        self._computed_tokens += prefill
        self._decode_rows.add(len(plan.decode))
        self._draft_rows.add(drafted)
        self._prefill_rows.add(prefill)

    def count_deltas(self, deltas: Iterable[OutputDelta]) -> None:
        """What requests were given; the last delta of each also says how it ended."""
        own_choices = 0
        output_tokens = self._output_tokens
        for delta in deltas:
            if delta.origins is OWN_CHOICE:  # one token, by far the most common
                own_choices += 1
            else:
                for name, count in delta.origins:
                    output_tokens[name] = output_tokens.get(name, 0) + count
            if delta.finish_reason is not None:
                self._count_end(delta, delta.finish_reason)
        if own_choices:
            output_tokens[TARGET] = output_tokens.get(TARGET, 0) + own_choices

    def _count_end(self, delta: OutputDelta, reason: FinishReason) -> None:
        self._finished[reason.value] += 1
        if delta.error is not None:
            self._errors[type(delta.error).__name__] += 1
        if delta.usage is not None:
            self._count_cached(delta.usage)

    def _count_cached(self, usage: Usage) -> None:
        host, disk = usage.cached_host_tokens, usage.cached_disk_tokens
        self._cached_tokens[HOST] += host
        self._cached_tokens[DISK] += disk
        self._cached_tokens[RESIDENT] += usage.cached_tokens - host - disk

    def snapshot(self, stats: SchedulerStats) -> EngineTelemetry:
        """All there is to tell, with the scheduler's counts of this moment."""
        rows = (self._decode_rows, self._draft_rows, self._prefill_rows)
        return EngineTelemetry(
            started=self._started,
            stats=stats,
            step_seconds=self._step_seconds.snapshot(),
            rows={kind: buckets.snapshot() for kind, buckets in zip(ROW_KINDS, rows, strict=True)},
            store_seconds=self._store_seconds.snapshot(),
            restore_seconds=self._restore_seconds.snapshot(),
            computed_tokens=self._computed_tokens,
            cached_tokens=dict(self._cached_tokens),
            output_tokens=dict(self._output_tokens),
            drafts=self._drafts.snapshot(),
            operations=dict(self._operations),
            failed_steps=dict(self._failed_steps),
            finished=dict(self._finished),
            errors=dict(self._errors),
        )


class CountedRunner(Runner):
    """A runner whose steps are counted."""

    def __init__(self, runner: Runner, telemetry: Telemetry) -> None:
        self._runner = runner
        self._telemetry = telemetry

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._runner.execute(plan)
        self._telemetry.count_step(plan, result)
        return result

    def close(self) -> None:
        self._runner.close()

    def __repr__(self) -> str:
        return f"CountedRunner({self._runner!r})"
