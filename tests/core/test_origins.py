"""Every output token knows where it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.origins import first, joined, of_block, total
from forerun.core.request import SamplingParams
from forerun.core.step import DraftRequest, Proposal
from forerun.testing import FakeDrafter, FakeRunner, naive_answer
from tests.core.harness import VOCABULARY, Harness

MIXED = (("suffix", 2), ("ngram", 3))


class Knowing:
    """Proposes the right answer, up to one wrong token at the end of each proposal; two sources share each block."""

    name = "knowing"

    def __init__(self, answer: Sequence[int], prompt: int) -> None:
        self._answer = list(answer)
        self._prompt = prompt

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._proposal(request) for request in requests]

    def _proposal(self, request: DraftRequest) -> Proposal:
        at = request.tokens.size - self._prompt
        right = self._answer[at : at + min(request.limit, 3)]
        wrong = [(token + 1) % VOCABULARY.size for token in self._answer[at + 3 : at + 4]]
        tokens = tuple((right + wrong)[: request.limit])
        return Proposal(tokens, origins=first((("suffix", 2), ("ngram", 2)), len(tokens)))


def test_runs_are_cut_counted_and_joined() -> None:
    assert first(MIXED, 3) == (("suffix", 2), ("ngram", 1))
    assert first(MIXED, 0) == ()
    assert first(MIXED, 9) == MIXED
    assert joined([MIXED, (("ngram", 1), ("target", 1)), (("target", 1),)]) == (
        ("suffix", 2),
        ("ngram", 4),
        ("target", 2),
    )
    assert total(MIXED) == 5


@pytest.mark.parametrize(
    ("accepted", "tokens", "expected"),
    [
        (0, 1, (("target", 1),)),
        (3, 4, (("suffix", 2), ("ngram", 1), ("target", 1))),
        (5, 5, MIXED),
        (5, 1, (("suffix", 1),)),
    ],
    ids=["nothing accepted", "some accepted", "ended with the last draft", "cut inside the block"],
)
def test_a_block_is_its_accepted_drafts_and_then_the_targets_choice(
    accepted: int, tokens: int, expected: object
) -> None:
    assert of_block(MIXED, accepted, tokens) == expected


def test_tokens_of_one_block_may_come_from_several_drafters() -> None:
    prompt, params = [1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=14)
    config = SchedulerConfig(n_ctx=64, max_num_seqs=1, speculation=4)
    plain = Harness(config)
    plain.add("a", prompt, params)
    answer = naive_answer(plain.requests["a"].prompt, params, VOCABULARY, 64)
    harness = Harness(config, lookups=[Knowing(answer.tokens, len(prompt))])
    harness.add("a", prompt, params)
    harness.run()
    harness.assert_all_right()
    found = joined([delta.origins for delta in harness.deltas["a"]])
    block = (("suffix", 2), ("ngram", 1), ("target", 1))
    assert found == joined([(("target", 1),), *[block] * 3, (("target", 1),)])
    usage = harness.usage("a")
    assert usage.drafters == {"suffix": (6, 6), "ngram": (6, 3)}
    assert (usage.steps, usage.draft_steps, usage.accepted_tokens) == (5, 3, 9)
    assert usage.mean_accepted_length == 3.0
    assert usage.tokens_per_step == pytest.approx(14 / 5)


@pytest.mark.parametrize("quality", [0.0, 0.6, 1.0])
def test_origins_agree_with_usage(quality: float) -> None:
    runner = FakeRunner(256, VOCABULARY.size, drafter=FakeDrafter(256, VOCABULARY.size, quality))
    harness = Harness(SchedulerConfig(n_ctx=256, draft_n_ctx=256, max_num_seqs=4, speculation=5), runner)
    for index in range(4):
        harness.add(str(index), [1, 2, 3, index] * 3, SamplingParams(max_tokens=30 + index))
    harness.run()
    harness.assert_all_right()
    for name in harness.requests:
        assert all(total(delta.origins) == len(delta.tokens) for delta in harness.deltas[name])
        counts: Counter[str] = Counter()
        for delta in harness.deltas[name]:
            counts.update(dict(delta.origins))
        usage = harness.usage(name)
        accepted = {drafter: right for drafter, (_, right) in usage.drafters.items() if right}
        assert {drafter: count for drafter, count in counts.items() if drafter != "target"} == accepted
        assert usage.accepted_tokens == sum(accepted.values())
        assert usage.drafted_tokens == sum(drafted for drafted, _ in usage.drafters.values())


def test_a_drafter_whose_origins_do_not_add_up_costs_speed_only() -> None:
    class Careless:
        name = "careless"

        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return [Proposal((1, 2), origins=(("careless", 3),)) for _ in requests]

    harness = Harness(SchedulerConfig(n_ctx=64, max_num_seqs=1, speculation=4), lookups=[Careless()])
    harness.add("a", [1, 2, 3], SamplingParams(max_tokens=8))
    harness.run()
    harness.assert_all_right()
    assert harness.usage("a").drafted_tokens == 0
