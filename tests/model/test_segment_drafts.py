"""What a draft model or an MTP head knows leaves memory with the target's KV, and comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams
from forerun.core.step import (
    ClearSequence,
    StepResult,
)
from tests.model.driving import DrivenRequest, random_tokens
from tests.model.segment_bench import (
    HEADS,
    RECIPES,
    Bench,
    assert_done,
    headers,
    restores,
    stores,
)

pytestmark = pytest.mark.model


class Conversation:
    """A request with a draft, and how much of it was right."""

    def __init__(self, request: DrivenRequest) -> None:
        self.request = request
        self.accepted: list[int] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.accepted.append(self.request.decode_with_draft(4).accepted)

    def stored_text(self) -> Tokens:
        return self.request.history.tokens[: self.request.computed]

    def moved_to(self, sequence_id: int, result: StepResult) -> Conversation:
        """The same one in another sequence, which got it from the store."""
        self.request.sequence_id = sequence_id
        self.request.draft_held = result.draft_held[sequence_id]
        self.request.assert_memory_is_known()
        return self


@pytest.mark.parametrize("kind", [*RECIPES, *HEADS])
def test_a_draft_is_as_often_right_after_a_restore_as_without_one(kind: str, load: Any, make_bench: Any) -> None:
    """Every few steps the conversation leaves memory and comes back in another sequence."""
    with_mtp = kind in HEADS
    model = load((RECIPES | HEADS)[kind], with_mtp=with_mtp)
    draft = None if with_mtp else load(replace(RECIPES[kind], noise=0.01))
    outputs, accepted = [], []
    for moves in (False, True):
        bench = make_bench(model, draft, mtp=with_mtp, n_ctx=1024)
        params = SamplingParams(temperature=0.3, seed=1, ignore_eos=True)  # greedy text soon repeats itself
        conversation = Conversation(DrivenRequest(bench.runner, 0, random_tokens(200), params))
        conversation.request.prefill()
        for turn in range(1, 6):
            conversation.run(8)
            if moves:
                conversation = moved(bench, conversation, turn)
        outputs.append(conversation.request.history.tokens[:240].tolist())
        accepted.append(sum(conversation.accepted))
    assert outputs[0] == outputs[1]
    assert 0.15 * 160 < accepted[0] < 0.95 * 160, "damage would show"
    assert accepted[1] == pytest.approx(accepted[0], rel=0.1)


def moved(bench: Bench, conversation: Conversation, to: int) -> Conversation:
    """Stored, cleared and restored under another id."""
    text, request, held = conversation.stored_text(), conversation.request, conversation.request.draft_held
    cuts = (text.size,) if bench.context.memory.has_state else (100, text.size)
    segments = headers(text, cuts, draft_stop=request.draft_held)
    assert_done(bench.do(*stores(request.sequence_id, segments), ClearSequence(request.sequence_id)))
    assert all(state.is_speculative for state in bench.store.states.values())
    result = assert_done(bench.do(*restores(to, segments)))
    after = conversation.moved_to(to, result)
    assert after.request.draft_held == min(held, text.size)
    return after


def test_a_draft_gets_no_more_than_what_goes_on_from_what_it_has(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]), load(RECIPES["dense"]))
    tokens = random_tokens(300)
    bench.feed(0, tokens)
    segments = headers(tokens, (100, 200, 300), draft_stop=250)
    assert_done(bench.do(*stores(0, segments)))
    result = assert_done(bench.do(*restores(1, segments)))
    assert (bench.held(1), result.draft_held) == ((300, 250), {1: 250})
    assert_done(bench.do(*restores(2, segments, upto=230)))
    assert bench.held(2) == (230, 230)
    without = [replace(segments[0], draft_stop=0), *segments[1:]]
    assert_done(bench.do(*stores(0, without), *restores(3, without)))
    assert bench.held(3) == (300, 0)


def test_a_draft_whose_memory_is_full_goes_without(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]), load(RECIPES["dense"]), n_ctx=512)
    tokens = random_tokens(200)
    bench.feed(0, tokens)
    segments = headers(tokens, (200,), draft_stop=200)
    assert_done(bench.do(*stores(0, segments), ClearSequence(0)))
    batch = bench.drafter.context.new_batch()
    batch.add_run(random_tokens(400), 0, 5, last_output=True)
    bench.drafter.context.decode(batch)
    result = assert_done(bench.do(*restores(1, segments)))
    assert (bench.held(1), result.draft_held) == ((200, 0), {1: 0})
