"""Grammars on real vocabularies: answers always fit, and are greedy under the grammar, whatever drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from forerun import Engine, SamplingParams
from forerun.core.grammar import Grammar, GrammarKind, TokenConstraint
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.engine.output import Output
from forerun.errors import InvalidRequestError
from forerun.native.model import LlamaModel
from forerun.structured.compiling import GrammarCompiler
from tests.model.serving import ids_in, some_tokens, usage_of
from tests.support.greedy_eq import Edit, GreedyOracle, Logits

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog", "horse"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "maxItems": 2},
    },
    "required": ["name", "kind", "legs", "tags"],
    "additionalProperties": False,
}
JSON = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
PROMPTS = ["Describe a pet as JSON.", "Answer in markdown with ```json fences: describe a horse.", "Say hello."]
MARKED = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA), after="</think>")
FENCED = 'Hm, a cat.</think>```json\n{"name": "Tom"}\n```'


def loaded(path: Path, **options: Any) -> Engine:
    return Engine.load(path, n_ctx=1024, n_threads=1, cache_ram=0, **options)


@pytest.fixture(scope="module", params=["ngram", pytest.param("draft", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[Engine]:
    """SmolLM2, drafting by lookup, or with itself as the draft."""
    draft: dict[str, Any] = {"draft": smollm2_path} if request.param == "draft" else {}
    with loaded(smollm2_path, speculation=5, **draft) as drafting:
        yield drafting


Check = Callable[[PromptLayout, Output, Grammar], None]


@pytest.fixture(scope="module")
def check(smollm2: LlamaModel, smollm2_oracle: GreedyOracle) -> Iterator[Check]:
    with checking(smollm2, smollm2_oracle) as checked:
        yield checked


@contextmanager
def checking(model: LlamaModel, oracle: GreedyOracle) -> Iterator[Check]:
    """Raises where an answer is not the greedy one among those that the grammar allows (GREEDY-EQ)."""
    compiler = GrammarCompiler(model.vocabulary)

    def checked(prompt: PromptLayout, output: Output, grammar: Grammar) -> None:
        oracle.check(ids_in(prompt), output.token_ids, _under(compiler(grammar), prompt, oracle.noise))

    yield checked
    compiler.close()


def _under(constraint: TokenConstraint, prompt: PromptLayout, noise: float) -> Edit:
    def ban(row: Logits, known: Sequence[int]) -> None:
        history = TokenHistory(prompt)
        for token in known[history.prompt_tokens :]:
            history.append(token)
        allowed = constraint.allowed(history, ())
        if allowed is None:
            return
        # The model's first choice is taken wherever it is legal. Where a text must come, masks have its usual tokens
        # alone, and not all that spell it.
        firsts = np.flatnonzero(row >= row.max() - noise)
        allowed[[token for token in firsts if constraint.accepted(history, (), [int(token)])]] = True
        row[~allowed] = -np.inf

    return ban


def answers(engine: Engine, prompts: Sequence[str], params: SamplingParams) -> list[Output]:
    return sorted(engine.generate(prompts, params), key=lambda output: output.index)


def valid(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def test_greedy_answers_fit_and_are_the_greedy_ones_whatever_drafts(engine: Engine, check: Check) -> None:
    params = SamplingParams(max_tokens=120, grammar=JSON)
    for text in PROMPTS:
        prompt = engine.chat_prompt([{"role": "user", "content": text}])
        (output,) = engine.generate(prompt, params)
        assert output.finish_reason == "stop"
        valid(output.text)
        check(prompt, output, JSON)


@pytest.mark.parametrize("draft", [None, "tiny_dense_path", "tiny_poor_draft_path"])
def test_a_model_that_would_write_anything_fits_as_well_whatever_drafts(
    draft: str | None,
    tiny_dense_path: Path,
    dense: LlamaModel,
    dense_oracle: GreedyOracle,
    request: pytest.FixtureRequest,
) -> None:
    options = {"draft": request.getfixturevalue(draft)} if draft else {}
    params = SamplingParams(max_tokens=200, grammar=JSON)
    accepted = 0
    with loaded(tiny_dense_path, speculation=5, **options) as engine, checking(dense, dense_oracle) as check:
        for seed in range(4):
            prompt = PromptLayout.of_text(some_tokens(30, seed))
            (output,) = engine.generate(prompt, params)
            assert output.finish_reason == "stop"
            valid(output.text)
            check(prompt, output, JSON)
            accepted += usage_of(output).accepted_tokens
    assert accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_case_a7_sampled_answers_always_fit(engine: Engine, temperature: float) -> None:
    params = [
        SamplingParams(max_tokens=200, temperature=temperature, seed=seed, grammar=JSON, top_p=0.95)
        for seed in range(6)
    ]
    for output in engine.generate([PROMPTS[seed % 3] for seed in range(6)], params):
        assert output.error is None
        assert output.finish_reason == "stop"
        valid(output.text)


@pytest.mark.parametrize("runs", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_case_s7_behind_its_reasoning_an_answer_fits_also_inside_a_block_of_drafts(engine: Engine, runs: int) -> None:
    """The prompt makes the model close its thoughts and go on with a fence; a copying drafter, or a draft that is the
    target, proposes both in one block."""
    prompt = f"{FENCED}\n{FENCED}\n{FENCED}\nHm, a"
    params = [
        SamplingParams(max_tokens=160, temperature=0.0 if seed < 2 else 0.7, seed=seed, grammar=MARKED)
        for seed in range(runs)
    ]
    outputs = sorted(engine.generate([prompt] * runs, params, raw=True), key=lambda output: output.index)
    finished = 0
    for output in outputs:
        assert output.error is None
        thoughts, marker, answer = output.text.partition("</think>")
        assert marker or output.finish_reason == "length", output.text
        if output.finish_reason == "stop":
            valid(answer)
            finished += 1
        assert "</think>" not in thoughts
    assert finished >= 0.75 * runs, [output.text for output in outputs]


def test_reasoning_and_what_follows_it_are_greedy_whatever_drafts(engine: Engine, check: Check) -> None:
    params = SamplingParams(max_tokens=60, grammar=MARKED)
    prompt = engine.prompt(f"{FENCED}\n{FENCED}\n{FENCED}\nHm, a", raw=True)
    (output,) = engine.generate(prompt, params)
    valid(output.text.partition("</think>")[2])
    check(prompt, output, MARKED)


def test_patterns_and_grammars_hold(engine: Engine, check: Check) -> None:
    pattern = Grammar(GrammarKind.REGEX, r"(yes|no), because [a-z ]{10,40}\.")
    gbnf = Grammar(GrammarKind.GBNF, 'root ::= "[" item ("," item)* "]"\nitem ::= [0-9]{1,3} | root')
    for grammar, fits in ((pattern, re.compile(pattern.text)), (gbnf, re.compile(r"\[.*"))):
        params = SamplingParams(max_tokens=60, grammar=grammar)
        prompt = engine.chat_prompt([{"role": "user", "content": "Is the sky blue?"}])
        (output,) = engine.generate(prompt, params)
        assert fits.fullmatch(output.text), output.text
        check(prompt, output, grammar)


def test_other_requests_do_not_notice_a_grammar_that_is_stuck(engine: Engine) -> None:
    """All that may come is banned: an error for one, an answer for the other."""
    banned = SamplingParams(
        grammar=Grammar(GrammarKind.REGEX, "5"), logit_bias={token: float("-inf") for token in _spelling(engine, "5")}
    )
    stuck, other = answers_of(engine, banned, SamplingParams(max_tokens=8))
    assert "cannot go on under its grammar" in str(stuck.error)
    assert other.error is None
    assert len(other.token_ids) == 8


def answers_of(engine: Engine, *params: SamplingParams) -> list[Output]:
    outputs = engine.generate(["Count from one to nine."] * len(params), list(params))
    return sorted(outputs, key=lambda output: output.index)


def _spelling(engine: Engine, text: str) -> list[int]:
    return [int(token) for token in engine.tokenizer.tokenize_continuation(text)]


def test_a_bad_grammar_is_refused_before_anything_is_computed(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="'foo' at #"):
        list(engine.generate("hi", SamplingParams(grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"foo": 1}'))))
