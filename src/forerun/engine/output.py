"""What callers receive: one kind of value, whole (`generate`) or piece by piece (`stream`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.core.origins import Origins, joined
from forerun.core.request import FinishReason, OutputDelta, TokenLogprobs, Usage
from forerun.errors import ForerunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An answer, or the next piece of one.

    From `generate` and `chat` it is a whole answer. From `stream` it is what one step added: `text` and `token_ids` are
    new, and only the last piece of a request carries `finish_reason` and `usage`.
    """

    index: int
    """Which of the call's prompts this answers."""
    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry a token, where SamplingParams.logprobs asked for them."""
    origins: Origins = ()
    """Where `token_ids` came from, as runs of (name, how many): "target" for the model's own choices, else the drafter
    whose proposals it confirmed.
    """
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    prefill_done: tuple[int, int] | None = None
    """From `stream` with `reports_progress`, while a prompt is read: how many of its tokens are, and of how many."""
    error: ForerunError | None = None
    """Why the request failed, with finish reason ERROR."""
    is_synthetic: bool = False
    """The engine accepts drafts by a random number (synthetic acceptance): the text is no answer."""
    stop_string: str | None = None
    """Which of the request's stop strings ended it; None where something else did."""


def refusal(index: int, request_id: str, error: ForerunError) -> Output:
    """The output of a request that failed before the engine saw it."""
    return Output(index=index, request_id=request_id, finish_reason=FinishReason.ERROR, error=error)


class OutputAssembly:
    """Turns the deltas of one call's requests into outputs. Used by the thread that consumes them.

    `open_ids` are the requests whose last delta has not come: what is left to wait for, or to abort.
    """

    __slots__ = ("_held", "_incremental", "_indexes")

    def __init__(self, indexes: Mapping[str, int], *, incremental: bool) -> None:
        self._indexes = dict(indexes)
        self._incremental = incremental
        self._held: dict[str, list[OutputDelta]] = {}

    @property
    def open_ids(self) -> tuple[str, ...]:
        return tuple(self._indexes)

    @property
    def is_done(self) -> bool:
        return not self._indexes

    def forget_open(self) -> None:
        """Nothing more is awaited."""
        self._indexes.clear()
        self._held.clear()

    def take(self, deltas: Iterable[OutputDelta]) -> list[Output]:
        """The outputs that these deltas complete (or are, when incremental)."""
        outputs = (self._take(delta) for delta in deltas)
        return [output for output in outputs if output is not None]

    def _take(self, delta: OutputDelta) -> Output | None:
        request_id = delta.request_id
        index = self._indexes.get(request_id)
        if index is None:
            return None
        ends = delta.finish_reason is not None
        if ends:
            del self._indexes[request_id]
        if self._incremental:
            return _output(index, delta)
        if not ends:
            self._held.setdefault(request_id, []).append(delta)
            return None
        return _output(index, merged([*self._held.pop(request_id, ()), delta]))


def merged(deltas: Sequence[OutputDelta]) -> OutputDelta:
    """Deltas of one request, in order, as one."""
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    reported = any(delta.logprobs is not None for delta in deltas)
    return replace(
        last,
        text="".join([delta.text for delta in deltas]),
        tokens=tuple([token for delta in deltas for token in delta.tokens]),
        logprobs=tuple(logprobs) if reported else None,
        origins=joined([delta.origins for delta in deltas]),
    )


def _output(index: int, delta: OutputDelta) -> Output:
    return Output(
        index=index,
        request_id=delta.request_id,
        text=delta.text,
        token_ids=delta.tokens,
        logprobs=delta.logprobs,
        origins=delta.origins,
        finish_reason=delta.finish_reason,
        usage=delta.usage,
        prefill_done=delta.prefill_done,
        error=delta.error,
        is_synthetic=delta.is_synthetic,
        stop_string=delta.stop_string,
    )
