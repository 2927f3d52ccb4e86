"""Choosing tokens, against slow implementations of llama.cpp's documented rules (src/llama-sampler.cpp)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.core.history import MEDIA_TOKEN, TokenHistory
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.race import uniform
from forerun.core.request import SamplingParams
from forerun.core.sampling import (
    BrokenLogitsError,
    NothingToChooseError,
    SamplingContext,
    candidates,
    sample,
    token_logprobs,
)
from forerun.core.verification import Verified, verify
from tests.core.statistics import chi_square, chi_square_limit

Logits = NDArray[np.float32]
NEAR = 1e-4
"""A threshold this close to a sum of float32 probabilities may fall on either side."""

distinct_logits = st.lists(st.integers(-60, 60), min_size=1, max_size=12, unique=True).map(
    lambda values: np.array(values, np.float32) / 8
)
any_logits = st.lists(st.integers(-60, 60) | st.just(-math.inf), min_size=2, max_size=12).map(
    lambda values: np.array(values, np.float32) / 8
)
thresholds = st.floats(0, 1)


def a_context(
    params: SamplingParams,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    *,
    seed: int = 0,
    end_tokens: Sequence[int] = (),
) -> SamplingContext:
    history = TokenHistory(PromptLayout.of_text(prompt))
    for token in output:
        history.append(token)
    return SamplingContext(params, seed, frozenset(end_tokens), history)


# --- the reference ----------------------------------------------------------


def softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def reference_top_k(logits: list[float], k: int) -> set[int]:
    likeliest_first = sorted(range(len(logits)), key=lambda token: -logits[token])
    return set(likeliest_first[:k] if k > 0 else likeliest_first)


def reference_top_p(logits: list[float], p: float) -> set[int]:
    """Likeliest first, until their sum has reached p; at least one."""
    probabilities = softmax(logits)
    kept: set[int] = set()
    for token in sorted(range(len(logits)), key=lambda token: -probabilities[token]):
        kept.add(token)
        if sum(probabilities[token] for token in kept) >= p:
            break
    return kept


def reference_min_p(logits: list[float], p: float) -> set[int]:
    probabilities = softmax(logits)
    return {token for token, its in enumerate(probabilities) if its >= p * max(probabilities)}


def reference_typical(logits: list[float], p: float) -> set[int]:
    """Nearest to the entropy first, until their sum exceeds p; at least one."""
    probabilities = softmax(logits)
    surprise = [-math.log(its) if its > 0 else math.inf for its in probabilities]
    entropy = sum(its * much for its, much in zip(probabilities, surprise, strict=True) if its > 0)
    kept: set[int] = set()
    for token in sorted(range(len(logits)), key=lambda token: abs(surprise[token] - entropy)):
        kept.add(token)
        if sum(probabilities[token] for token in kept) > p:
            break
    return kept


def reference_edits(logits: list[float], params: SamplingParams, recent: Sequence[int]) -> list[float]:
    """Bias, then penalties, on every logit in turn."""
    edited = []
    for token, raw in enumerate(logits):
        logit = raw + params.logit_bias.get(token, 0.0)
        count = sum(1 for other in recent if other == token)
        if count:
            logit = logit * params.repetition_penalty if logit <= 0 else logit / params.repetition_penalty
            logit -= count * params.frequency_penalty + params.presence_penalty
        edited.append(logit)
    return edited


def kept(logits: Logits, params: SamplingParams) -> set[int]:
    ids, values = candidates(logits, params)
    tokens = list(range(logits.size)) if ids is None else ids.tolist()
    assert values.tolist() == logits[tokens].tolist(), "ids and logits belong together"
    assert len(set(tokens)) == len(tokens)
    return set(tokens)


# --- filters ----------------------------------------------------------


@given(distinct_logits, st.integers(0, 14))
def test_top_k_keeps_the_likeliest(logits: Logits, k: int) -> None:
    assert kept(logits, SamplingParams(temperature=1, top_k=k)) == reference_top_k(logits.tolist(), k)


@given(distinct_logits, thresholds)
def test_top_p_keeps_what_reaches_the_sum(logits: Logits, p: float) -> None:
    left = kept(logits, SamplingParams(temperature=1, top_p=p))
    assert reference_top_p(logits.tolist(), p - NEAR) <= left <= reference_top_p(logits.tolist(), p + NEAR)


@given(distinct_logits, thresholds)
def test_min_p_keeps_what_is_likely_beside_the_likeliest(logits: Logits, p: float) -> None:
    left = kept(logits, SamplingParams(temperature=1, min_p=p))
    assert reference_min_p(logits.tolist(), min(p + NEAR, 1.0)) <= left <= reference_min_p(logits.tolist(), p - NEAR)


@given(distinct_logits, thresholds)
def test_typical_keeps_what_surprises_as_expected(logits: Logits, p: float) -> None:
    left = kept(logits, SamplingParams(temperature=1, typical_p=p))
    sizes = [len(reference_typical(logits.tolist(), q)) for q in (p - NEAR, p + NEAR)]
    assert sizes[0] <= len(left) <= sizes[1]
    surprise = -np.log(softmax(logits.tolist()))
    distance = np.abs(surprise - np.sum(np.exp(-surprise) * surprise))
    outside = sorted({*range(logits.size)} - left)
    assert distance[sorted(left)].max() <= distance[outside].min(initial=math.inf) + NEAR


def test_top_p_looks_past_the_likely_margin_where_it_must() -> None:
    logits = np.full(200_000, -17.0, np.float32)
    logits[0] = 0
    left = kept(logits, SamplingParams(temperature=1, top_p=0.995))
    likely = 1 / (1 + 199_999 * math.exp(-17))
    assert likely < 0.995
    assert len(left) == pytest.approx(1 + (0.995 - likely) / likely * math.exp(17), rel=1e-2)


@pytest.mark.parametrize("params", [SamplingParams(temperature=1, top_p=0.0), SamplingParams(temperature=1, min_p=1.0)])
def test_the_strictest_filter_leaves_the_likeliest(params: SamplingParams) -> None:
    assert kept(np.array([1, 3, 2], np.float32), params) == {1}


def test_without_filters_nothing_is_copied() -> None:
    logits = np.array([1, 2], np.float32)
    ids, values = candidates(logits, SamplingParams(temperature=1))
    assert ids is None
    assert values is logits


def test_filters_run_in_llama_cpp_s_order() -> None:
    """Each filter's shares are those of what the filter before it left: 0.4 of 0.7 is 0.57 of the rest."""
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert kept(logits, SamplingParams(temperature=1, top_k=2, top_p=0.55)) == {0}
    assert kept(logits, SamplingParams(temperature=1, top_p=0.55)) == {0, 1}
    assert kept(logits, SamplingParams(temperature=9, top_p=0.55)) == {0, 1}, "temperature comes last"


