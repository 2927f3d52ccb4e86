"""The model's own MTP head drafts: its proposals are the head's, and the answers stay the model's."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun import Engine, InvalidConfigError, ModelLoadError, Output, SamplingParams
from forerun.core.prompt import SpeculativePosition, Tokens
from forerun.core.step import ForkSequence, StepPlan, TruncateSequence
from forerun.engine_config import EngineConfig
from forerun.native import nextn
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel
from forerun.native.mtp import MtpDrafter
from forerun.native.rollback import Rollback
from forerun.native.runner import LlamaRunner
from tests.model.driving import DrivenRequest, at, random_tokens
from tests.model.serving import Ids, answer, answers, assert_length, serving, some_tokens, usage_of
from tests.support.greedy_eq import GreedyOracle

pytestmark = pytest.mark.model

PROMPT_TOKENS = 40


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def path(request: pytest.FixtureRequest, tiny_mtp_path: Path, tiny_hybrid_mtp_path: Path) -> Path:
    """A model whose memory can be cut, and one whose rejected rows are rolled back."""
    return tiny_mtp_path if request.param == "dense" else tiny_hybrid_mtp_path


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(path, with_mtp=True)
    yield model
    model.close()


@pytest.fixture
def cuttable(model: LlamaModel) -> None:
    if not model.memory.is_dense:
        pytest.skip("needs a memory that can be cut")


@pytest.fixture(scope="module")
def oracle(model: LlamaModel) -> Iterator[GreedyOracle]:
    oracle = GreedyOracle(model)
    yield oracle
    oracle.close()


@pytest.fixture
def runner(model: LlamaModel) -> Iterator[LlamaRunner]:
    runner = mtp_runner(model)
    yield runner
    runner.close()


def context_of(
    model: LlamaModel, *, is_mtp: bool = False, n_batch: int = 128, n_ubatch: int = 128, n_ctx: int = 512
) -> LlamaContext:
    params = ContextParams(
        n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch, n_seq_max=8, n_threads=1, n_threads_batch=1, is_mtp=is_mtp
    )
    return LlamaContext(model, params)


def mtp_runner(model: LlamaModel, n_batch: int = 128, n_ubatch: int = 128) -> LlamaRunner:
    target = context_of(model, n_ubatch=n_ubatch)
    drafter = MtpDrafter(context_of(model, is_mtp=True, n_batch=n_batch, n_ubatch=n_ubatch), target)
    rollback = None if model.memory.is_dense else Rollback(target, first_id=4, ids=4)
    return LlamaRunner(target, drafter, rollback=rollback)


class HeadAlone:
    """The head evaluated from scratch for each question, by the definition: x[p] with h[p - 1]."""

    def __init__(self, model: LlamaModel) -> None:
        self.width = nextn.nextn_width(model.handle)
        self.target, self.head = context_of(model), context_of(model, is_mtp=True)
        nextn.output_hidden_states(self.target.handle)
        nextn.output_hidden_states(self.head.handle)

    def proposals(self, tokens: Tokens, count: int) -> list[int]:
        batch = self.target.new_batch()
        batch.add_run(tokens, 0, 0, last_output=True)
        self.target.clear_sequence(0)
        self.target.decode(batch)
        states = nextn.hidden_states(self.target.handle, tokens.size, self.width)
        shifted = np.vstack([np.zeros((1, self.width), np.float32), states[:-1]])
        self.head.clear_sequence(0)
        proposed: list[int] = []
        position, rows = 0, tokens
        while len(proposed) < count:
            proposed.append(self._next(rows, shifted, position))
            position, last, rows = position + rows.size, rows, np.array(proposed[-1:], np.int32)
            shifted = nextn.hidden_states(self.head.handle, last.size, self.width)[-1:].copy()
        return proposed

    def _next(self, rows: Tokens, states: NDArray[np.float32], position: int) -> int:
        batch = self.head.new_batch()
        batch.add_run(rows, position, 0, last_output=True)
        batch.states[: rows.size] = states
        self.head.decode(batch)
        return int(self.head.logits[0].argmax())

    def close(self) -> None:
        self.target.close()
        self.head.close()


@pytest.fixture(scope="module")
def head(model: LlamaModel) -> Iterator[HeadAlone]:
    head = HeadAlone(model)
    yield head
    head.close()


def proposed(request: DrivenRequest, limit: int) -> list[int]:
    """What the drafter proposes now, and its memory as if nobody had asked."""
    drafter = request.runner.drafter
    assert drafter is not None
    asked = request.draft_request(limit)
    (proposal,) = drafter.propose([asked])
    request.draft_held = drafter.settle(asked, 0)
    return list(proposal.tokens)


def started(runner: LlamaRunner, sequence_id: int = 0, seed: int = 0) -> DrivenRequest:
    request = DrivenRequest(runner, sequence_id, random_tokens(PROMPT_TOKENS, seed))
    request.prefill(17, 18)
    return request


# --- the head's own work ---


@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(128, 128), (16, 16), (128, 5)])
def test_proposals_are_what_the_head_says_evaluated_alone(
    model: LlamaModel, head: HeadAlone, n_batch: int, n_ubatch: int
) -> None:
    runner = mtp_runner(model, n_batch, n_ubatch)
    requests = [started(runner, sequence_id, seed=sequence_id) for sequence_id in range(3)]
    for _ in range(6):
        for request in requests:
            assert proposed(request, 3) == head.proposals(request.history.tokens, 3)
            request.decode_with_draft(2)
            request.assert_memory_is_known()
    runner.close()


def test_a_prompt_that_was_filled_in_pieces_drafts_as_one_that_was_not(runner: LlamaRunner, head: HeadAlone) -> None:
    request = started(runner)
    for stop in (1, 20, PROMPT_TOKENS):
        result = runner.execute(StepPlan(0.0, draft_fills=(request.draft_fill(stop),)))
        request.draft_held = result.draft_held[0]
        assert request.draft_held == stop
    assert proposed(request, 4) == head.proposals(request.history.tokens, 4)


def test_drafts_that_the_target_rejects_leave_nothing_behind(runner: LlamaRunner, head: HeadAlone) -> None:
    request = started(runner)
    drafted = accepted = 0
    for _ in range(12):
        known = request.history.size
        result = request.decode_with_draft(4)
        assert request.draft_held == known
        request.assert_memory_is_known()
        drafted, accepted = drafted + result.drafted, accepted + result.accepted
        request.decode((7, 8))  # another drafter's, wrong
    assert 0.2 < accepted / drafted < 0.95
    assert proposed(request, 4) == head.proposals(request.history.tokens, 4)


def test_tokens_decoded_without_the_head_are_caught_up_with(runner: LlamaRunner, head: HeadAlone) -> None:
    request = started(runner)
    request.decode_with_draft(2)
    for _ in range(9):
        request.decode()
    assert proposed(request, 4) == head.proposals(request.history.tokens, 4)


@pytest.mark.usefixtures("cuttable")
def test_a_fork_of_what_the_head_has_not_seen_drafts_like_its_source(runner: LlamaRunner, head: HeadAlone) -> None:
    source = started(runner)
    runner.execute(StepPlan(0.0, operations=(ForkSequence(0, 3, at(30)),)))
    fork = DrivenRequest(runner, 3, source.history.tokens[:35])
    fork.computed = 30
    fork.prefill()
    assert proposed(fork, 4) == head.proposals(fork.history.tokens, 4)
    assert proposed(source, 4) == head.proposals(source.history.tokens, 4)


@pytest.mark.usefixtures("cuttable")
def test_a_fork_of_what_the_head_has_seen_shares_it_and_lacks_one_state(runner: LlamaRunner) -> None:
    source = started(runner)
    source.decode_with_draft(1)
    drafter = runner.drafter
    assert isinstance(drafter, MtpDrafter)
    before = drafter.rows_evaluated
    runner.execute(StepPlan(0.0, operations=(ForkSequence(0, 3, at(30)),)))
    assert drafter.held(3) == 30
    fork = DrivenRequest(runner, 3, source.history.tokens[:35])
    fork.computed = fork.draft_held = 30
    fork.prefill()
    fork.decode_with_draft(1)
    assert drafter.rows_evaluated - before == 6
    fork.assert_memory_is_known()


def test_a_sequence_whose_head_forgot_everything_drafts_again(runner: LlamaRunner) -> None:
    request = started(runner)
    request.decode_with_draft(1)
    position = SpeculativePosition(target=request.computed, draft=0)
    runner.execute(StepPlan(0.0, operations=(TruncateSequence(0, position),)))
    request.draft_held = 0
    assert request.decode_with_draft(2).drafted == 2
    request.assert_memory_is_known()


def test_a_head_whose_memory_is_full_proposes_less_and_fails_nothing(model: LlamaModel) -> None:
    target = context_of(model)
    head = context_of(model, is_mtp=True, n_batch=64, n_ubatch=64, n_ctx=256)
    runner = LlamaRunner(target, MtpDrafter(head, target))
    request = DrivenRequest(runner, 0, random_tokens(300))
    request.prefill(100, 200)
    fill = request.draft_fill(300)
    result = runner.execute(StepPlan(0.0, draft_fills=(fill,)))
    assert result.failure is None
    assert result.draft_held[0] <= 256
    runner.close()


# --- engines ---


@pytest.mark.parametrize("speculation", [1, 3, 5])
@pytest.mark.parametrize("prompts", [1, 6])
def test_answers_with_mtp_are_plain_greedy(path: Path, oracle: GreedyOracle, speculation: int, prompts: int) -> None:
    asked = [some_tokens(30 + 11 * index, seed=index) for index in range(prompts)]
    with serving(path, mtp=True, speculation=speculation) as engine:
        outputs = answers(engine, asked, SamplingParams(max_tokens=40))
    for prompt, output in zip(asked, outputs, strict=True):
        oracle.check(prompt, output.token_ids)
        assert_length(output, prompt, 40)
        assert usage_of(output).drafters["mtp"][1] > 0


def test_mtp_on_and_off_give_the_same_answers(path: Path) -> None:
    asked = [some_tokens(50, seed) for seed in range(4)]
    found: list[list[Sequence[int]]] = []
    for mtp in (True, False):
        with serving(path, mtp=mtp, speculation=4) as engine:
            found.append([output.token_ids for output in answers(engine, asked, SamplingParams(max_tokens=32))])
    assert found[0] == found[1]


@pytest.mark.usefixtures("cuttable")
def test_conversations_reuse_the_heads_memory(path: Path, oracle: GreedyOracle) -> None:
    params = SamplingParams(max_tokens=24)
    prompt = some_tokens(60, seed=5)
    rates: list[float] = []
    with serving(path, mtp=True, speculation=3) as engine:
        for turn in range(4):  # each continues the last (taken over), and branches off it (forked)
            output = answer(engine, prompt, params)
            oracle.check(prompt, output.token_ids)
            branch = [*prompt[: len(prompt) - 7], *some_tokens(9, seed=turn)]
            other = answer(engine, branch, params)
            oracle.check(branch, other.token_ids)
            assert usage_of(other).cached_tokens == len(prompt) - 7
            rates += [mtp_rate(output), mtp_rate(other)]
            prompt = [*prompt, *output.token_ids, *some_tokens(12, seed=100 + turn)]
    assert min(rates) > 0.15
    assert sum(rates) / len(rates) > 0.3


def test_a_conversation_of_a_hybrid_model_goes_on_in_both_memories(path: Path, oracle: GreedyOracle) -> None:
    prompt = some_tokens(60, seed=5)
    with serving(path, mtp=True, speculation=3) as engine:
        for turn in range(4):
            output = answer(engine, prompt, SamplingParams(max_tokens=24))
            oracle.check(prompt, output.token_ids)
            assert usage_of(output).cached_tokens == (0 if not turn else len(prompt) - 13)
            assert mtp_rate(output) > 0.15
            prompt = [*prompt, *output.token_ids, *some_tokens(12, seed=100 + turn)]


def mtp_rate(output: Output) -> float:
    drafted, accepted = usage_of(output).drafters["mtp"]
    return accepted / drafted


def test_mtp_runs_to_the_end_of_the_context(path: Path, oracle: GreedyOracle) -> None:
    asked = [some_tokens(40 + index, seed=index) for index in range(3)]
    with serving(path, mtp=True, speculation=5, n_ctx=128, n_seq_max=4, max_num_seqs=3) as engine:
        for prompt, output in zip(asked, answers(engine, asked, SamplingParams()), strict=True):
            oracle.check(prompt, output.token_ids)
            assert_length(output, prompt, 129 - len(prompt))


def test_auto_speculation_measures_the_head(
    path: Path, oracle: GreedyOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prompt = some_tokens(40, seed=1)
    with serving(path, mtp=True) as engine:
        output = answer(engine, prompt, SamplingParams(max_tokens=48))
    oracle.check(prompt, output.token_ids)


# --- where there is no head ---


def test_without_being_asked_a_head_drafts_where_speculation_is_on(tiny_mtp_path: Path) -> None:
    for speculation, expected in ((2, True), (None, False)):
        with serving(tiny_mtp_path, speculation=speculation) as engine:
            output = answer(engine, some_tokens(30, 0), SamplingParams(max_tokens=16))
        assert ("mtp" in usage_of(output).drafters) is expected


def test_a_model_without_a_head_is_refused_where_mtp_is_asked_for_and_served_where_not(tiny_dense_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="MTP head cannot draft: the file has no NextN layers"):
        Engine.load(tiny_dense_path, mtp=True)
    with serving(tiny_dense_path, speculation=2) as engine:
        assert len(answer(engine, some_tokens(30, 0), SamplingParams(max_tokens=4)).token_ids) == 4


def test_a_build_without_the_calls_is_refused_where_mtp_is_asked_for_and_serves_without_where_not(
    tiny_mtp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_calls() -> None:
        raise nextn.NextnUnavailableError("this llama-cpp-python has no NextN calls")

    monkeypatch.setattr(nextn, "_calls", no_calls)
    with pytest.raises(ModelLoadError, match="has no NextN calls"):
        Engine.load(tiny_mtp_path, mtp=True)
    with caplog.at_level(logging.INFO, "forerun"), serving(tiny_mtp_path, speculation=2) as engine:
        output = answer(engine, some_tokens(30, 0), SamplingParams(max_tokens=8))
    assert "mtp" not in usage_of(output).drafters
    assert [record.message for record in caplog.records if "NextN" in record.message] != []


@pytest.mark.parametrize(
    "options", [{"mtp": True, "draft": "x.gguf"}, {"mtp": True, "speculation": 0}, {"mtp": 1}], ids=str
)
def test_settings_that_contradict_each_other_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigError, match=r"^mtp: "):
        EngineConfig(model="m.gguf", **options)  # type: ignore[arg-type]


def test_a_sampled_answer_with_a_seed_is_the_same_with_and_without_mtp(tiny_mtp_path: Path) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.7, seed=11)
    found: list[Ids] = []
    for mtp in (True, False):
        with serving(tiny_mtp_path, mtp=mtp, speculation=3) as engine:
            found.append(list(answer(engine, some_tokens(30, 3), params).token_ids))
    assert all(one == other for one, other in pairwise(found))
