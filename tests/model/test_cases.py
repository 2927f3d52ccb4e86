"""Cases from public bug reports against peers, on real models through the engine (S5, S10, K1, K3, B1, B3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from forerun import Engine, FinishReason, InvalidRequestError, Output, SamplingParams
from forerun.core.step import PrefillRows, StepPlan, StepResult
from forerun.native.model import LlamaModel
from forerun.native.runner import LlamaRunner
from tests.conftest import MakeTinyModel
from tests.model.serving import (
    Ids,
    answer,
    answers,
    assert_idle,
    assert_length,
    engine_of,
    ids_in,
    ids_of,
    serving,
    some_tokens,
    streamed,
    text_of,
    usage_of,
)
from tests.support.greedy_eq import GreedyOracle, without_ends
from tests.support.tiny_models import SMALL_VOCABULARY, TinyModel

pytestmark = pytest.mark.model

Options = dict[str, Any]

N_DRAFT = 16
SECOND_BLOCK = 1 + N_DRAFT + 1
"""Index of its first token: one from the prompt's last row, then a block of 16 accepted tokens and one more."""


@pytest.fixture
def self_drafting(tiny_dense_path: Path) -> Iterator[Engine]:
    """The tiny model drafting for itself: nearly everything is accepted, so ends fall inside accepted blocks."""
    with serving(tiny_dense_path, draft=str(tiny_dense_path), speculation=N_DRAFT, reuse_prefixes=False) as engine:
        yield engine


@pytest.fixture(params=["no draft", "draft = target"])
def drafting(request: pytest.FixtureRequest, tiny_dense_path: Path) -> Options:
    """Engine options for the tiny model."""
    return {"draft": str(tiny_dense_path), "speculation": 4} if request.param == "draft = target" else {}


def text_and_ends(engine: Engine, tokens: tuple[int, ...]) -> tuple[str, list[int]]:
    """The text of whole characters that tokens spell, and where each token's part of it ends."""
    pieces = [engine.tokenizer.bytes_of(tokens[: count + 1]) for count in range(len(tokens))]
    texts = [piece.decode("utf-8", "ignore") for piece in pieces]
    return texts[-1], [len(text) for text in texts]


def new_text_at(text: str, start: int, stop: int) -> str | None:
    """The shortest string that ends with text[start:stop] and is found there and nowhere earlier."""
    for begin in range(start, max(start - 8, 0) - 1, -1):
        candidate = text[begin:stop]
        if candidate and text.find(candidate) == begin:
            return candidate
    return None


# --- S5: an end inside an accepted block ---


@pytest.mark.parametrize("offset", range(N_DRAFT))
def test_a_stop_string_anywhere_in_an_accepted_block_ends_the_answer_there(
    self_drafting: Engine, dense_oracle: GreedyOracle, offset: int
) -> None:
    at = SECOND_BLOCK + offset
    stopped = 0
    for seed in range(2):
        prompt = some_tokens(30, seed)
        whole = answer(self_drafting, prompt, SamplingParams(max_tokens=60))
        assert usage_of(whole).accepted_tokens >= 50
        text, ends = text_and_ends(self_drafting, whole.token_ids)
        stop = new_text_at(text, ends[at - 1], ends[at])
        if stop is None or ends[at] == ends[at - 1]:
            continue
        stopped += 1
        for speculation in (None, 0):
            params = SamplingParams(max_tokens=60, stop=(stop,), speculation=speculation)
            output = answer(self_drafting, prompt, params)
            assert output.text == text[: ends[at] - len(stop)]
            assert output.token_ids == whole.token_ids[: at + 1]
            assert output.finish_reason is FinishReason.STOP
            assert usage_of(output).output_tokens == at + 1
            dense_oracle.check(prompt, output.token_ids)
    assert stopped