@given(distinct_logits, st.integers(0, 12), thresholds, thresholds, thresholds)
def test_something_is_always_left(logits: Logits, k: int, typical: float, top: float, least: float) -> None:
    left = kept(logits, SamplingParams(temperature=1, top_k=k, typical_p=typical, top_p=top, min_p=least))
    assert left
    assert left <= reference_top_k(logits.tolist(), k)


# --- bias and penalties ----------------------------------------------------------

factors = st.sampled_from([0.5, 1.0, 1.25, 2.0])
penalties = st.sampled_from([-1.5, 0.0, 0.75, 1.5])


@given(
    any_logits.filter(lambda logits: bool(np.isfinite(logits).any())),
    st.lists(st.integers(0, 1), min_size=1, max_size=5),
    st.lists(st.integers(0, 1), max_size=5),
    st.lists(st.integers(0, 1), max_size=3),
    st.builds(
        SamplingParams,
        repetition_penalty=factors,
        frequency_penalty=penalties,
        presence_penalty=penalties,
        penalty_last_n=st.integers(-1, 12),
        logit_bias=st.dictionaries(st.integers(0, 1), st.sampled_from([-4.0, 0.5, 4.0]), max_size=2),
    ),
)
def test_bias_and_penalties_are_those_of_the_reference(
    logits: Logits, prompt: list[int], output: list[int], block: list[int], params: SamplingParams
) -> None:
    known = [*prompt, *output, *block]
    last_n = params.penalty_last_n
    recent = known if last_n < 0 else known[max(0, len(known) - last_n) :]
    expected = reference_edits(logits.tolist(), params, recent)
    before = logits.tobytes()
    token = sample(logits, a_context(params, prompt, output), block)
    assert expected[token] == pytest.approx(max(expected), abs=1e-5)
    assert logits.tobytes() == before, "logits are put back bit for bit"


