"""Drives a soak, a step at a time, and looks at everything after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from forerun.core.request import FinishReason, OutputDelta
from forerun.errors import GrammarFailedError
from forerun.testing.soak.subject import Course, SoakError, Subject
from forerun.testing.soak.summary import SoakSummary

_PATIENCE = 20_000
"""Steps after which a request that is still open is taken for starved."""
_CANCELS = 0.01
"""Share of steps before which one of the open requests is cancelled."""
_BURSTS = 0.02
"""Share of steps before which as many arrive as may be open."""


_SLOW_READERS = 0.03
"""Share of steps before which the reader of an open request falls behind."""
_BEHIND = (3, 20, 60)
"""For so many steps."""


class Soak:
    """One soak, reproducible by its seed where the subject's clock is. `most_open`: requests that are open at most."""

    def __init__(self, subject: Subject, seed: int, *, most_open: int = 16) -> None:
        self._subject = subject
        self._seed = seed
        self._most_open = most_open
        self._random = Random(seed)
        self._open: dict[str, Course] = {}
        self._behind: dict[str, int] = {}
        """Requests whose readers are, and from which step on they are not."""
        self._arrivals = 0
        self._steps = 0
        self._most_steps = 0
        self._finished: Counter[str] = Counter()
        self._usage: Counter[str] = Counter()
        self._lost: list[str] = []

    def run(self, goes_on: Callable[[int], bool]) -> SoakSummary:
        """Soak while `goes_on` says so, told the steps so far; then let the open requests end. Raises SoakError."""
        began = self._subject.clock()
        while goes_on(self._steps):
            self._arrive()
            self._cancel()
            self._read_slowly()
            self._step()
        while self._open:
            self._read_slowly()
            self._step()
        self._nothing_is_left()
        return self._summary(self._subject.clock() - began)

    # --- what comes from outside ---

    def _arrive(self) -> None:
        room = self._most_open - len(self._open)
        count = room if self._random.random() < _BURSTS else self._random.random() < 0.2 * (room > 0)
        for _ in range(int(count)):
            self._arrivals += 1
            name = f"r{self._arrivals}"
            request = self._subject.draw(self._random, name, self._subject.clock())
            self._subject.scheduler.add(request)
            self._open[name] = Course(request, self._steps)

    def _cancel(self) -> None:
        if self._open and self._random.random() < _CANCELS:
            name = self._random.choice(sorted(self._open))
            delta = self._subject.scheduler.abort(name, self._subject.clock())
            if delta is None:
                raise SoakError(f"{name} is open, but the scheduler does not know it")
            self._take(delta)

    # --- a step ---

    def _read_slowly(self) -> None:
        """Now and then a reader falls behind; it catches up some steps later."""
        scheduler = self._subject.scheduler
        for name in [name for name, until in self._behind.items() if until <= self._steps]:
            del self._behind[name]
            scheduler.resume(name)
        awake = sorted(self._open.keys() - self._behind.keys())
        if awake and self._random.random() < _SLOW_READERS:
            name = self._random.choice(awake)
            self._behind[name] = self._steps + self._random.choice(_BEHIND)
            scheduler.pause(name)

    def _step(self) -> None:
        subject = self._subject
        plan = subject.scheduler.schedule(subject.clock())
        result = subject.runner.execute(plan)
        self._steps += 1
        for delta in subject.scheduler.update(plan, result):
            self._take(delta)
        subject.scheduler.check_integrity()
        subject.check_memory()
        self._nobody_starves()

    def _take(self, delta: OutputDelta) -> None:
        course = self._open.get(delta.request_id)
        if course is None:
            raise SoakError(f"{delta.request_id} got something after its end, or before its arrival: {delta}")
        if delta.request_id in self._behind and delta.finish_reason is not FinishReason.ABORT:
            raise SoakError(f"{delta.request_id} got something while its reader was behind: {delta}")
        course.deltas.append(delta)
        if delta.finish_reason is not None:
            self._end(delta.request_id, course, delta)

    def _end(self, name: str, course: Course, last: OutputDelta) -> None:
        del self._open[name]
        self._behind.pop(name, None)
        self._finished[str(last.finish_reason)] += 1
        self._most_steps = max(self._most_steps, self._steps - course.arrived)
        self._subject.answers.check(course)
        is_culprit = name in self._subject.faults.culprits
        if last.finish_reason is FinishReason.ERROR and not isinstance(last.error, GrammarFailedError):
            if not is_culprit:
                self._lost.append(f"{name} ({last.error})")
        elif is_culprit and course.is_whole:
            raise SoakError(f"every step with {name} in it failed, and it got an answer")
        if (usage := last.usage) is not None:
            counts = ("output_tokens", "cached_tokens", "drafted_tokens", "accepted_tokens")
            self._usage.update({count: getattr(usage, count) for count in counts})

    # --- what must hold ---

    def _nobody_starves(self) -> None:
        oldest = next(iter(self._open.values()), None)
        if oldest is not None and self._steps - oldest.arrived > _PATIENCE:
            raise SoakError(f"{oldest.request.id} has not ended in {_PATIENCE} steps: {self._subject.scheduler!r}")

    def _nothing_is_left(self) -> None:
        """When all requests have ended, all that is held is reusable prefixes."""
        scheduler = self._subject.scheduler
        for _ in range(_PATIENCE):
            if not scheduler.has_work:
                break
            self._step()
        pool, limit = scheduler.pool, scheduler.config.n_seq_max
        if scheduler.has_work:
            raise SoakError(f"nobody is there and there is still work: {scheduler!r}")
        if pool.free_ids + pool.idle_ids != limit:
            raise SoakError(f"of {limit} sequences {pool.free_ids} are free and {pool.idle_ids} idle: some are lost")
        idle = pool.target_cells.held_together(list(pool.idle))
        if pool.target_cells.used != idle:
            raise SoakError(f"{pool.target_cells.used} cells are used, idle prefixes hold {idle}: some are lost")

    def _summary(self, seconds: float) -> SoakSummary:
        subject = self._subject
        stats = subject.scheduler.stats
        return SoakSummary(
            subject=subject.name,
            seed=self._seed,
            seconds=seconds,
            steps=self._steps,
            finished=dict(self._finished),
            faults={str(fault): count for fault, count in subject.faults.counts.items()},
            culprits=len(subject.faults.culprits),
            lost=tuple(self._lost),
            ties=subject.answers.ties,
            output_tokens=self._usage["output_tokens"],
            cached_tokens=self._usage["cached_tokens"],
            drafted_tokens=self._usage["drafted_tokens"],
            accepted_tokens=self._usage["accepted_tokens"],
            preemptions=stats.preemptions,
            quarantines=stats.quarantines,
            evicted_prefixes=stats.evicted_prefixes,
            most_steps=self._most_steps,
        )
