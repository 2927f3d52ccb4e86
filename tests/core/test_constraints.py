"""Answers under a grammar: masks, ends, and that drafts of any drafter change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.sampling import SamplingContext, distribution, draft_token, sample
from forerun.core.step import DraftRequest, Proposal
from forerun.errors import GrammarFailedError, InvalidRequestError
from forerun.testing import FakeConstraint, FakeDrafter, FakeRunner, FakeVocabulary
from tests.core.harness import Harness

VOCABULARY = FakeVocabulary()
END = 2
GRAMMAR = Grammar(GrammarKind.REGEX, "only the fake constraint counts")
LOGITS = np.array([5.0, 3.0, 4.0, 1.0, 2.0], np.float32)


def context(sentences: Sequence[Sequence[int]], **params: object) -> SamplingContext:
    constraint = FakeConstraint.of_sentences(VOCABULARY, sentences)
    history = TokenHistory(PromptLayout.of_text([0]))
    return SamplingContext(
        SamplingParams(grammar=GRAMMAR, **params),  # type: ignore[arg-type]
        0,
        VOCABULARY.end_tokens,
        history,
        constraint,
    )


def test_the_likeliest_token_that_the_grammar_lets_come_is_taken() -> None:
    assert sample(LOGITS, context([(0,), (3,)])) == 0
    assert sample(LOGITS, context([(3,), (4,)])) == 4
    assert sample(LOGITS, context([(3, 4, 1)]), (3,)) == 4


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.9}, {"typical_p": 0.5}])
def test_filters_see_only_what_the_grammar_lets_come(params: dict[str, float]) -> None:
    """Else they would leave nothing: all they keep of the whole row is forbidden."""
    for seed in range(20):
        assert sample(LOGITS, context([(3,), (4,)], temperature=2.0, seed=seed, **params)) in (3, 4)


def test_sampled_answers_have_the_model_s_probabilities_among_the_legal_tokens() -> None:
    found = distribution(LOGITS, context([(3,), (4,)], temperature=1.0))
    weights = np.exp(LOGITS[[3, 4]])
    assert found.ids.tolist() == [3, 4]
    np.testing.assert_allclose(found.probabilities, weights / weights.sum(), rtol=1e-6)


def test_a_draft_model_chooses_under_the_mask_too() -> None:
    assert draft_token(LOGITS, context([(3,), (4,)])) == (4, None)
    token, drawn_from = draft_token(LOGITS, context([(3,), (4,)], temperature=1.0))
    assert drawn_from is not None
    assert token in drawn_from.ids.tolist()
    assert set(drawn_from.ids.tolist()) == {3, 4}
    assert draft_token(LOGITS[:4], context([(3,), (4,)], temperature=1.0))[0] == 3  # a draft that knows fewer tokens


def test_a_row_of_logits_is_left_as_it_was() -> None:
    row = LOGITS.copy()
    sample(row, context([(3,)], logit_bias={3: -100.0}, ignore_eos=True))
    np.testing.assert_array_equal(row, LOGITS)


def test_a_complete_answer_ends_whatever_ignore_eos_and_bias_say() -> None:
    for params in ({}, {"ignore_eos": True}, {"logit_bias": {END: -float("inf")}}, {"temperature": 1.0, "top_k": 3}):
        assert sample(LOGITS, context([(3,)], **params), (3,)) == END


def test_ignore_eos_goes_on_for_as_long_as_the_grammar_does() -> None:
    assert sample(LOGITS, context([(0,), (0, 3)]), (0,)) == END
    assert sample(LOGITS, context([(0,), (0, 3)], ignore_eos=True), (0,)) == 3


# --- in the scheduler ----------------------------------------------------------


def harness(speculation: int = 0, drafter: FakeDrafter | None = None) -> Harness:
    config = SchedulerConfig(n_ctx=96, speculation=speculation, draft_n_ctx=drafter.memory.capacity if drafter else 0)
    return Harness(config, FakeRunner(96, VOCABULARY.size, drafter=drafter), VOCABULARY)


def params(**options: object) -> SamplingParams:
    return SamplingParams(grammar=GRAMMAR, **options)  # type: ignore[arg-type]


SENTENCES = FakeConstraint.of_sentences(VOCABULARY, [(0, 1, 0, 1, 3, 4), (1, 1, 3, 4, 3, 4, 1), (0, 0)])


@pytest.mark.parametrize("quality", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_drafts_change_no_answer_under_a_grammar(quality: float, temperature: float) -> None:
    own = harness(5, FakeDrafter(96, VOCABULARY.size, quality))
    for seed in range(10):
        own.add(f"r{seed}", [0, 1, seed % 2], params(temperature=temperature, seed=seed), constraint=SENTENCES)
    own.run()
    own.assert_all_right()
    assert all(own.answer(name).finish_reason is FinishReason.STOP for name in own.requests)


class Wrong:
    """Proposes what no grammar here lets come after the first token."""

    name = "wrong"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal((0, 4, 4)[: request.limit]) for request in requests]


def test_drafts_end_where_the_grammar_would_refuse_them() -> None:
    constraint = FakeConstraint.of_sentences(VOCABULARY, [(0, 0, 0, 1, 1, 0), (0, 0, 0, 1, 0, 1)])
    own = Harness(
        SchedulerConfig(n_ctx=96, speculation=3), FakeRunner(96, VOCABULARY.size), VOCABULARY, lookups=[Wrong()]
    )
    own.add("r", [1, 1], params(), constraint=constraint)
    own.run()
    own.assert_all_right()
    drafted = [row.drafts for plan in own.plans for row in plan.decode if row.drafts and row.drafter == "wrong"]
    assert all(drafts == (0,) for drafts in drafted)


def test_what_the_grammar_forces_is_drafted() -> None:
    own = harness(5)
    own.add("r", [0, 1], params(), constraint=FakeConstraint.of_sentences(VOCABULARY, [(0, 1, 0, 1, 3, 4)]))
    own.run()
    own.assert_all_right()
    assert own.usage("r").drafters["forced"] == (5, 5)
    assert own.usage("r").steps == 2


def test_nothing_left_to_choose_ends_the_request_with_an_error_and_no_other() -> None:
    """All tokens that the grammar lets come are banned."""
    own = harness()
    banned = params(logit_bias={1: -float("inf")})
    own.add("stuck", [0, 1], banned, constraint=FakeConstraint.of_sentences(VOCABULARY, [(0, 1)]))
    own.add("other", [0, 0], SamplingParams(max_tokens=12))
    own.run()
    own.assert_all_right()
    last = own.deltas["stuck"][-1]
    assert last.finish_reason is FinishReason.ERROR
    assert isinstance(last.error, GrammarFailedError)
    assert "after 1 tokens" in str(last.error)
    assert all(not plan.operations or index < 2 for index, plan in enumerate(own.plans)), "nobody was rebuilt"


def test_a_constraint_that_runs_into_a_limit_says_so() -> None:
    own = harness(4, FakeDrafter(96, VOCABULARY.size, 1.0))
    tired = FakeConstraint(VOCABULARY, lambda _: {0, 1}, problem_after=3)
    own.add("r", [0, 1], params(), constraint=tired)
    own.run()
    last = own.deltas["r"][-1]
    assert isinstance(last.error, GrammarFailedError)
    assert "out of breath" in str(last.error)


def test_a_stop_string_ends_an_answer_before_its_grammar_does() -> None:
    own = harness()
    own.add("r", [0, 1], params(stop=("a",)), constraint=FakeConstraint.of_sentences(VOCABULARY, [(1, 0, 1)]))
    own.run()
    assert own.answer("r").text == "b"
    assert own.answer("r").finish_reason is FinishReason.STOP


def test_a_grammar_that_nobody_compiled_is_refused_not_ignored() -> None:
    own = harness()
    with pytest.raises(InvalidRequestError, match="grammar: cannot be enforced by this engine"):
        own.add("r", [0], params())


def test_a_grammar_and_synthetic_acceptance_exclude_each_other() -> None:
    own = Harness(SchedulerConfig(n_ctx=96, speculation=2, synthetic_acceptance=0.5), vocabulary=VOCABULARY)
    with pytest.raises(InvalidRequestError, match="accepted at random"):
        own.add("r", [0], params(), constraint=SENTENCES)


def test_a_grammar_says_what_is_wrong_with_it() -> None:
    with pytest.raises(InvalidRequestError, match="kinds json_schema, regex, lark, gbnf"):
        Grammar("yaml", "a")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="its text is text, got int"):
        Grammar(GrammarKind.REGEX, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="must be a Grammar, got str"):
        SamplingParams(grammar="a")  # type: ignore[arg-type]
