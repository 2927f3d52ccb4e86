"""Requests driven by hand-built step plans."""

from __future__ import annotations

import numpy as np

from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout, SpeculativePosition, Tokens
from forerun.core.request import SamplingParams
from forerun.core.sampling import SamplingContext
from forerun.core.step import DecodeRow, DraftFill, DraftRequest, PrefillRows, SequenceResult, StepPlan, StepResult
from forerun.native.runner import LlamaRunner
from tests.support.tiny_models import ORDINARY_TOKENS

PLENTY = 1_000_000


def random_tokens(count: int, seed: int = 0) -> Tokens:
    """Tokens of text, known to all test models."""
    return np.random.default_rng(seed).integers(*ORDINARY_TOKENS, count, dtype=np.int32)


def at(position: int) -> SpeculativePosition:
    return SpeculativePosition(target=position, draft=position)


class DrivenRequest:
    """One text request: what is known of it, and what target and draft hold of that."""

    def __init__(
        self, runner: LlamaRunner, sequence_id: int, prompt: Tokens, params: SamplingParams | None = None
    ) -> None:
        self.runner = runner
        self.sequence_id = sequence_id
        self.history = TokenHistory(PromptLayout.of_text(prompt))
        end_tokens = runner.context.model.vocabulary.end_tokens
        self.sampling = SamplingContext(params or SamplingParams(), 0, end_tokens, self.history)
        self.computed = 0
        self.draft_held = 0

    @property
    def output(self) -> list[int]:
        tokens: list[int] = self.history.tokens[self.history.prompt_tokens :].tolist()
        return tokens

    def prefill_rows(self, stop: int | None = None) -> PrefillRows:
        """The prompt from where it is computed to `stop`; a token is sampled where that is its end."""
        stop = self.history.size if stop is None else stop
        sampling = self.sampling if stop == self.history.size else None
        return PrefillRows(self.sequence_id, self.history.slice(self.computed, stop), self.computed, sampling)

    def prefill(self, *cuts: int) -> None:
        """The whole prompt, in chunks that end at `cuts`."""
        for stop in (*cuts, self.history.size):
            result = self.runner.execute(StepPlan(0.0, prefill=(self.prefill_rows(stop),)))
            assert result.failure is None
            self.computed = stop
        self.commit(result)

    def decode_row(self, drafts: tuple[int, ...] = ()) -> DecodeRow:
        return DecodeRow(self.sequence_id, self.history.last, self.history.size - 1, self.sampling, PLENTY, drafts)

    def draft_request(self, limit: int) -> DraftRequest:
        return DraftRequest(self.sequence_id, self.history.tokens, self.draft_held, limit)

    def draft_fill(self, stop: int) -> DraftFill:
        return DraftFill(self.sequence_id, self.history.slice(self.draft_held, stop), self.draft_held)

    def commit(self, result: StepResult) -> SequenceResult:
        assert result.failure is None
        sequence = result.sequences[self.sequence_id]
        for token in sequence.tokens:
            self.history.append(token)
        self.computed = self.history.size - 1
        self.draft_held = result.draft_held.get(self.sequence_id, self.draft_held)
        return sequence

    def decode(self, drafts: tuple[int, ...] = ()) -> SequenceResult:
        """One step for this request alone."""
        return self.commit(self.runner.execute(StepPlan(0.0, decode=(self.decode_row(drafts),))))

    def decode_with_draft(self, limit: int) -> SequenceResult:
        plan = StepPlan(0.0, draft_requests=(self.draft_request(limit),), decode=(self.decode_row(),))
        return self.commit(self.runner.execute(plan))

    def assert_memory_is_known(self) -> None:
        """Both memories hold what the request believes."""
        assert self.runner.context.pos_max(self.sequence_id) + 1 == self.computed
        if self.runner.drafter is not None:
            assert self.runner.drafter.held(self.sequence_id) == self.draft_held
