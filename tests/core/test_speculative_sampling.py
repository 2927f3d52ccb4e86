"""Sampling with a draft model through the scheduler: exact where a seed is given, in distribution where none is."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.core.config import SchedulerConfig, Verification
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.core.request import SamplingParams
from forerun.core.sampling import SamplingContext, TokenDistribution, distribution, draft_token
from forerun.core.step import DraftRequest, Proposal
from forerun.core.verification import verify
from forerun.testing import FakeDrafter, FakeRunner, FakeVocabulary, fake_logits, next_digest
from tests.core.harness import Harness
from tests.core.statistics import chi_square, chi_square_limit

VOCABULARY = FakeVocabulary([bytes([97 + index]) for index in range(8)], end_tokens=())
CONFIG = SchedulerConfig(n_ctx=512, max_num_seqs=16, speculation=3, draft_n_ctx=512, max_queue=2000)
PROMPT = [1, 2]
LENGTH = 4
EVERY_WAY: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_p": {"top_p": 0.8},
    "penalties": {"frequency_penalty": 1.2, "logit_bias": {3: 1.0}},
    "cold": {"temperature": 0.5, "min_p": 0.02},
}


IN_THE_DEFAULT_RUN = {("plain", 0.0), ("penalties", 0.7)}
"""Of the ways and the drafts' qualities, where many answers are counted: the whole grid takes two minutes."""


class NoLookup:
    """All proposals are the draft model's."""

    name = "none"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal()] * len(requests)


def a_harness(quality: float, method: Verification) -> Harness:
    drafter = FakeDrafter(CONFIG.draft_n_ctx, VOCABULARY.size, quality)
    runner = FakeRunner(CONFIG.n_ctx, VOCABULARY.size, drafter=drafter)
    return Harness(replace(CONFIG, verification=method), runner, VOCABULARY, [NoLookup()])


def params_of(way: str, *, seed: int | None) -> SamplingParams:
    return SamplingParams(**{"max_tokens": LENGTH, "temperature": 1.5, "seed": seed} | EVERY_WAY[way])


def exact_distribution(params: SamplingParams) -> list[dict[int, float]]:
    """Probability of each token at each output position, by walking through all continuations."""
    paths: dict[tuple[int, ...], float] = {(): 1.0}
    found: list[dict[int, float]] = []
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for path, probability in paths.items():
            digest = 0
            for position, token in enumerate([*PROMPT, *path]):
                digest = next_digest(digest, token, position)
            history = TokenHistory(PromptLayout.of_text(PROMPT))
            its = distribution(
                fake_logits(digest, VOCABULARY.size), SamplingContext(params, 0, frozenset(), history), path
            )
            for token, share in zip(its.ids.tolist(), its.probabilities.tolist(), strict=True):
                longer[*path, token] = probability * share
        paths = longer
        totals: defaultdict[int, float] = defaultdict(float)
        for path, probability in paths.items():
            totals[path[-1]] += probability
        found.append(dict(totals))
    return found


@pytest.mark.parametrize("method", Verification)
@pytest.mark.parametrize(
    ("way", "quality"),
    [
        pytest.param(way, quality, marks=() if (way, quality) in IN_THE_DEFAULT_RUN else pytest.mark.slow)
        for way in EVERY_WAY
        for quality in (0.0, 0.7)
    ],
)
def test_without_a_seed_answers_have_the_target_s_distribution(way: str, quality: float, method: Verification) -> None:
    params, samples = params_of(way, seed=None), 1200
    harness = a_harness(quality, method)
    for number in range(samples):
        harness.add(f"r{number}", PROMPT, params, drawn_seed=number)
    harness.run()
    for position, expected in enumerate(exact_distribution(params)):
        seen = Counter(harness.tokens(name)[position] for name in harness.requests)
        assert seen.keys() <= expected.keys()
        likely = [token for token, share in expected.items() if share * samples >= 5]
        observed = [seen[token] for token in likely]
        wanted = [samples * expected[token] for token in likely]
        if len(likely) < len(expected):
            observed.append(samples - sum(observed))
            wanted.append(samples - sum(wanted))
        assert chi_square(observed, wanted) < chi_square_limit(max(len(observed) - 1, 1))


@pytest.mark.parametrize("method", Verification)
@pytest.mark.parametrize("quality", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("way", EVERY_WAY)
def test_with_a_seed_answers_are_those_of_no_draft(way: str, quality: float, method: Verification) -> None:
    harness = a_harness(quality, method)
    for seed in range(20):
        harness.add(f"r{seed}", PROMPT, replace(params_of(way, seed=seed), max_tokens=20))
    harness.run()
    harness.assert_all_right()
    assert sum(harness.usage(name).drafted_tokens for name in harness.requests) > 200


def accepted_share(quality: float, method: Verification) -> float:
    harness = a_harness(quality, method)
    for number in range(64):
        params = SamplingParams(max_tokens=40, temperature=1.5)
        harness.add(f"r{number}", [number % 8, number // 8], params, drawn_seed=number)
    harness.run()
    usages = [harness.usage(name) for name in harness.requests]
    return sum(usage.accepted_tokens for usage in usages) / sum(usage.drafted_tokens for usage in usages)


def test_a_draft_that_is_the_target_is_always_right_either_way() -> None:
    assert [accepted_share(1.0, method) for method in Verification] == pytest.approx([1.0] * 3, abs=0.01)


def test_rejection_sampling_accepts_more_of_a_poor_draft_and_auto_uses_it() -> None:
    shares = {method: accepted_share(0.0, method) for method in Verification}
    assert shares[Verification.REJECTION] > shares[Verification.MATCH] + 0.02
    assert shares[Verification.AUTO] > (shares[Verification.REJECTION] + shares[Verification.MATCH]) / 2


# --- one block ---


def a_context(seed: int) -> SamplingContext:
    params = SamplingParams(temperature=1.0)
    return SamplingContext(params, seed, frozenset(), TokenHistory(PromptLayout.of_text([0])))


def test_a_proposal_stands_as_often_as_the_two_models_overlap() -> None:
    target, draft = np.array([[1.0, 0.0, 2.0]] * 2, np.float32), np.array([2.0, 1.0, 0.0], np.float32)
    p, q = (np.exp(row) / np.exp(row).sum() for row in (target[0], draft))
    accepted, samples = 0, 4000
    for seed in range(samples):
        token, drawn_from = draft_token(draft, a_context(seed))
        assert drawn_from is not None
        accepted += verify(target, (token,), a_context(seed), 9, (drawn_from,)).accepted
    overlap = float(np.minimum(p, q).sum())
    assert accepted / samples == pytest.approx(overlap, abs=4 * math.sqrt(overlap * (1 - overlap) / samples))


def test_a_proposal_the_target_rules_out_never_stands() -> None:
    rows = np.array([[0.0, 0.0, -np.inf]] * 2, np.float32)
    drawn_from = TokenDistribution(np.array([2, 0]), np.array([0.9, 0.1], np.float32))
    for seed in range(100):
        verified = verify(rows, (2,), a_context(seed), 9, (drawn_from,))
        assert verified.accepted == 0
        assert verified.tokens[0] in (0, 1)


def test_what_was_proposed_before_the_draft_model_is_matched() -> None:
    rows = np.array([[0.0, 90.0, 0.0]] * 3, np.float32)
    drawn_from = TokenDistribution(np.array([1]), np.array([1.0], np.float32))
    assert verify(rows, (1, 1), a_context(0), 9, (drawn_from,)).tokens == (1, 1, 1)
    assert verify(rows, (0, 1), a_context(0), 9, (drawn_from,)).tokens == (1,)