@pytest.mark.parametrize("offset", range(N_DRAFT))
def test_a_stop_token_anywhere_in_an_accepted_block_ends_the_answer_there(self_drafting: Engine, offset: int) -> None:
    prompt = some_tokens(30, seed=9)
    whole = answer(self_drafting, prompt, SamplingParams(max_tokens=60)).token_ids
    token = whole[SECOND_BLOCK + offset]
    at = whole.index(token)
    for speculation in (None, 0):
        params = SamplingParams(max_tokens=60, stop_token_ids=(token,), speculation=speculation)
        output = answer(self_drafting, prompt, params)
        assert output.token_ids == whole[: at + 1]
        assert output.text == self_drafting.tokenizer.bytes_of(whole[:at]).decode("utf-8", "ignore")
        assert output.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("offset", [0, 1, 7, 15])
def test_the_models_own_end_inside_an_accepted_block_ends_the_answer_there(
    offset: int, tiny_model: MakeTinyModel, self_drafting: Engine
) -> None:
    prompt = some_tokens(30, seed=9)
    whole = answer(self_drafting, prompt, SamplingParams(max_tokens=60)).token_ids
    end = whole[SECOND_BLOCK + offset]
    at = whole.index(end)
    model = tiny_model(TinyModel(eos=end))
    with serving(model, draft=str(model), speculation=N_DRAFT, reuse_prefixes=False) as engine:
        for speculation in (None, 0):
            output = answer(engine, prompt, SamplingParams(max_tokens=60, speculation=speculation))
            assert output.token_ids == whole[: at + 1]
            assert output.text == engine.tokenizer.bytes_of(whole[:at]).decode("utf-8", "ignore")
            assert output.finish_reason is FinishReason.STOP
        ignored = answer(engine, prompt, SamplingParams(max_tokens=60, ignore_eos=True))
        assert_length(ignored, prompt, 60)
        assert end not in ignored.token_ids


def test_the_real_model_ends_its_turn_the_same_with_and_without_a_draft(
    smollm2_path: Path, smollm2: LlamaModel, smollm2_oracle: GreedyOracle
) -> None:
    question = "The secret word is {}. What is the secret word?"
    with serving(smollm2_path, draft="smollm2", speculation=N_DRAFT) as engine:
        chats = [[{"role": "user", "content": question.format(word)}] for word in ("Zanzibar", "Marzipan")]
        prompts = [ids_in(engine.chat_prompt(chat)) for chat in chats]
        for speculation in (None, 0):
            found = answers(engine, prompts, SamplingParams(max_tokens=48, speculation=speculation))
            for prompt, output in zip(prompts, found, strict=True):
                smollm2_oracle.check(prompt, output.token_ids)
                ends = [token in smollm2.vocabulary.end_tokens for token in output.token_ids]
                assert ends == [False] * (len(ends) - 1) + [True]
                assert output.finish_reason is FinishReason.STOP
                assert "<|im_end|>" not in output.text


# --- S10: exactly max_tokens ---

MAX_TOKENS = (1, 2, 3, 7, 8, 9, 31, 32, 33)