def test_a_penalty_makes_a_negative_logit_less_likely_too() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    assert sample(np.array([-1.0, -1.5], np.float32), a_context(params, [0])) == 1
    assert sample(np.array([-1.0, -2.5], np.float32), a_context(params, [0])) == 0


def test_penalties_see_the_block_they_are_in() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    logits = np.array([2.5, 1.0], np.float32)
    assert [sample(logits, a_context(params, [1]), [0] * n) for n in range(4)] == [0, 0, 0, 1]


def test_media_is_never_penalised_but_takes_its_place_in_the_window() -> None:
    media = PromptSegment.media("image", logical_tokens=3, native_positions=1)
    history = TokenHistory(PromptLayout([PromptSegment.text([0]), media]))
    assert history.tokens.tolist() == [0, *[MEDIA_TOKEN] * 3]
    logits = np.array([1.0, 0.5], np.float32)
    for last_n, expected in ((3, 0), (4, 1)):
        params = SamplingParams(presence_penalty=1.0, penalty_last_n=last_n)
        assert sample(logits, SamplingContext(params, 0, frozenset(), history)) == expected


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)])
def test_minus_infinity_bans_a_token(params: SamplingParams) -> None:
    banned = SamplingParams(temperature=params.temperature, logit_bias={1: -math.inf})
    logits = np.array([0.0, 80.0, 0.0], np.float32)
    assert all(sample(logits, a_context(banned, seed=seed)) != 1 for seed in range(50))


def test_ignoring_the_end_bans_it_but_not_a_stop_token_asked_for() -> None:
    logits = np.array([0.0, 9.0, 5.0], np.float32)
    ignoring = a_context(SamplingParams(ignore_eos=True), end_tokens=[1, 2])
    assert (sample(logits, ignoring), ignoring.end_tokens) == (0, frozenset())
    asked = a_context(SamplingParams(ignore_eos=True, stop_token_ids=(2,)), end_tokens=[1, 2])
    assert (sample(logits, asked), asked.end_tokens) == (2, frozenset({2}))


@pytest.mark.parametrize("name", ["top_p", "typical_p", "min_p"])
def test_filters_live_with_banned_tokens(name: str) -> None:
    params = SamplingParams(temperature=1.0, logit_bias={0: -math.inf}, **{name: 0.5})  # type: ignore[arg-type]
    logits = np.array([9.0, 1.0, 0.9, -200.0], np.float32)
    assert {sample(logits, a_context(params, seed=seed)) for seed in range(50)} <= {1, 2}


# --- broken logits ----------------------------------------------------------

EVERY_WAY = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=2, top_p=0.5, typical_p=0.9, min_p=0.1),
    SamplingParams(frequency_penalty=1.0),
    SamplingParams(logit_bias={0: 1.0}),
]


