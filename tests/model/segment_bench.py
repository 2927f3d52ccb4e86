"""A runner with a store of its own, and segments of a text, for the tests of what leaves memory and comes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forerun.core.prompt import PromptBoundary, PromptSegment, Tokens
from forerun.core.segment import SegmentHeader, segment_key
from forerun.core.step import KvOperation, RestoreSegment, StepPlan, StepResult, StoreSegment
from forerun.native.batch import Batch
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.drafter import LlamaDrafter
from forerun.native.model import LlamaModel
from forerun.native.mtp import MtpDrafter
from forerun.native.rollback import Rollback
from forerun.native.runner import LlamaRunner
from forerun.native.segments import Segments
from tests.model.driving import at, random_tokens
from tests.support.segment_store import DictStore
from tests.support.tiny_models import TinyModel

RECIPES = {
    "dense": TinyModel(),
    "sliding window": TinyModel("gemma3", layers=6),
    "hybrid": TinyModel("lfm2", layers=4),
    "recurrent": TinyModel("mamba"),
}
HEADS = {"MTP head": TinyModel("glm4moe", layers=1), "MTP head, hybrid": TinyModel("qwen35", layers=2)}
WINDOW = 64
IDS = 12
ROLLBACK = 9
"""Ids for rollback, two of them; the last id is for copying."""
Logits = NDArray[np.float32]


class Bench:
    """A runner with a store on contexts of its own, and what is known of the segments."""

    def __init__(
        self,
        model: LlamaModel,
        draft: LlamaModel | None = None,
        *,
        mtp: bool = False,
        n_ctx: int = 4096,
        kv: str = "f16",
    ) -> None:
        """What drafts: a draft model, the target's MTP head, or nothing."""
        self.params = ContextParams(
            n_ctx=n_ctx,
            n_batch=512,
            n_ubatch=512,
            n_seq_max=IDS,
            n_threads=1,
            n_threads_batch=1,
            type_k=kv,
            type_v=kv,
            flash_attention=kv != "f16",  # quantized values need it
        )
        self.context = LlamaContext(model, self.params)
        self.drafter = self._head() if mtp else None if draft is None else self._drafter(draft)
        self.store = DictStore()
        rollback = Rollback(self.context, ROLLBACK, 2) if model.memory.has_state else None
        segments = Segments(self.context, self.drafter, self.store)
        self.runner = LlamaRunner(self.context, self.drafter, rollback=rollback, segments=segments)

    def _head(self) -> MtpDrafter:
        return MtpDrafter(LlamaContext(self.context.model, replace(self.params, is_mtp=True)), self.context)

    def _drafter(self, draft: LlamaModel) -> LlamaDrafter:
        context = LlamaContext(draft, self.params)
        return LlamaDrafter(context, rollback=Rollback(context, ROLLBACK, 2) if draft.memory.has_state else None)

    def feed(self, sequence_id: int, tokens: Tokens, start: int = 0, chunk: int = 512) -> Logits:
        """Evaluate tokens[start:] in both memories; the target's logits after the last one."""
        contexts = [self.context] if self.drafter is None else [self.drafter.context, self.context]
        for first in range(start, tokens.size, chunk):
            for context in contexts:
                batch = Batch(context.n_batch)
                run = tokens[first : first + chunk]
                batch.add_run(run, first, sequence_id, last_output=True)
                context.decode(batch)
        logits: Logits = self.context.logits[-1].copy()
        return logits

    def next_logits(self, sequence_id: int, tokens: Tokens, count: int = 3) -> Logits:
        """Of `count` further tokens one by one, evaluated in the target alone."""
        rows = []
        for token in random_tokens(count, seed=tokens.size):
            batch = Batch(1)
            batch.add_row(int(token), self.context.pos_max(sequence_id) + 1, sequence_id)
            self.context.decode(batch)
            rows.append(self.context.logits[0].copy())
        return np.array(rows)

    def do(self, *operations: KvOperation) -> StepResult:
        return self.runner.execute(StepPlan(0.0, operations))

    def held(self, sequence_id: int) -> tuple[int, int]:
        """Positions in target and draft."""
        draft = self.drafter.held(sequence_id) if self.drafter else 0
        return self.context.pos_max(sequence_id) + 1, draft

    def close(self) -> None:
        self.runner.close()


def headers(tokens: Tokens, cuts: Sequence[int], draft_stop: int = 0) -> list[SegmentHeader]:
    """One after another, between 0 and each of the cuts in turn."""
    made: list[SegmentHeader] = []
    for start, stop in pairwise([0, *cuts]):
        first, last = PromptBoundary(start, start), PromptBoundary(stop, stop)
        content = (PromptSegment.text(tokens[start:stop]),)
        parent = made[-1].key if made else ""
        key = segment_key("m", "", parent, first, content)
        made.append(SegmentHeader(key, parent, "", first, last, content, max(start, min(stop, draft_stop))))
    return made


def stores(sequence_id: int, segments: Iterable[SegmentHeader]) -> list[StoreSegment]:
    return [StoreSegment(sequence_id, header) for header in segments]


def restores(sequence_id: int, segments: Iterable[SegmentHeader], upto: int = 10**9) -> list[RestoreSegment]:
    """All that lies before `upto`."""
    return [
        RestoreSegment(
            sequence_id, header.key, at(header.start.native_position), at(min(upto, header.stop.native_position))
        )
        for header in segments
        if header.start.native_position < upto
    ]


def assert_done(result: StepResult) -> StepResult:
    assert result.failure is None, result.failure
    assert all(result.stored.values())
    assert not result.unrestorable
    return result


def assert_alike(logits: Logits, expected: Logits) -> None:
    """In other cells, or beside other rows, they are not equal to the last bit; wrong ones are far off."""
    np.testing.assert_allclose(logits, expected, atol=0.3)