@pytest.mark.parametrize("n_draft", [1, 3, 16, *[pytest.param(count, marks=pytest.mark.slow) for count in (2, 8)]])
@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["draft = target", "poor draft"])
def test_as_many_tokens_are_delivered_as_asked_for(
    n_draft: int, noise: float, tiny_model: MakeTinyModel, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    draft = str(tiny_model(TinyModel(noise=noise)))
    with serving(tiny_dense_path, draft=draft, speculation=n_draft) as engine:
        for max_tokens in MAX_TOKENS:
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            for slots in (1, 4):
                prompts = [some_tokens(20 + slot, seed=max_tokens * 10 + slot) for slot in range(slots)]
                for prompt, output in zip(prompts, answers(engine, prompts, params), strict=True):
                    assert_length(output, prompt, max_tokens)
                    pieces = engine.tokenizer.bytes_of(output.token_ids)
                    assert output.text == pieces.decode("utf-8", "ignore")
                    dense_oracle.check(prompt, output.token_ids)


def test_requests_of_one_call_may_have_limits_and_draft_lengths_of_their_own(self_drafting: Engine) -> None:
    cells = [(most, n_draft) for most in MAX_TOKENS for n_draft in (0, 1, 2, 3, 8, 16)]
    params = [SamplingParams(max_tokens=most, speculation=n_draft) for most, n_draft in cells]
    prompts = [some_tokens(12, seed) for seed in range(len(cells))]
    for prompt, (most, n_draft), output in zip(prompts, cells, answers(self_drafting, prompts, params), strict=True):
        assert_length(output, prompt, most)
        assert n_draft or not usage_of(output).drafted_tokens


# --- K1: a new request never continues an old one ---


def test_unrelated_requests_get_their_own_answers_after_many_finished_ones(
    drafting: Options, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    params = SamplingParams(max_tokens=12)
    with serving(tiny_dense_path, n_ctx=1024, max_num_seqs=2, n_seq_max=12, **drafting) as engine:
        for seed in range(30):
            first = some_tokens(20 + seed, seed)
            reply = answer(engine, first, params)
            turn = [*first, *reply.token_ids, *some_tokens(10, seed=seed + 500)]
            second = answer(engine, turn, params)
            assert usage_of(second).cached_tokens >= len(first)
            dense_oracle.check(turn, second.token_ids)
        for start in range(0, 40, 2):
            pair = [some_tokens(8 + 3 * seed, seed=seed + 1000) for seed in (start, start + 1)]
            found = answers(engine, pair, params) if start % 4 else [answer(engine, prompt, params) for prompt in pair]
            for prompt, output in zip(pair, found, strict=True):
                assert usage_of(output).cached_tokens == 0
                dense_oracle.check(prompt, output.token_ids)


# --- K3: the same prompt again ---


@pytest.mark.parametrize("length", [2, 20, 63, 64, 65, 300])
def test_the_same_prompt_again_and_one_token_shorter_and_longer(
    length: int, drafting: Options, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    prompt = some_tokens(length, seed=length)
    with serving(tiny_dense_path, **drafting) as engine:
        cached = [check_answer(engine, prompt, dense_oracle) for _ in range(3)]
        assert cached == [0, length - 1, length - 1]
        assert check_answer(engine, prompt[:-1], dense_oracle) == length - 2
        assert check_answer(engine, [*prompt, 1234], dense_oracle) == length


@pytest.mark.parametrize("length", [2, 64, 300])
def test_the_same_prompt_again_where_only_one_token_was_asked_for(
    length: int, drafting: Options, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    # Memory then holds the prompt and nothing more: it is taken over, not copied, and its last token computed again.
    prompt = some_tokens(length, seed=length)
    with serving(tiny_dense_path, **drafting) as engine:
        cached = [check_answer(engine, prompt, dense_oracle, count) for count in (1, 1, 2, 10, 1)]
    assert cached == [0, *[length - 1] * 4]


def check_answer(engine: Engine, prompt: Ids, oracle: GreedyOracle, count: int = 10) -> int:
    """The answer is right; returns how many prompt tokens were cached."""
    output = answer(engine, prompt, SamplingParams(max_tokens=count))
    assert_length(output, prompt, count)
    oracle.check(prompt, output.token_ids)
    return usage_of(output).cached_tokens


def test_a_prompt_of_one_token_twice_and_at_the_same_time(
    drafting: Options, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    with serving(tiny_dense_path, **drafting) as engine:
        assert [check_answer(engine, [1234], dense_oracle) for _ in range(2)] == [0, 0]
        for output in answers(engine, [[1234]] * 4, SamplingParams(max_tokens=10)):
            assert_length(output, [1234], 10)
            dense_oracle.check([1234], output.token_ids)


@pytest.mark.slow
def test_the_real_model_answers_the_same_prompt_again(smollm2_path: Path, smollm2_oracle: GreedyOracle) -> None:
    with serving(smollm2_path) as engine:
        prompt = ids_in(engine.prompt("The three primary colours are"))
        for again in (prompt, prompt, prompt, prompt[:-1], [*prompt, 216], prompt[:1], prompt[:1]):
            output = answer(engine, again, SamplingParams(max_tokens=8))
            assert len(output.token_ids) == usage_of(output).output_tokens > 0
            smollm2_oracle.check(again, output.token_ids)


# --- B1: a long prompt beside others ---


def test_case_b1_every_step_that_reads_a_long_prompt_goes_on_with_the_streams_beside_it(
    tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    """And a short prompt that comes later is answered first."""
    told, long, short = some_tokens(10, seed=1), some_tokens(1500, seed=2), some_tokens(20, seed=3)
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    with steps() as plans, serving(tiny_dense_path) as engine:
        stream = engine.stream(told, params)
        said = ids_of([next(stream)])
        asked = [engine.stream(prompt, SamplingParams(max_tokens=4, ignore_eos=True)) for prompt in (long, short)]
        answered = [ids_of(list(one)) for one in asked]
        said += ids_of(list(stream))
    begins, ends = reading(plans, long)
    assert ends - begins >= 10, "it is read in pieces"
    assert all(plan.decode for plan in plans[begins : ends + 1])
    assert reading(plans, short)[1] < ends
    for prompt, tokens in zip((told, long, short), (said, *answered), strict=True):
        dense_oracle.check(prompt, tokens)


@contextmanager
def steps() -> Iterator[list[StepPlan]]:
    """What the runner is given, step by step."""
    plans: list[StepPlan] = []
    execute = LlamaRunner.execute

    def watched(runner: LlamaRunner, plan: StepPlan) -> StepResult:
        plans.append(plan)
        return execute(runner, plan)

    with patch.object(LlamaRunner, "execute", watched):
        yield plans


def reading(plans: list[StepPlan], prompt: Ids) -> tuple[int, int]:
    """The steps in which a prompt's first and last tokens are evaluated."""
    texts = [[rows.tokens.tolist() for rows in plan.prefill if isinstance(rows, PrefillRows)] for plan in plans]
    (first,) = [at for at, rows in enumerate(texts) if any(text[:4] == prompt[: min(4, len(text))] for text in rows)]
    (last,) = [at for at, rows in enumerate(texts) if any(text[-1:] == prompt[-1:] for text in rows)]
    return first, last


# --- B3: many at once, joining and leaving ---


def mixed_length_round(engine: Engine, oracle: GreedyOracle, seed: int) -> int:
    """16 prompts of 5 to 3000 tokens: four are cancelled on the way, four join late. Returns answers checked."""
    random = np.random.default_rng(seed)
    lengths = [5, 3000, *random.integers(5, 400, 10).tolist(), *random.integers(400, 2000, 4).tolist()]
    random.shuffle(lengths)
    prompts = [some_tokens(int(length), seed=seed * 100 + index) for index, length in enumerate(lengths)]
    leaving = set(random.choice(16, 4, replace=False).tolist())
    wanted = [None if index in leaving else int(random.integers(4, 40)) for index in range(16)]
    open_streams: dict[int, Iterator[Output]] = {}
    pieces: dict[int, list[Output]] = {index: [] for index in range(16)}
    for index in range(12):
        open_streams[index] = engine.stream(prompts[index], SamplingParams(max_tokens=wanted[index], ignore_eos=True))
    late = list(range(12, 16))
    while open_streams:
        index = int(random.choice(list(open_streams)))
        piece = next(open_streams[index], None)
        if piece is not None:
            pieces[index].append(piece)
        if piece is None or (index in leaving and len(pieces[index]) == 2):
            open_streams.pop(index).close()  # type: ignore[attr-defined]
            if late:
                joins = late.pop()
                open_streams[joins] = engine.stream(
                    prompts[joins], SamplingParams(max_tokens=wanted[joins], ignore_eos=True)
                )
    for index, prompt in enumerate(prompts):
        oracle.check(prompt, ids_of(pieces[index]), without_ends(oracle.model))
        if index not in leaving:
            assert len(ids_of(pieces[index])) == wanted[index]
            assert pieces[index][-1].finish_reason is FinishReason.LENGTH
    return 16 - len(leaving)


def many_rounds(model: Path, oracle: GreedyOracle, rounds: int, n_ctx: int, drafting: Options) -> None:
    with serving(model, n_ctx=n_ctx, n_seq_max=40, **drafting) as engine:
        for seed in range(rounds):
            assert mixed_length_round(engine, oracle, seed) == 12
            assert_idle(engine)


@pytest.mark.parametrize("n_ctx", [4096, pytest.param(16_384, marks=pytest.mark.slow)])
def test_prompts_of_all_lengths_join_and_leave_without_mixing(
    n_ctx: int, drafting: Options, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    many_rounds(tiny_dense_path, dense_oracle, 1, n_ctx, drafting)


@pytest.mark.slow
@pytest.mark.parametrize("n_ctx", [3100, 8192])
def test_ten_rounds_of_prompts_of_all_lengths(
    n_ctx: int, drafting: Options, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    many_rounds(tiny_dense_path, dense_oracle, 10, n_ctx, drafting)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_prompts_of_all_lengths_on_the_real_model(smollm2_path: Path, smollm2_oracle: GreedyOracle) -> None:
    many_rounds(smollm2_path, smollm2_oracle, 1, 4096, {})


# --- after errors ---


def test_after_every_error_an_ordinary_request_gets_its_usual_answer(drafting: Options, tiny_dense_path: Path) -> None:
    ordinary = some_tokens(30, seed=1)
    with serving(tiny_dense_path, n_ctx=512, reuse_prefixes=False, **drafting) as engine:
        usual = answer(engine, ordinary, SamplingParams(max_tokens=12)).token_ids
        size = SMALL_VOCABULARY
        bad: list[tuple[Ids, SamplingParams]] = [
            ([], SamplingParams()),
            (some_tokens(513, seed=2), SamplingParams()),
            ([size], SamplingParams()),
            ([5, -1], SamplingParams()),
            ([5], SamplingParams(logit_bias={size: 1.0})),
            ([5], SamplingParams(stop_token_ids=(size,))),
        ]
        for prompt, params in bad:
            with pytest.raises(InvalidRequestError):
                list(engine.stream([prompt], params))
            assert answer(engine, ordinary, SamplingParams(max_tokens=12)).token_ids == usual
            assert_idle(engine)
        for pieces in range(4):
            stream = engine.stream(some_tokens(400, seed=3), SamplingParams())
            for _ in range(pieces):
                next(stream)
            stream.close()
            assert answer(engine, ordinary, SamplingParams(max_tokens=12)).token_ids == usual
            assert_idle(engine)


def test_a_request_whose_logits_are_all_banned_fails_alone(tiny_dense_path: Path, dense_oracle: GreedyOracle) -> None:
    others = [some_tokens(20, seed) for seed in (1, 2, 3)]
    nothing_left = SamplingParams(max_tokens=9, logit_bias=dict.fromkeys(range(SMALL_VOCABULARY), float("-inf")))
    with engine_of(tiny_dense_path, {"draft": str(tiny_dense_path), "speculation": 4}) as engine:
        params = [SamplingParams(max_tokens=30)] * 3 + [nothing_left]
        found = sorted(engine.generate([*others, some_tokens(20, seed=4)], params), key=lambda output: output.index)
        assert found[3].finish_reason is FinishReason.ERROR
        for prompt, output in zip(others, found, strict=False):
            assert_length(output, prompt, 30)
            dense_oracle.check(prompt, output.token_ids)


def test_streamed_pieces_of_a_batch_are_the_whole_answers(self_drafting: Engine) -> None:
    prompt = some_tokens(25, seed=77)
    whole = answer(self_drafting, prompt, SamplingParams(max_tokens=50))
    pieces = streamed(self_drafting, prompt, SamplingParams(max_tokens=50))
    assert (text_of(pieces), tuple(ids_of(pieces))) == (whole.text, whole.token_ids)
