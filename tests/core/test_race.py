"""One race decides every sampled token: it follows the distribution, and two models see the same winner."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.core.race import Stream, arrivals, random_bits, uniform, winner
from forerun.core.request import SamplingParams
from forerun.core.sampling import SamplingContext, distribution, draft_token, sample
from tests.core.statistics import chi_square, chi_square_limit

Logits = NDArray[np.float32]

LARGE = 2000


def a_context(params: SamplingParams, seed: int) -> SamplingContext:
    return SamplingContext(params, seed, frozenset(), TokenHistory(PromptLayout.of_text([0])))


def some_logits(seed: int, size: int, spread: float = 3.0) -> Logits:
    return np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)


def arrival(seed: int, index: int, token: int) -> float:
    return float(arrivals(np.array([token]), random_bits(seed, index, Stream.ARRIVALS))[0])


def slow_winner(logits: NDArray[np.floating], temperature: float, seed: int, index: int) -> int:
    """Every candidate's time, in full."""
    times = []
    for token, logit in enumerate(logits.tolist()):
        weight = math.exp(max((logit - float(logits.max())) / temperature, -600.0))
        times.append(arrival(seed, index, token) / weight)
    return int(np.argmin(times))


# --- exactness ---


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 0.7, 1.0, 50.0])
def test_sieving_never_loses_the_winner(spread: float, temperature: float) -> None:
    for seed in range(4):
        logits = some_logits(seed, 3000, spread)
        logits[seed::7] = -np.inf
        logits[1] = 0.5
        assert winner(None, logits, temperature, seed, 5) == slow_winner(logits, temperature, seed, 5)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.integers(0, 2**32))
def test_the_order_of_candidates_does_not_matter(seed: int, index: int, shuffled: int) -> None:
    logits, ids = some_logits(1, 200), np.random.default_rng(shuffled).permutation(200)
    assert ids[winner(ids, logits[ids], 0.8, seed, index)] == winner(None, logits, 0.8, seed, index)


@given(st.integers(0, 2**64 - 1), st.sets(st.integers(0, 199), min_size=1))
def test_the_winner_stays_the_winner_where_others_drop_out(seed: int, others: set[int]) -> None:
    """So filters that two models apply a little differently seldom matter."""
    logits = some_logits(2, 200)
    best = winner(None, logits, 1.0, seed, 0)
    ids = np.array(sorted(others | {best}))
    assert ids[winner(ids, logits[ids], 1.0, seed, 0)] == best


def test_what_is_impossible_never_wins() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 700]] = 0.0
    assert {winner(None, logits, 1.0, seed, 0) for seed in range(200)} == {3, 700}


# --- chance ---

STREAMS: dict[str, Callable[[int], tuple[int, int, int]]] = {
    "tokens": lambda i: (42, 0, i),
    "positions": lambda i: (42, i, 7),
    "seeds": lambda i: (i, 0, 7),
    "tokens beside positions": lambda i: (42, i, i),
    "seeds a large stride apart": lambda i: (i << 40, 0, 7),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_arrivals_are_exponential_and_independent_of_the_next(stream: str) -> None:
    ranks = [math.exp(-arrival(*STREAMS[stream](i))) for i in range(10_000)]
    bins = Counter(int(rank * 50) for rank in ranks)
    assert chi_square([bins[i] for i in range(50)], [200.0] * 50) < chi_square_limit(49)
    pairs = Counter((int(a * 8), int(b * 8)) for a, b in itertools.pairwise(ranks))
    assert chi_square([pairs[i, j] for i in range(8) for j in range(8)], [9_999 / 64] * 64) < chi_square_limit(63)


def test_streams_say_nothing_about_each_other() -> None:
    bins = Counter(
        (int(uniform(i, 3, Stream.ARRIVALS) * 8), int(uniform(i, 3, Stream.ACCEPTANCE) * 8)) for i in range(10_000)
    )
    assert chi_square([bins[i, j] for i in range(8) for j in range(8)], [10_000 / 64] * 64) < chi_square_limit(63)


FILTERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 12},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.03},
    "typical_p": {"typical_p": 0.7},
    "all": {"temperature": 1.4, "top_k": 40, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.01},
}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 30) for name in FILTERS),
        ("all", LARGE),
        *(pytest.param(name, LARGE, marks=pytest.mark.slow) for name in FILTERS if name != "all"),
    ],
)
def test_samples_follow_the_distribution(name: str, size: int) -> None:
    params = SamplingParams(**{"temperature": 1.0} | FILTERS[name])
    logits = some_logits(3, size, spread=1.0 if size == 30 else 3.0)
    samples = 3000
    found = distribution(logits, a_context(params, 0))
    seen = Counter(sample(logits, a_context(params, 10_000 + seed)) for seed in range(samples))
    assert seen.keys() <= set(found.ids.tolist())
    # Tokens expected less than five times are counted together.
    expected = dict(zip(found.ids.tolist(), (found.probabilities * samples).tolist(), strict=True))
    often = [token for token, count in expected.items() if count >= 5]
    observed = [seen[token] for token in often] + [samples - sum(seen[token] for token in often)]
    wanted = [expected[token] for token in often]
    rest = samples - sum(wanted)
    if rest < 5:
        observed, rest = observed[:-1], 0
    assert chi_square(observed, [*wanted, rest] if rest else wanted) < chi_square_limit(len(observed) - 1)


# --- two models ---


@pytest.mark.parametrize(
    ("noise", "filters"),
    [
        *((noise, {}) for noise in (0.1, 0.5, 1.5)),
        (0.5, {"top_p": 0.9}),
        (0.5, {"temperature": 0.7}),
        *(
            pytest.param(noise, filters, marks=pytest.mark.slow)
            for noise in (0.1, 1.5)
            for filters in ({"top_p": 0.9}, {"temperature": 0.7})
        ),
    ],
    ids=str,
)
def test_a_draft_chooses_what_the_target_will_as_often_as_promised(noise: float, filters: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 1.0} | filters)
    logits = some_logits(4, 400)
    draft = logits + some_logits(5, 400, noise)
    p, q = (np.zeros(400), np.zeros(400))
    for row, probabilities in ((logits, p), (draft, q)):
        found = distribution(row, a_context(params, 0))
        probabilities[found.ids] = found.probabilities
    distance = np.abs(p - q).sum() / 2
    samples = 1000
    same = sum(
        sample(logits, a_context(params, seed)) == draft_token(draft, a_context(params, seed))[0]
        for seed in range(samples)
    )
    promised = (1 - distance) / (1 + distance)
    # draft_token leaves out the least likely tokens, a percent of its choices at most.
    assert same / samples > promised - 0.01 - 3 * math.sqrt(promised * (1 - promised) / samples)
    assert same / samples < 1 - distance + 3 * math.sqrt(distance * (1 - distance) / samples)


def test_a_draft_penalises_and_bans_as_the_target_does() -> None:
    params = SamplingParams(temperature=1.0, presence_penalty=50.0, logit_bias={2: -math.inf})
    logits = np.zeros(5, np.float32)
    before = logits.tobytes()
    context = a_context(params, 0)  # its prompt is token 0
    for seed in range(50):
        context = a_context(params, seed)
        token, drawn_from = draft_token(logits, context, [1])
        assert token in (3, 4)
        assert token == sample(logits, context, [1])
        assert drawn_from is not None
        assert sorted(drawn_from.ids.tolist()) == [3, 4]
    assert logits.tobytes() == before
