"""What segments will take in host memory, measured before there is one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from forerun.core.segment import SEGMENT_TOKENS, SegmentSizes
from forerun.native.context import LlamaContext
from forerun.native.drafter import LlamaDrafter
from forerun.native.packing import table_bytes
from forerun.native.runs import Runs

_SEQUENCE = 0


def measured_sizes(context: LlamaContext, drafter: LlamaDrafter | None = None) -> SegmentSizes:
    """From the states of one and two tokens: bytes grow by the same for each further token.

    Evaluates two rows in each context, which are otherwise empty, and leaves them empty. What a state takes (recurrent,
    hybrid) is part of each segment. Where a window is shorter than segments, what its pieces take beside their cells is
    counted for as many as there may be. Raises NativeStepError where a decode fails.
    """
    # On a thread that ends, as calibration does: OpenMP keeps something for each thread that has decoded (decision 4).
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_measured, context, drafter).result()


def _measured(context: LlamaContext, drafter: LlamaDrafter | None) -> SegmentSizes:
    per_segment, per_token, parts = _of(context)
    per_draft_token = 0
    if drafter is not None:
        of_draft, per_draft_token, draft_parts = _of(drafter.context)
        tail = drafter.tail_bytes
        per_segment, parts = per_segment + of_draft + tail, parts + draft_parts + (tail > 0)
        drafter.clear(_SEQUENCE)
    return SegmentSizes(table_bytes(parts) + per_segment, per_token, per_draft_token)


def _of(context: LlamaContext) -> tuple[int, int, int]:
    """Bytes of a segment beside its tokens, and of each token, in one context; and in how many pieces it may lie."""
    batch = context.new_batch()
    batch.add_run([0, 0], 0, _SEQUENCE, last_output=True)
    context.decode(batch)
    runs = Runs(context)
    one, two = (runs.size(_SEQUENCE, (0, tokens)) for tokens in (1, 2))
    context.clear_sequence(_SEQUENCE)
    pieces = len(runs.split((1, 1 + SEGMENT_TOKENS)))
    return pieces * (2 * one - two), two - one, pieces
