"""Pictures whose rows look at each other, at plain positions, before a sliding window: a generated Gemma 3."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp, mtmd_cpp

from forerun.core.step import MediaRows
from forerun.errors import InvalidRequestError
from forerun.native.context import LlamaContext
from forerun.native.encoded import Encoded
from forerun.native.media_batch import MediaBatch
from forerun.native.projector import MediaChunk, Projector
from tests.conftest import MakeTinyModel
from tests.model.conftest import MakeContext
from tests.model.pictures import COLOURS, Seeing, assert_same_answer, noise, seeing, solid
from tests.support.tiny_models import TinyModel
from tests.support.tiny_projector import TinyProjector, build_projector

pytestmark = pytest.mark.model

GEMMA = TinyModel(kind="gemma3")
PROJECTOR = TinyProjector(kind="gemma3")
TOKENS = 16
QUESTION = " What do you see in this picture, and which colour has it?"


@pytest.fixture(scope="module")
def model_path(tiny_model: MakeTinyModel) -> Path:
    return tiny_model(GEMMA)


@pytest.fixture(scope="module")
def shared(model_path: Path) -> Iterator[Seeing]:
    with seeing(model_path, build_projector(PROJECTOR)) as one:
        yield one


def logits_after(context: LlamaContext, position: int) -> np.ndarray[Any, Any]:
    batch = context.new_batch()
    batch.add_row(1500, position, 0)
    context.decode(batch)
    logits: np.ndarray[Any, Any] = context.logits[0].copy()
    return logits


def test_such_a_picture_gives_llama_cpp_s_own_logits(load: Any, make_context: MakeContext) -> None:
    projector = Projector.load(build_projector(PROJECTOR), load(GEMMA), "p", n_threads=1)
    (chunk,) = [part for part in projector.place(noise(1)) if isinstance(part, MediaChunk)]
    assert (chunk.tokens, chunk.positions, chunk.is_causal, projector.is_causal) == (TOKENS, TOKENS, False, False)
    embeddings = projector.encode(chunk)
    theirs, ours, causal = (make_context(load(GEMMA)) for _ in range(3))
    new_position = llama_cpp.llama_pos(0)
    mtmd_cpp.mtmd_helper_decode_image_chunk(
        projector._handle,
        theirs.handle,
        chunk.handle,
        embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        5,
        0,
        256,
        ctypes.byref(new_position),
        mtmd_cpp.mtmd_helper_post_decode_callback(),
        None,
    )
    encoded = Encoded(embeddings, chunk.geometry, chunk.is_causal)
    media = MediaRows(0, None, 5, 0, chunk.tokens)  # type: ignore[arg-type]
    ours.decode_together(MediaBatch(media, encoded, 0, chunk.tokens))
    causal.decode(MediaBatch(media, encoded, 0, chunk.tokens))
    expected, found, other = (logits_after(context, new_position.value) for context in (theirs, ours, causal))
    assert new_position.value == 5 + TOKENS
    np.testing.assert_array_equal(found, expected)
    assert np.abs(other - expected).max() > 0.1, "that they look at each other makes a difference"
    projector.close()


def test_pictures_are_told_apart_and_reused(shared: Seeing) -> None:
    answers = {
        colour: shared.ask("Look at this: ", solid(colour), QUESTION, tokens=24, logprobs=2) for colour in COLOURS
    }
    assert len({tuple(answer.token_ids) for answer in answers.values()}) == len(COLOURS)
    for colour, answer in answers.items():
        again = shared.ask("Look at this: ", solid(colour), QUESTION, tokens=24, logprobs=2)
        assert again.usage is not None
        assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
        assert_same_answer(answer, again)
        assert_same_answer(
            answer, shared.ask("Look at this: ", solid(colour), QUESTION, tokens=24, logprobs=2, cold=True)
        )
    assert shared.encoder.encoded == len(COLOURS)


def test_what_is_said_after_a_picture_left_the_window_is_the_same_with_and_without_reuse(shared: Seeing) -> None:
    said: list[Any] = ["First: ", noise(2), QUESTION]
    for turn in range(3):
        output = shared.ask(*said, tokens=40, logprobs=2)
        assert_same_answer(output, shared.ask(*said, tokens=40, logprobs=2, cold=True))
        said += [output.text, f" And number {turn}?", noise(3 + turn), " The same again, then."]


def test_drafts_behind_such_a_picture_change_nothing(model_path: Path, shared: Seeing) -> None:
    said: list[Any] = ["See: ", noise(8), " the cat sat on the mat, the cat sat on the mat, the cat sat"]
    plain = shared.ask(*said, tokens=100, logprobs=2)
    with seeing(model_path, build_projector(PROJECTOR), speculation=4) as one:
        drafted = one.ask(*said, tokens=100, logprobs=2)
    assert_same_answer(plain, drafted)
    assert drafted.usage is not None
    assert drafted.usage.drafted_tokens > 0


def test_a_picture_that_no_step_takes_whole_is_refused_with_what_to_raise(model_path: Path) -> None:
    options: dict[str, Any] = {"max_num_batched_tokens": TOKENS - 1, "max_num_seqs": 2}
    with (
        seeing(model_path, build_projector(PROJECTOR), **options) as one,
        pytest.raises(InvalidRequestError, match=r"media\[0\]: has 16 tokens .*max_num_batched_tokens.*raise them"),
    ):
        one.prompt("See: ", noise(1), QUESTION)
