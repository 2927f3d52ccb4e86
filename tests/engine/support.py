"""An engine on the fake model, and runners that a test can hold, slow down or break."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from forerun.compose import AsyncEngine, Engine
from forerun.core.config import SchedulerConfig
from forerun.core.prompt import Tokens, as_tokens
from forerun.core.prompt_text import PromptText
from forerun.core.scheduler import Scheduler
from forerun.core.step import StepPlan, StepResult
from forerun.core.synthetic import SyntheticAcceptance
from forerun.core.verification import verify
from forerun.engine.parts import ChatRenderer, EngineParts, Message
from forerun.errors import InvalidRequestError
from forerun.testing import FakeRunner, FakeVocabulary

_CODES = {"a": (0,), "b": (1,), "$": (2,), "é": (3, 4)}


class SpellingVocabulary(FakeVocabulary):
    """The fake vocabulary with a tokenizer: one token a letter ("$" ends a turn, "é" is two bytes)."""

    bos = -1
    control_tokens: Mapping[str, int] = {}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        del add_special, parse_special
        return as_tokens([code for letter in text for code in _CODES[letter]])

    def token_text(self, token: int) -> str:
        return "ab$"[token]


class TurnTemplate:
    """A chat template: each turn's content, then "$"."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> PromptText:
        del add_generation_prompt
        if any("content" not in message for message in messages):
            raise InvalidRequestError("messages", "a message has no content")
        return PromptText("".join(f"{message['content']}$" for message in messages))


class HeldRunner(FakeRunner):
    """Waits before each step until the test lets it go; says when it waits."""

    def __init__(self, n_ctx: int) -> None:
        super().__init__(n_ctx)
        self.may_step = threading.Event()
        self.is_stepping = threading.Event()
        self.plans: list[StepPlan] = []
        self.thread: threading.Thread | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        self.thread = threading.current_thread()
        self.is_stepping.set()
        assert self.may_step.wait(20)
        self.plans.append(plan)
        return super().execute(plan)

    def close(self) -> None:
        assert self.thread is None or threading.current_thread() is self.thread
        super().close()


class BreakingRunner(FakeRunner):
    """Raises what no runner should, from step `breaks_at` on."""

    def __init__(self, n_ctx: int, breaks_at: int) -> None:
        super().__init__(n_ctx)
        self.steps_left = breaks_at

    def execute(self, plan: StepPlan) -> StepResult:
        if not self.steps_left:
            raise ZeroDivisionError("a fault nobody foresaw")
        self.steps_left -= 1
        return super().execute(plan)


def fake_parts(
    runner: FakeRunner | None = None,
    *,
    n_ctx: int = 256,
    max_num_seqs: int = 8,
    template: ChatRenderer | None = None,
    dispose: Callable[[], None] = lambda: None,
    speculation: int = 0,
    synthetic_acceptance: float | None = None,
) -> EngineParts:
    config = SchedulerConfig(
        n_ctx=n_ctx,
        max_num_seqs=max_num_seqs,
        n_seq_max=32,
        speculation=speculation,
        synthetic_acceptance=synthetic_acceptance,
    )
    vocabulary = SpellingVocabulary()
    verification = verify if synthetic_acceptance is None else SyntheticAcceptance(synthetic_acceptance).verify
    return EngineParts(
        scheduler=Scheduler(config, vocabulary),
        runner=runner or FakeRunner(n_ctx, verify=verification),
        vocabulary=vocabulary,
        chat_template=template,
        n_ctx=n_ctx,
        dispose=dispose,
        checks_integrity=True,
    )


def fake_engine(runner: FakeRunner | None = None, *, n_ctx: int = 256, template: ChatRenderer | None = None) -> Engine:
    return Engine(fake_parts(runner, n_ctx=n_ctx, template=template))


def fake_async_engine(
    runner: FakeRunner | None = None, *, n_ctx: int = 256, template: ChatRenderer | None = None
) -> AsyncEngine:
    return AsyncEngine(fake_parts(runner, n_ctx=n_ctx, template=template))


def tokens_of(text: str) -> list[int]:
    return [int(token) for token in SpellingVocabulary().tokenize(text, add_special=False, parse_special=False)]
