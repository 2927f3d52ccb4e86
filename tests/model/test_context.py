"""Batches, logits views and sequence states."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.native.batch import Batch
from forerun.native.context import ContextParams, LlamaContext, NativeStepError
from forerun.native.model import LlamaModel
from tests.model.conftest import MakeContext
from tests.model.driving import random_tokens

pytestmark = pytest.mark.model


def decode_prompt(context: LlamaContext, sequence_id: int, count: int, start: int = 0) -> None:
    batch = Batch(context.n_batch)
    batch.add_run(random_tokens(count + start)[start:], start, sequence_id, last_output=True)
    context.decode(batch)


def state_of(context: LlamaContext, sequence_id: int) -> NDArray[np.uint8]:
    state = np.empty(context.state_size(sequence_id), np.uint8)
    context.get_sequence_state(sequence_id, state)
    return state


def test_logits_are_a_writable_view_of_the_rows_that_asked_for_them(
    dense: LlamaModel, make_context: MakeContext
) -> None:
    context = make_context(dense)
    batch = Batch(context.n_batch)
    tokens = random_tokens(5)
    batch.add_run(tokens, 0, 0, last_output=False)
    for sequence_id in (1, 2):
        batch.add_row(int(tokens[sequence_id]), 0, sequence_id)
    batch.add_run(tokens, 0, 3, last_output=True)
    context.decode(batch)
    assert (batch.rows, batch.outputs) == (12, 3)
    logits = context.logits
    assert logits.shape == (3, dense.vocabulary.size)
    logits[0, 7] = 123
    assert context.logits[0, 7] == 123
    assert np.isfinite(logits).all()


def test_a_batch_that_is_full_refuses_more() -> None:
    batch = Batch(3)
    batch.add_run([1, 2], 0, 0, last_output=True)
    with pytest.raises(ValueError, match="4 rows do not fit a batch of 3"):
        batch.add_run([1, 2], 2, 0, last_output=True)
    batch.add_row(1, 2, 0)
    with pytest.raises(IndexError):
        batch.add_row(1, 3, 0)
    assert repr(batch) == "Batch(3 of 3 rows, 2 with logits)"
    batch.clear()
    assert (batch.room, batch.outputs) == (3, 0)


def test_decodes_that_would_end_the_process_are_refused(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense, n_batch=16)
    batch = Batch(17)
    with pytest.raises(ValueError, match="1 to 16 rows, got 0"):
        context.decode(batch)
    batch.add_run(random_tokens(17), 0, 0, last_output=True)
    with pytest.raises(ValueError, match="1 to 16 rows, got 17"):
        context.decode(batch)


def test_positions_tell_what_a_sequence_holds(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense)
    assert (context.pos_min(0), context.pos_max(0)) == (-1, -1)
    decode_prompt(context, 0, 20)
    assert (context.pos_min(0), context.pos_max(0)) == (0, 19)
    assert context.truncate_sequence(0, 8)
    assert context.pos_max(0) == 7
    context.copy_sequence(0, 1)
    context.clear_sequence(0)
    assert (context.pos_max(0), context.pos_max(1)) == (-1, 7)


def test_a_restored_state_gives_the_same_logits_bit_by_bit(dense: LlamaModel, make_context: MakeContext) -> None:
    source, target = make_context(dense), make_context(dense)
    decode_prompt(source, 0, 40)
    state = state_of(source, 0)
    decode_prompt(source, 0, 1, start=40)
    target.set_sequence_state(5, state)
    assert target.pos_max(5) == 39
    decode_prompt(target, 5, 1, start=40)
    np.testing.assert_array_equal(target.logits, source.logits)


@pytest.mark.parametrize("length", [0, 10, 1000, -1])
def test_a_state_that_is_cut_short_leaves_the_sequence_empty(
    length: int, dense: LlamaModel, make_context: MakeContext
) -> None:
    context = make_context(dense)
    decode_prompt(context, 0, 40)
    decode_prompt(context, 1, 10)
    state = state_of(context, 0)[:length]
    with pytest.raises(NativeStepError, match="state of sequence 1"):
        context.set_sequence_state(1, state)
    assert context.pos_max(1) == -1
    decode_prompt(context, 1, 10)
    assert context.pos_max(0) == 39


def test_more_rows_with_logits_than_there_is_memory_for_are_refused(dense: LlamaModel) -> None:
    """llama.cpp would end the process."""
    params = ContextParams(n_ctx=256, n_seq_max=2, max_logit_rows=4, n_threads=1, n_threads_batch=1)
    context, batch = LlamaContext(dense, params), Batch(64)
    batch.add_run(random_tokens(60), 0, 0, last_output=True)
    for row in range(3):
        batch.add_row(row + 100, row, 1)
    context.decode(batch)
    assert context.logits.shape == (4, dense.vocabulary.size)
    batch.clear()
    for row in range(5):
        batch.add_row(row + 100, row + 3, 1)
    with pytest.raises(ValueError, match="4 rows can have logits, 5 ask for them"):
        context.decode(batch)
    context.close()
