"""What every answer must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.core.adapters import NO_CONTENTS
from forerun.core.grammar import TokenConstraint
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.sampling import SamplingContext, sample
from forerun.core.step import (
    Vocabulary,
)
from forerun.testing.model import adapted, fake_logits, media_codes, next_digest


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request must give, whatever happens around it."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason


def naive_answer(
    prompt: PromptLayout,
    params: SamplingParams,
    vocabulary: Vocabulary,
    n_ctx: int,
    adapters: Mapping[str, str] = NO_CONTENTS,
    constraint: TokenConstraint | None = None,
) -> Answer:
    """The oracle: one request alone, token by token, no cache, no draft, no chunks; text decoded afresh each time.

    `adapters`: those there are, with contents. `constraint`: one that remembers nothing, such as a FakeConstraint.
    """
    digest = position = 0
    applied = params.adapter_set
    for segment in prompt.segments:
        codes = media_codes(segment) if segment.is_media else segment.tokens.tolist()
        for index, code in enumerate(adapted(codes, applied, adapters)):
            digest = next_digest(digest, code, position + min(index, segment.native_positions - 1))
        position += segment.native_positions
    history = TokenHistory(prompt)
    context = SamplingContext(params, params.seed or 0, vocabulary.end_tokens, history, constraint)
    limit = n_ctx + 1 - prompt.logical_tokens
    limit = limit if params.max_tokens is None else min(limit, params.max_tokens)
    output: list[int] = []
    shown: list[int] = []
    while True:
        token = sample(fake_logits(digest, vocabulary.size), context)
        is_legal = constraint is None or constraint.accepted(history, (), (token,)) == 1
        output.append(token)
        history.append(token)
        if token in context.end_tokens:
            finish = FinishReason.STOP if is_legal else FinishReason.ERROR
            return Answer(tuple(output), _text(shown, vocabulary), finish)
        shown.append(token)
        text = _text(shown, vocabulary)
        ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in params.stop if stop in text]
        if ends:
            return Answer(tuple(output), text[: min(ends)[1]], FinishReason.STOP)
        if len(output) == limit:
            return Answer(tuple(output), text, FinishReason.LENGTH)
        (code,) = adapted([token], applied, adapters)
        digest = next_digest(digest, code, position)
        position += 1


def _text(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    return b"".join(vocabulary.piece(token) for token in tokens).decode("utf-8", "ignore")
