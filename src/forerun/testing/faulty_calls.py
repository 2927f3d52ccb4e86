"""The real runner, with native calls that go wrong: what llama.cpp can do to it, it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerun.core.step import FailureKind, Runner, StepPlan, StepResult
from forerun.testing.faults import OF_DECODES, Fault, RequestOf, SeededFaults, Strike, requests_in

if TYPE_CHECKING:
    from forerun.native.batch import Batch
    from forerun.native.context import LlamaContext
    from forerun.native.runner import LlamaRunner

_SLOW = 0.05
"""Seconds that a slow decode takes longer."""
_DECODES = tuple(map(Strike, sorted((OF_DECODES - {Fault.HALFWAY}) | {Fault.SLOW})))
_REFUSED = {Fault.NOT_BEGUN: FailureKind.FAILED, Fault.NO_ROOM: FailureKind.NO_ROOM}


class FaultyCalls(Runner):
    """A LlamaRunner whose contexts fail, the draft model's too: decodes (before they begin, when they are done, aborted
    by llama.cpp itself, without room, with logits that are not numbers, slowly), cuts, and states read or written.

    Takes the runner over: it must not be used without this any more. `sleep` passes the time of slow decodes.
    """

    def __init__(
        self,
        runner: LlamaRunner,
        faults: SeededFaults,
        request_of: RequestOf,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.faults = faults
        self._runner = runner
        self._request_of = request_of
        self._sleep = sleep
        self._requests: list[str] = []
        """Those with rows in the step that goes on."""
        self._break(runner.context, is_draft=False)
        if runner.drafter is not None:
            self._break(runner.drafter.context, is_draft=True)

    def execute(self, plan: StepPlan) -> StepResult:
        self._requests = requests_in(plan, self._request_of)
        result = self._runner.execute(plan)
        self.faults.ended(plan, result, self._request_of)
        return result

    def _break(self, context: LlamaContext, *, is_draft: bool) -> None:
        from forerun.native.context import NativeStepError

        decode, truncate = context.decode, context.truncate_sequence
        get_state, set_state = context.get_sequence_state, context.set_sequence_state

        def faulty_decode(batch: Batch) -> None:
            strike = self.faults.draw(_DECODES, ()) if is_draft else self.faults.draw(_DECODES, self._requests)
            if strike is None:
                decode(batch)
            else:
                self._decode(context, decode, batch, strike)

        def faulty_truncate(sequence_id: int, position: int) -> bool:
            is_struck = position > 0 and self._strikes(Fault.TRUNCATE)
            return not is_struck and truncate(sequence_id, position)

        def faulty_get_state(sequence_id: int, out: NDArray[np.uint8]) -> None:
            if self._strikes(Fault.STORE):
                raise NativeStepError(FailureKind.FAILED, "injected: no state was read")
            get_state(sequence_id, out)

        def faulty_set_state(sequence_id: int, state: NDArray[np.uint8]) -> None:
            if self._strikes(Fault.RESTORE):
                context.clear_sequence(sequence_id)
                raise NativeStepError(FailureKind.FAILED, "injected: no state was written")
            set_state(sequence_id, state)

        context.decode = faulty_decode  # type: ignore[method-assign, assignment]
        context.truncate_sequence = faulty_truncate  # type: ignore[method-assign]
        context.get_sequence_state = faulty_get_state  # type: ignore[method-assign]
        context.set_sequence_state = faulty_set_state  # type: ignore[method-assign]

    def _decode(self, context: LlamaContext, decode: Callable[[Batch], None], batch: Batch, strike: Strike) -> None:
        from forerun.native.context import NativeStepError

        fault, message = strike.fault, f"injected: {strike.fault}"
        if fault is Fault.SLOW:
            self._sleep(_SLOW)
        elif fault is Fault.ABORTED:
            context.request_abort()
        elif fault in _REFUSED:
            raise NativeStepError(_REFUSED[fault], message)
        decode(batch)
        if fault is Fault.LATE:
            raise NativeStepError(FailureKind.FAILED, message)
        if fault is Fault.LOGITS:
            context.logits[self._outputs(batch, strike.culprit)] = np.nan

    def _outputs(self, batch: Batch, culprit: str | None) -> list[int]:
        """Rows of the logits that are a culprit's; all where nobody is it."""
        whose = [
            self._request_of(sequence_id)
            for sequence_id, _, rows in batch.runs()
            for _ in range(*rows.indices(batch.rows))
        ]
        asked = [whose[row] for row in batch.output_rows()]
        return [index for index, name in enumerate(asked) if culprit is None or name == culprit]

    def _strikes(self, fault: Fault) -> bool:
        return self.faults.draw((Strike(fault),), self._requests) is not None

    def close(self) -> None:
        self._runner.close()

    def __repr__(self) -> str:
        return f"FaultyCalls({self.faults!r}, {self._runner!r})"
