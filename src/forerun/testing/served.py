"""A fake engine to put a server in front of: reads and writes any text, chats, and keeps the pace of a real one.

    engine = AsyncEngine(served_parts(seconds_per_step=0.02))      # 50 steps a second, whatever a step costs to fake

Answers are words of lower-case letters, made of the prompt's hash: the same prompt gets the same answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from forerun.chat.prompts import PromptWriter
from forerun.chat.templates import ChatTemplate
from forerun.core.config import SchedulerConfig
from forerun.core.prompt import Tokens, as_tokens
from forerun.core.scheduler import Scheduler
from forerun.core.step import StepPlan, StepResult
from forerun.engine.loading import LoadProgress
from forerun.engine.parts import EngineParts
from forerun.testing.runner import FakeRunner

_CONTROL: Final = ("<|im_start|>", "<|im_end|>")
IM_START, IM_END = 256, 257
_VOCABULARY_SIZE: Final = 258
_SPLIT: Final = re.compile("|".join(f"({re.escape(text)})" for text in _CONTROL))
_LETTERS: Final = 26
_LIKELY, _POSSIBLE = 8.0, 4.0

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ByteVocabulary:
    """One token a byte, and two control tokens of ChatML. Implements engine.parts.TextVocabulary."""

    size = _VOCABULARY_SIZE
    end_tokens = frozenset({IM_END})
    bos = -1
    control_tokens: Final[Mapping[str, int]] = {"<|im_start|>": IM_START, "<|im_end|>": IM_END}

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < IM_START else b""

    def token_text(self, token: int) -> str:
        return _CONTROL[token - IM_START] if token >= IM_START else chr(token)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        del add_special
        if not parse_special:
            return as_tokens(list(text.encode()))
        tokens: list[int] = []
        for part in filter(None, _SPLIT.split(text)):
            tokens += [IM_START + _CONTROL.index(part)] if part in _CONTROL else part.encode()
        return as_tokens(tokens)


class PacedRunner(FakeRunner):
    """The fake model over ByteVocabulary, whose steps end when they are due: one that took long makes the next short.

    A step without rows takes no time.
    """

    def __init__(
        self,
        n_ctx: int,
        seconds_per_step: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(n_ctx, _VOCABULARY_SIZE, seconds_per_step=seconds_per_step)
        self._clock, self._sleep = clock, sleep
        self._due = self._ended = clock()

    def execute(self, plan: StepPlan) -> StepResult:
        if not (plan.decode or plan.prefill):
            return super().execute(plan)
        began = self._clock()
        if began > self._ended + self._seconds:  # nothing was asked for: that is not made up for
            self._due = began
        self._due += self._seconds
        result = super().execute(plan)
        self._sleep(max(self._due - self._clock(), 0.0))
        self._ended = self._clock()
        return result

    def _logits(self, sequence_id: int) -> NDArray[np.float32]:
        """A letter, now and then a space, rarely the end: cheaper than a hash for every token."""
        digest = self.memory.digest(sequence_id)
        logits = np.full(_VOCABULARY_SIZE, -_LIKELY, np.float32)
        logits[ord("a") : ord("z") + 1] = 0.0
        logits[ord("a") + digest % _LETTERS] = _LIKELY
        logits[ord("a") + digest // _LETTERS % _LETTERS] += _POSSIBLE
        if digest % 6 == 0:
            logits[ord(" ")] = 2 * _LIKELY
        if digest % 101 == 0:
            logits[IM_END] = 3 * _LIKELY
        return logits


def served_template() -> PromptWriter:
    """ChatML."""
    return PromptWriter(ChatTemplate(CHATML, "", ""), ByteVocabulary.control_tokens)


def served_parts(
    *, n_ctx: int = 65_536, seconds_per_step: float = 0.0, max_num_seqs: int = 64, max_queue: int = 1024
) -> EngineParts:
    """An engine on the paced fake model, with a ChatML template. Requests end on their own after about 100 tokens."""
    vocabulary = ByteVocabulary()
    config = SchedulerConfig(n_ctx=n_ctx, n_seq_max=2 * max_num_seqs, max_num_seqs=max_num_seqs, max_queue=max_queue)
    return EngineParts(
        scheduler=Scheduler(config, vocabulary),
        runner=PacedRunner(n_ctx, seconds_per_step),
        vocabulary=vocabulary,
        chat_template=served_template(),
        model_name="fake",
        n_ctx=n_ctx,
    )


def make(options: Mapping[str, Any], _progress: LoadProgress) -> EngineParts:
    """What an engine process builds from: "forerun.testing.served:make", the options of `served_parts`."""
    return served_parts(**options)