@pytest.mark.parametrize("params", EVERY_WAY)
@pytest.mark.parametrize("logits", [[0.0, math.nan, 1.0], [math.nan] * 3, [math.inf, 0.0, 0.0]], ids=str)
def test_logits_that_are_not_finite_are_an_error(params: SamplingParams, logits: list[float]) -> None:
    row = np.array(logits, np.float32)
    before = row.tobytes()
    with pytest.raises(BrokenLogitsError):
        sample(row, a_context(params))
    assert row.tobytes() == before


def test_banning_everything_is_an_error_of_that_request() -> None:
    params = SamplingParams(logit_bias=dict.fromkeys(range(3), -math.inf))
    with pytest.raises(NothingToChooseError, match="banned"):
        sample(np.zeros(3, np.float32), a_context(params))


# --- randomness ----------------------------------------------------------


STREAMS: dict[str, Callable[[int], tuple[int, int]]] = {
    "one seed": lambda i: (42, i),
    "neighbouring seeds": lambda i: (i, 0),
    "seeds beside indexes": lambda i: (i, i),
    "large seeds": lambda i: (2**64 - 1 - i, 3),
    "seeds a stride apart": lambda i: (i * 0x9E3779B97F4A7C15 % 2**64, 0),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_random_numbers_are_uniform(stream: str) -> None:
    bins = Counter(int(uniform(*STREAMS[stream](i)) * 50) for i in range(10_000))
    assert chi_square([bins[i] for i in range(50)], [200.0] * 50) < chi_square_limit(49)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_random_number_says_nothing_about_the_next(stream: str) -> None:
    numbers = [uniform(*STREAMS[stream](i)) for i in range(10_000)]
    bins = Counter((int(a * 8), int(b * 8)) for a, b in itertools.pairwise(numbers))
    observed = [bins[a, b] for a, b in itertools.product(range(8), repeat=2)]
    assert chi_square(observed, [9_999 / 64] * 64) < chi_square_limit(63)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31))
def test_a_random_number_lies_in_its_interval_and_depends_on_nothing_else(seed: int, index: int) -> None:
    assert 0 <= uniform(seed, index) < 1
    assert uniform(seed, index) == uniform(seed, index)


def test_no_seed_s_stream_is_another_s_shifted() -> None:
    streams = {uniform(42 + stride * 0x9E3779B97F4A7C15, index) for stride in range(20) for index in range(20)}
    assert len(streams) == 400


@given(any_logits.filter(lambda logits: bool(np.isfinite(logits).any())), st.integers(0, 2**64 - 1))
def test_the_same_seed_chooses_the_same_token(logits: Logits, seed: int) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9)
    token = sample(logits, a_context(params, seed=seed))
    assert token == sample(logits.copy(), a_context(params, seed=seed))
    assert np.isfinite(logits[token])


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-30, 1e-6])
def test_next_to_no_temperature_is_greedy(temperature: float) -> None:
    logits = np.array([1.0, 1.25, 1.125, -60.0], np.float32)
    params = SamplingParams(temperature=temperature)
    assert {sample(logits, a_context(params, seed=seed)) for seed in range(30)} == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_scales_what_is_left(temperature: float) -> None:
    logits = np.array([1.0, 0.0, -1.0, 0.5, 2.0], np.float32)
    params = SamplingParams(temperature=temperature, top_k=4)
    chosen = Counter(sample(logits, a_context(params, seed=seed)) for seed in range(4000))
    expected = softmax([logit / temperature for logit in [1.0, 0.0, 0.5, 2.0]])
    assert chosen[2] == 0
    observed = [chosen[token] for token in (0, 1, 3, 4)]
    assert chi_square(observed, [4000 * p for p in expected]) < chi_square_limit(3)


# --- verification ----------------------------------------------------------

VOCABULARY = 5


def toy_model(tokens: Sequence[int]) -> Logits:
    """Logits that depend on everything before."""
    return np.array([4 * uniform(hash(tuple(tokens)) % 2**64, i) for i in range(VOCABULARY)], np.float32)


