"""One job being answered: the engine's outputs, parsed, as events of its choices."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self

from forerun.chat.pieces import OutputParser, Piece, Reasoning, ToolCall
from forerun.core.request import FinishReason
from forerun.engine.async_engine import AsyncOutputIterator
from forerun.engine.output import Output
from forerun.errors import EngineClosedError, RequestTimeoutError
from forerun.server.jobs import ChoiceEvent, Progress
from forerun.server.problems import problem_of
from forerun.server.records import current_record


class Choice:
    """What is known of one choice while it is written."""

    __slots__ = ("_is_reasoning", "_read_from", "has_called", "parser", "reasoning_tokens")

    def __init__(self, parser: OutputParser | None, *, starts_in_reasoning: bool = False) -> None:
        self.parser = parser
        """None: the text goes out as it is."""
        self.has_called = False
        self.reasoning_tokens = 0
        self._is_reasoning = starts_in_reasoning
        self._read_from: tuple[float, int] | None = None
        """When the first part of the prompt had been read, and how much that was."""

    def pieces(self, text: str, tokens: int, *, ends: bool) -> Sequence[Piece]:
        """What the text adds, and that it came as so many tokens."""
        if self.parser is None:
            return ()
        pieces = self.parser.push(text)
        if ends:
            pieces += self.parser.finish()
        if pieces:
            self._is_reasoning = isinstance(pieces[-1], Reasoning)
        self.has_called = self.has_called or any(isinstance(piece, ToolCall) for piece in pieces)
        if self._is_reasoning:  # a step's tokens count as what its text ends in
            self.reasoning_tokens += tokens
        return pieces

    def progress(self, done: int, total: int) -> Progress:
        """So much of the prompt has been read now; what is left is expected to go at the rate since the first part."""
        now = time.monotonic()
        if self._read_from is None:
            self._read_from = (now, done)
            return Progress(done, total, None)
        since, before = self._read_from
        rate = (done - before) / (now - since) if now > since else 0.0
        return Progress(done, total, (total - done) / rate if rate > 0 else None)


class EngineAnswering:
    """Implements jobs.Answering. Used by one task; `on_end` is called once, however it ends; `abort` ends its
    requests in the engine."""

    def __init__(
        self,
        id: str,
        outputs: AsyncOutputIterator,
        choices: Sequence[Choice],
        *,
        prompt_tokens: int,
        timeout: float | None,
        abort: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._id = id
        self._outputs = outputs
        self._choices = choices
        self._prompt_tokens = prompt_tokens
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._abort = abort
        self._cut_for: str | None = None
        self._on_end: Callable[[], None] | None = on_end
        self._ready: deque[ChoiceEvent] = deque()
        self._unfinished = len(choices)
        self._record = current_record()

    @property
    def id(self) -> str:
        return self._id

    @property
    def prompt_tokens(self) -> int:
        return self._prompt_tokens

    def __aiter__(self) -> AsyncIterator[ChoiceEvent]:
        return self

    async def __anext__(self) -> ChoiceEvent:
        while not self._ready:
            if not self._unfinished:
                self._end()
                raise StopAsyncIteration
            try:
                self._ready.append(self._event(await self._next_output()))
            except BaseException as error:
                if isinstance(error, Exception):
                    self._record.fail(problem_of(error).code or type(error).__name__)
                await self.aclose()
                raise
        return self._ready.popleft()

    async def _next_output(self) -> Output:
        if self._deadline is None:
            return await anext(self._outputs)
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                return await anext(self._outputs)
        except TimeoutError:
            raise RequestTimeoutError(f"the answer was not finished within {self._timeout:g} s") from None

    def _event(self, output: Output) -> ChoiceEvent:
        if output.error is not None:
            raise output.error
        choice = self._choices[output.index]
        ends = output.finish_reason is not None
        self._unfinished -= ends
        if output.finish_reason is FinishReason.ABORT:
            raise EngineClosedError(self._cut_for or "the answer was cut off")
        if output.token_ids:
            self._record.count(output.index, len(output.token_ids))
        if output.finish_reason is not None:
            self._record.end_choice(output.finish_reason, output.usage)
        if output.prefill_done is not None:
            return ChoiceEvent(index=output.index, progress=choice.progress(*output.prefill_done))
        return ChoiceEvent(
            index=output.index,
            pieces=choice.pieces(output.text, len(output.token_ids), ends=ends),
            text=output.text,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            finish_reason=output.finish_reason,
            stop_string=output.stop_string,
            has_called=choice.has_called and output.finish_reason is FinishReason.STOP,
            usage=output.usage,
            reasoning_tokens=choice.reasoning_tokens,
        )

    def cut_off(self, reason: str) -> None:
        """End it with an EngineClosedError; what the choices have until then still comes."""
        self._cut_for = reason
        self._abort()

    async def aclose(self) -> None:
        """End what is still open. Safe to call again."""
        await self._outputs.aclose()
        self._unfinished = 0
        self._ready.clear()
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"EngineAnswering({self._id}, {self._unfinished} of {len(self._choices)} choices open)"
