"""Pictures through a real projector and real M-RoPE, on generated models: what they show is noise, each its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp, mtmd_cpp

from forerun.compose import check, preflight
from forerun.compose_process import in_own_process
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.step import MediaRows
from forerun.engine.engine import BlockingEngine
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidRequestError, ModelFileError, ModelLoadError, StepFailedError
from forerun.native.context import LlamaContext
from forerun.native.encoded import Encoded
from forerun.native.media_batch import MediaBatch
from forerun.native.projector import MediaChunk, Projector
from tests.conftest import MakeTinyModel
from tests.model.conftest import MakeContext
from tests.model.pictures import COLOURS, Seeing, noise, seeing, solid, with_pictures
from tests.support.tiny_models import TinyModel
from tests.support.tiny_projector import TinyProjector, build_projector

pytestmark = pytest.mark.model

QWEN = TinyModel(kind="qwen2vl")
QUESTION = " What do you see in this picture, and which colour has it?"


@pytest.fixture(scope="module")
def model_path(tiny_model: MakeTinyModel) -> Path:
    return tiny_model(QWEN)


@pytest.fixture(scope="module")
def shared(model_path: Path) -> Iterator[Seeing]:
    """For tests that use pictures of their own."""
    with seeing(model_path) as one:
        yield one


# --- against llama.cpp's own way ----------------------------------------------------------


@pytest.fixture
def projector(load: Any) -> Iterator[Projector]:
    one = Projector.load(build_projector(TinyProjector()), load(QWEN), "p", n_threads=1)
    yield one
    one.close()


def the_chunk(projector: Projector, seed: int, width: int = 300, height: int = 200) -> MediaChunk:
    (chunk,) = [part for part in projector.place(noise(seed, width, height)) if isinstance(part, MediaChunk)]
    return chunk


def logits_after(context: LlamaContext, position: int) -> np.ndarray[Any, Any]:
    batch = context.new_batch()
    batch.add_row(1500, position, 0)
    context.decode(batch)
    logits: np.ndarray[Any, Any] = context.logits[0].copy()
    return logits


@pytest.mark.parametrize("cuts", [(0, 77), (0, 20, 21, 77)])
def test_a_picture_in_parts_gives_llama_cpp_s_own_logits(
    projector: Projector, load: Any, make_context: MakeContext, cuts: tuple[int, ...]
) -> None:
    chunk = the_chunk(projector, 1)
    assert (chunk.tokens, chunk.positions, chunk.is_causal) == (77, 11, True)
    embeddings = projector.encode(chunk)
    theirs, ours = make_context(load(QWEN)), make_context(load(QWEN))
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
    for start, stop in pairwise(cuts):
        ours.decode(MediaBatch(media, encoded, start, stop))
    expected, found = (logits_after(context, new_position.value) for context in (theirs, ours))
    assert new_position.value == 5 + chunk.positions
    np.testing.assert_allclose(found, expected, atol=0 if len(cuts) == 2 else 0.05)


def test_what_is_remembered_of_a_span_is_what_was_encoded(projector: Projector) -> None:
    chunk = the_chunk(projector, 2)
    encoded = Encoded(projector.encode(chunk), chunk.geometry, chunk.is_causal)
    again = Encoded.from_bytes(encoded.to_bytes())
    np.testing.assert_array_equal(again.embeddings, encoded.embeddings)
    np.testing.assert_array_equal(again.geometry.at(9, slice(3, 70)), encoded.geometry.at(9, slice(3, 70)))
    assert again.is_causal == encoded.is_causal


def test_a_projector_of_another_width_is_refused_with_what_llama_cpp_says(load: Any) -> None:
    with pytest.raises(ModelLoadError, match="mismatch between text model"):
        Projector.load(build_projector(TinyProjector(width=96)), load(QWEN), "p", n_threads=1)


def test_a_model_is_no_projector(model_path: Path) -> None:
    with pytest.raises(ModelFileError, match="qwen2vl model, no projector"), seeing(model_path, model_path):
        pass
    with pytest.raises(ModelFileError, match="qwen2vl model, no projector"):
        check(EngineConfig(model=str(model_path), projector=str(model_path)), measures=False)


def test_memory_is_judged_with_the_projector_and_what_pictures_are_remembered_in(model_path: Path) -> None:
    projector = build_projector(TinyProjector())
    config = EngineConfig(model=str(model_path), n_ctx=256, cache_ram=0, media_cache=2**20)
    found = preflight(replace(config, projector=str(projector)))
    assert found.beside["projector"] == projector.stat().st_size
    assert found.beside["encoded media"] == 2**20
    assert found.places[0].needed >= sum(found.beside.values())
    assert not {"projector", "encoded media"} & preflight(config).beside.keys()


# --- case M1 ----------------------------------------------------------


def test_case_m1_pictures_of_one_size_never_share_a_cached_token(shared: Seeing) -> None:
    before = len(shared.prompt("Look at this: ").text_tokens)
    marks = shared.prompt(solid("red")).text_tokens.size
    answers: dict[str, tuple[int, ...]] = {}
    for number in range(3):
        for colour in COLOURS:
            output = shared.ask("Look at this: ", solid(colour), QUESTION)
            assert output.usage is not None
            if number:
                assert output.usage.cached_tokens == output.usage.prompt_tokens - 1, "the same picture hits"
                assert tuple(output.token_ids) == answers[colour]
            else:
                assert output.usage.cached_tokens <= before + marks, "no token of another picture does"
                answers[colour] = tuple(output.token_ids)
    assert len(set(answers.values())) == len(COLOURS)
    for colour, tokens in answers.items():
        assert tuple(shared.ask("Look at this: ", solid(colour), QUESTION, cold=True).token_ids) == tokens


def test_two_pictures_that_differ_in_one_patch_are_two(shared: Seeing) -> None:
    base = noise(7)
    changed = bytearray(base.rgb)
    changed[:3] = bytes(255 - value for value in changed[:3])
    other = type(base).of(base.width, base.height, bytes(changed))
    first, second = shared.ask(base, QUESTION), shared.ask(other, QUESTION)
    assert second.usage is not None
    assert second.usage.cached_tokens < shared.prompt(base).logical_tokens
    assert tuple(first.token_ids) == tuple(shared.ask(base, QUESTION, cold=True).token_ids)


# --- reuse ----------------------------------------------------------


def test_case_m3_later_turns_encode_nothing_and_evaluate_new_tokens_alone(model_path: Path) -> None:
    picture = noise(3, 448, 448)
    with seeing(model_path) as one:
        said: list[Any] = ["First look: ", picture, QUESTION]
        evaluated: list[int] = []
        for turn in range(3):
            output = one.ask(*said, tokens=6)
            assert output.usage is not None
            evaluated.append(output.usage.prompt_tokens - output.usage.cached_tokens)
            assert tuple(output.token_ids) == tuple(one.ask(*said, tokens=6, cold=True).token_ids)
            said += [output.text, f" And number {turn}, what is it?"]
        assert evaluated[0] > 256, "the picture has 256 embeddings"
        assert max(evaluated[1:]) < 40
        assert one.encoder.encoded == 1


def test_a_picture_in_another_conversation_is_not_encoded_again(shared: Seeing) -> None:
    picture = noise(11)
    shared.ask("One conversation. ", picture, QUESTION)
    encoded = shared.encoder.encoded
    output = shared.ask("Quite another one, which shares nothing: ", picture, " Is it the same?")
    assert shared.encoder.encoded == encoded
    assert output.usage is not None
    assert output.usage.cached_tokens < 12


def test_forks_inside_the_text_behind_a_picture_share_it(shared: Seeing) -> None:
    picture = noise(12)
    text = " Tell me about the upper half of it, then about the lower half of it."
    shared.ask(picture, text, " Begin with the sky.")
    output = shared.ask(picture, text, " Now something else.")
    assert output.usage is not None
    assert output.usage.cached_tokens >= shared.prompt(picture, text).logical_tokens - 2
    assert tuple(output.token_ids) == tuple(shared.ask(picture, text, " Now something else.", cold=True).token_ids)


def test_several_pictures_keep_their_order_and_places(shared: Seeing) -> None:
    red, blue = solid("red", 84, 84), solid("blue", 140, 56)
    one_way, other_way = (shared.ask("a", first, "b", second, QUESTION) for first, second in ((red, blue), (blue, red)))
    assert tuple(one_way.token_ids) != tuple(other_way.token_ids)
    spans = [s.media_span for s in shared.prompt("a", red, "b", blue).segments if s.media_span is not None]
    assert [(span.logical_tokens, span.native_positions) for span in spans] == [(9, 3), (10, 5)]


def test_a_prompt_may_end_with_a_picture_and_be_nothing_else(shared: Seeing) -> None:
    first, again = shared.ask(noise(13)), shared.ask(noise(13))
    assert tuple(first.token_ids) == tuple(again.token_ids)


def test_a_picture_goes_to_host_memory_and_comes_back(model_path: Path) -> None:
    picture = noise(4, 280, 280)
    with seeing(model_path, n_ctx=512, cache_ram=64 * 2**20) as one:
        first = one.ask("See: ", picture, QUESTION)
        for number in range(4):  # push it out of the pool
            one.ask(f"{number} " + "other words " * 120)
        again = one.ask("See: ", picture, QUESTION)
        assert again.usage is not None
        assert again.usage.cached_host_tokens > 100
        assert tuple(again.token_ids) == tuple(first.token_ids)
        assert one.encoder.encoded == 1


def test_encoded_pictures_outlive_the_engine(model_path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_ram": 2**20, "cache_dir": str(tmp_path / "cache")}
    with seeing(model_path, **options) as one:
        first = one.ask("Before: ", noise(5), QUESTION)
    with seeing(model_path, **options) as one:
        again = one.ask("After, and elsewhere: ", noise(5), QUESTION)
        assert again.error is None
        assert one.encoder.encoded == 0
        assert tuple(one.ask("Before: ", noise(5), QUESTION).token_ids) == tuple(first.token_ids)


# --- steps, drafts, faults ----------------------------------------------------------


def test_small_steps_change_nothing(model_path: Path, shared: Seeing) -> None:
    picture = noise(6, 280, 196)
    with seeing(model_path, max_num_batched_tokens=16) as one:
        found = one.ask("In parts: ", picture, QUESTION, tokens=24)
    assert tuple(found.token_ids) == tuple(shared.ask("In parts: ", picture, QUESTION, tokens=24).token_ids)


def test_case_m4_drafts_behind_a_picture_change_nothing(model_path: Path, shared: Seeing) -> None:
    picture, again = noise(8, 196, 140), " the cat sat on the mat, the cat sat on the mat, the cat sat"
    said: list[Any] = ["See: ", picture, again]
    plain = shared.ask(*said, tokens=200)
    with seeing(model_path, speculation=4) as one:
        drafted = one.ask(*said, tokens=200)
        assert tuple(drafted.token_ids) == tuple(plain.token_ids)
        assert drafted.usage is not None
        assert drafted.usage.drafted_tokens > 0
        second = one.ask(*said, drafted.text, " And then?", tokens=20)
        assert tuple(second.token_ids) == tuple(
            one.ask(*said, drafted.text, " And then?", tokens=20, cold=True).token_ids
        )
        stream = one.engine.stream(one.prompt(*said), SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        stream.close()
        assert tuple(one.ask(*said, tokens=200).token_ids) == tuple(plain.token_ids)


def test_a_cancelled_encode_ends_its_request_alone(model_path: Path) -> None:
    with seeing(model_path) as one:
        stream = one.engine.stream(one.prompt("See: ", noise(9, 560, 560), QUESTION))
        other = one.engine.generate("Count to ten.", SamplingParams(max_tokens=4, ignore_eos=True))
        stream.close()
        (output,) = other
        assert output.finish_reason is FinishReason.LENGTH
        assert one.ask("See: ", noise(9, 56, 56), QUESTION).finish_reason is FinishReason.LENGTH


def test_a_picture_whose_pixels_are_gone_ends_its_request_alone(shared: Seeing) -> None:
    layout = shared.prompt("Gone: ", noise(14), QUESTION)
    without = layout.prefix(layout.end)
    for number in range(9):  # what was prepared for it is pushed out
        shared.prompt(noise(200 + number))
    with pytest.raises(StepFailedError, match="its content is gone: send it again"):
        list(shared.engine.generate(without, SamplingParams(max_tokens=4)))
    assert shared.ask("Still here?").error is None


def test_a_picture_with_more_tokens_than_the_context_is_refused_by_its_place(model_path: Path) -> None:
    with seeing(model_path, n_ctx=256) as one, pytest.raises(InvalidRequestError, match=r"media\[0\]: has \d+ tokens"):
        one.prompt("See: ", noise(1, 840, 840))


def test_an_engine_process_is_given_pixels_when_it_needs_them(model_path: Path, shared: Seeing) -> None:
    config = EngineConfig(
        model=str(model_path),
        projector=str(build_projector(TinyProjector())),
        n_ctx=1024,
        n_threads=1,
        cache_ram=0,
        media_cache=0,
    )
    text, pictures = with_pictures("Far away: ", noise(15), QUESTION)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    expected = tuple(shared.ask("Far away: ", noise(15), QUESTION).token_ids)
    with BlockingEngine(in_own_process(config)) as engine:
        layout = engine.prompt(text, media=pictures)
        for number in range(9):  # what was prepared while measuring is pushed out
            other, others = with_pictures(noise(100 + number))
            engine.prompt(other, media=others)
        for reuses in (True, False, True):
            (output,) = engine.generate(layout, params, reuses_cache=reuses)
            assert tuple(output.token_ids) == expected