def verify_block(context: SamplingContext, drafts: Sequence[int], max_tokens: int) -> Verified:
    known = context.history.tokens.tolist()
    rows = np.stack([toy_model([*known, *drafts[:i]]) for i in range(len(drafts) + 1)])
    before = rows.tobytes()
    verified = verify(rows, drafts, context, max_tokens)
    assert rows.tobytes() == before, "rows are put back bit for bit"
    return verified


def one_by_one(context: SamplingContext, count: int) -> list[int]:
    output: list[int] = []
    while len(output) < count:
        output.append(sample(toy_model(context.history.tokens.tolist()), context))
        context.history.append(output[-1])
        if output[-1] in context.end_tokens:
            break
    return output


def in_blocks(context: SamplingContext, count: int, draft: Callable[[list[int]], Sequence[int]]) -> list[int]:
    output: list[int] = []
    while len(output) < count:
        verified = verify_block(context, draft(context.history.tokens.tolist()), count - len(output))
        for token in verified.tokens:
            context.history.append(token)
        output += verified.tokens
        if output[-1] in context.end_tokens:
            break
    return output


some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([0.8, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 1.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    penalty_last_n=st.sampled_from([-1, 3, 64]),
    logit_bias=st.sampled_from([{}, {1: 2.0}]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (3,)]),
)


@given(
    some_params,
    st.integers(0, 1000),
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=5), max_size=12),
    st.integers(0, 12),
)
def test_any_draft_gives_what_no_draft_gives(
    params: SamplingParams, seed: int, drafts: list[list[int]], good: int
) -> None:
    """Drafts are a mix of right guesses (the first `good` tokens of the answer) and noise."""
    plain = one_by_one(a_context(params, [1, 2], seed=seed, end_tokens=[4]), 12)
    queue = iter(drafts)

    def draft(known: list[int]) -> list[int]:
        done = len(known) - 2
        return [*plain[done : min(good, done + 4)], *next(queue, [])]

    assert in_blocks(a_context(params, [1, 2], seed=seed, end_tokens=[4]), 12, draft) == plain


@given(some_params, st.integers(0, 50), st.lists(st.integers(0, VOCABULARY - 1), max_size=6), st.integers(1, 8))
def test_a_block_ends_at_its_first_mismatch_end_token_or_limit(
    params: SamplingParams, seed: int, drafts: list[int], max_tokens: int
) -> None:
    context = a_context(params, [1, 2], seed=seed, end_tokens=[4])
    verified = verify_block(context, drafts, max_tokens)
    tokens = verified.tokens
    assert 1 <= len(tokens) <= min(max_tokens, len(drafts) + 1)
    assert list(tokens[:-1]) == drafts[: len(tokens) - 1], "all but the last were proposed"
    assert not {*tokens[:-1]} & context.end_tokens
    last_was_proposed = len(tokens) <= len(drafts) and tokens[-1] == drafts[len(tokens) - 1]
    assert verified.accepted == len(tokens) - 1 + last_was_proposed
    if last_was_proposed:
        assert tokens[-1] in context.end_tokens or len(tokens) == max_tokens


def peaked(tokens: Sequence[int]) -> Logits:
    rows = np.zeros((len(tokens), VOCABULARY), np.float32)
    rows[range(len(tokens)), tokens] = 9
    return rows


@pytest.mark.parametrize("offset", range(16))
def test_an_end_token_ends_a_block_at_any_offset(offset: int) -> None:
    answer = [0, 1] * 8
    answer[offset] = 4
    verified = verify(peaked([*answer, 0]), answer, a_context(SamplingParams(), end_tokens=[4]), 100)
    assert verified.tokens == tuple(answer[: offset + 1])
    assert verified.accepted == offset + 1


def test_greedy_with_a_frequency_penalty_is_the_same_in_blocks_and_one_by_one() -> None:
    params = SamplingParams(frequency_penalty=1.5)
    plain = one_by_one(a_context(params, [0]), 40)
    assert in_blocks(a_context(params, [0]), 40, lambda known: plain[len(known) - 1 :][:7]) == plain
    assert plain != one_by_one(a_context(SamplingParams(), [0]), 40)


DRAFTERS: dict[str, Callable[[list[int]], Sequence[int]]] = {
    "nothing": lambda _known: (),
    "always the same": lambda _known: (0, 0, 0),
    "the likeliest": lambda known: (int(toy_model(known).argmax()),),
    "noise": lambda known: (len(known) % 5, sum(known) % 5),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_any_draft_gives_the_target_s_distribution_at_every_position(drafter: str) -> None:
    samples, length, params = 1500, 3, SamplingParams(temperature=1.0, top_p=0.9)
    seen = [Counter[int]() for _ in range(length)]
    for seed in range(samples):
        for position, token in enumerate(in_blocks(a_context(params, [1], seed=seed), length, DRAFTERS[drafter])):
            seen[position][token] += 1
    for observed, expected in zip(seen, exact_distribution(length, 0.9), strict=True):
        assert observed.keys() <= expected.keys()
        tokens = sorted(expected)
        deviation = chi_square([observed[t] for t in tokens], [samples * expected[t] for t in tokens])
        assert deviation < chi_square_limit(len(tokens) - 1)


def exact_distribution(length: int, top_p: float) -> list[dict[int, float]]:
    """Probability of each token at each position after prompt [1], by walking through all continuations."""
    paths: dict[tuple[int, ...], float] = {(1,): 1.0}
    result: list[dict[int, float]] = []
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for path, probability in paths.items():
            logits = toy_model(path).tolist()
            tokens = sorted(reference_top_p(logits, top_p))
            for token, its in zip(tokens, softmax([logits[token] for token in tokens]), strict=True):
                longer[*path, token] = probability * its
        paths = longer
        totals: dict[int, float] = {}
        for path, probability in paths.items():
            totals[path[-1]] = totals.get(path[-1], 0.0) + probability
        result.append(totals)
    return result


# --- logprobs ----------------------------------------------------------


@given(distinct_logits, st.integers(0, 20), st.data())
def test_logprobs_are_the_model_s_own(logits: Logits, top: int, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, logits.size - 1))
    expected = [math.log(p) for p in softmax(logits.tolist())]
    found = token_logprobs(logits, token, top)
    assert found.token == token
    assert found.logprob == pytest.approx(expected[token], abs=1e-5)
    likeliest_first = sorted(range(logits.size), key=lambda t: -expected[t])[:top]
    assert [t for t, _ in found.top] == likeliest_first
    assert [its for _, its in found.top] == pytest.approx([expected[t] for t in likeliest_first], abs=1e-5)


def test_logprobs_do_not_see_bias_penalty_or_temperature() -> None:
    params = SamplingParams(temperature=0.3, logit_bias={2: 50.0}, presence_penalty=5.0, logprobs=1)
    logits = np.array([[1.0, 2.0, 0.0]], np.float32)
    verified = verify(logits, (), a_context(params, [1]), 1)
    assert verified.tokens == (2,)
    assert verified.logprobs == (token_logprobs(logits[0], 2, 1),)
    assert verified.logprobs[0].top[0][0] == 1


def test_every_token_of_a_block_has_its_logprobs_and_only_where_asked() -> None:
    rows = peaked([0, 1, 2])
    assert verify(rows, (0, 1), a_context(SamplingParams()), 9).logprobs is None
    logprobs = verify(rows, (0, 1), a_context(SamplingParams(logprobs=0)), 9).logprobs
    assert logprobs is not None
    assert [(entry.token, entry.top) for entry in logprobs] == [(0, ()), (1, ()), (2, ())]


def test_logprobs_live_with_impossible_tokens() -> None:
    logits = np.array([-np.inf, 0.0, 0.0], np.float32)
    found = token_logprobs(logits, 1, 20)
    assert found.logprob == pytest.approx(-math.log(2))
    assert found.top[2] == (0, -math.inf)
