"""GREEDY-EQ: whether a greedy answer is one that a plain run of the model could have given.

llama.cpp rounds differently for other batch shapes, so equal strings are no fair demand. The rule instead: prompt and
answer are evaluated once more in a plain reference run (one sequence, no cache, no draft, all in one decode), and at
every position the delivered token's logit is within `noise` of the largest one.

`noise` is measured for the model: how far the distance between a row's best token and any token that could take its
place moves against the reference run. (A move that all of them share changes no choice; of the whole vocabulary some
hopeless token always moves by twice as much, and would only blunt the rule.) The rows are decoded 1, 2 and 8 at a time
and behind 0 and 256 foreign cells, and the text before them is prefilled whole and in chunks of 17.

Chunks belong to it because they, and not the number of rows, are what moves logits on a CPU: for fewer than 64 rows
llama.cpp's flash attention takes another path, which rounds otherwise, and what it writes to memory stays there. On one
thread there was next to no difference between one row and several, and none at all between 2 to 63 rows, between 64 to
512, or behind foreign cells; nearly all of it lies between those two paths. An engine prefills in chunks of any size
(fair shares, what a cached prefix leaves over), so its honest answers differ from the reference by that much.

Measuring takes SmolLM2 15 seconds and gives the same number every time, so it is remembered for this build of
llama.cpp, this model and the code that measures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.core.prompt import Tokens
from forerun.native import batch as batch_code
from forerun.native import context as context_code
from forerun.native.batch import Batch
from forerun.native.build import library_build
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel
from tests.support.measured import measured_once
from tests.support.tiny_models import ORDINARY_TOKENS

Logits = NDArray[np.float32]
Edit = Callable[[Logits, Sequence[int]], None]
"""Changes a row of logits in place, knowing the tokens before it: what a request's parameters do to them."""

_FOREIGN_CELLS = 256
_PROBED_ROWS = 24
_CHUNKS = (10_000, 17)
_CONTENDS = 4.0
"""A token whose logit is this far below the best is not going to take its place by rounding."""
_FOREIGN_ID, _PROBE_ID = 1, 0

PROBE_TEXT = """
The scheduler decides which requests run in a step and which rows of the batch they get. In the old town, by contrast,
the clock on the tower has shown ten past four since the winter of 1929, when 17 workers left the valley for good: "We
shall be back before the snow melts", they said. def area(radius): return 3.14159 * radius ** 2. Water boils at 100
degrees; lead melts at 327. Ceterum censeo Carthaginem esse delendam. First mix flour and butter, then add the eggs
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A delivered token that the model would not have chosen there."""

    index: int
    """Of the token in the answer."""
    token: int
    best: int
    short_by: float
    """How far its logit lies below the largest."""

    def __str__(self) -> str:
        return f"token {self.token} at {self.index} is {self.short_by:.2f} below {self.best}"


class GreedyOracle:
    """Re-evaluates answers of one model. Owns a context of `n_ctx` cells; closed before the model.

    `probes`: what the noise is measured on, PROBE_TEXT if nothing is given; it grows with the length of the context.
    `flash_attention` as in the engine that answers: it rounds otherwise.
    `prepare` is given the context before anything is decoded; the noise of such a model is measured each time.
    """

    def __init__(
        self,
        model: LlamaModel,
        n_ctx: int = 4096,
        probes: Sequence[Tokens] = (),
        prepare: Callable[[LlamaContext], None] | None = None,
        *,
        flash_attention: bool = False,
    ) -> None:
        self.model = model
        params = ContextParams(
            n_ctx=n_ctx,
            n_batch=n_ctx,
            n_seq_max=2,
            n_threads=1,
            n_threads_batch=1,
            flash_attention=flash_attention,
        )
        self._context = LlamaContext(model, params)
        self._batch = Batch(n_ctx)
        self._probes = probes or [model.vocabulary.tokenize(PROBE_TEXT, add_special=True, parse_special=False)]
        if prepare is None:
            self.noise = measured_once(self._rests_on(), self._measure)
        else:
            prepare(self._context)
            self.noise = self._measure()
        """How far tokens move towards the best one with the shape of batches and of memory, in logits."""

    # --- the rule ---

    def faults(
        self, prompt: Sequence[int] | Tokens, answer: Sequence[int], edit: Edit | None = None, *, slack: float = 1.0
    ) -> list[Fault]:
        """Where the answer is not greedy. `slack` scales the noise where `edit` scales logits."""
        known = np.concatenate([np.asarray(prompt, np.int32), np.asarray(answer, np.int32)])
        rows = self.rows(prompt, answer)
        found: list[Fault] = []
        for index, (row, token) in enumerate(zip(rows, answer, strict=True)):
            if edit is not None:
                edit(row, known[: len(prompt) + index].tolist())
            best = int(row.argmax())
            short_by = float(row[best] - row[token])
            if not short_by <= self.noise * slack:
                found.append(Fault(index, token, best, short_by))
        return found

    def check(
        self, prompt: Sequence[int] | Tokens, answer: Sequence[int], edit: Edit | None = None, *, slack: float = 1.0
    ) -> None:
        """Raise AssertionError, naming the tokens, for an answer that is not greedy."""
        assert len(answer), "an empty answer shows nothing"
        faults = self.faults(prompt, answer, edit, slack=slack)
        assert not faults, (
            f"noise {self.noise:.2f}, {len(prompt)} + {len(answer)} tokens: {'; '.join(map(str, faults))}"
        )

    def rows(self, prompt: Sequence[int] | Tokens, answer: Sequence[int]) -> Logits:
        """Logits of the plain run from which each answer token was to be chosen: shape (answer, vocabulary)."""
        return self._plain_run(np.concatenate([np.asarray(prompt, np.int32), answer[:-1]]), len(answer))

    def _plain_run(self, tokens: Tokens, outputs: int) -> Logits:
        batch, first = self._batch, len(tokens) - outputs
        self._context.clear_sequence(_PROBE_ID)
        batch.clear()
        batch.add_run(tokens[:first], 0, _PROBE_ID, last_output=False)
        for position in range(first, len(tokens)):
            batch.add_row(int(tokens[position]), position, _PROBE_ID)
        self._context.decode(batch)
        rows = self._context.logits.copy()
        self._context.clear_sequence(_PROBE_ID)
        return rows

    # --- measuring the noise ---

    def _rests_on(self) -> str:
        """All that the noise depends on."""
        with self.model.path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        sources = [Path(str(source)).read_bytes() for source in (__file__, batch_code.__file__, context_code.__file__)]
        code = hashlib.sha256(b"".join([*sources, *[probe.tobytes() for probe in self._probes]])).hexdigest()
        return f"{library_build()} {content} {code} {self._context.params}"

    def _measure(self) -> float:
        return max(self._noise_on(probe) for probe in self._probes)

    def _noise_on(self, probe: Tokens) -> float:
        start = len(probe) - _PROBED_ROWS
        reference = self._plain_run(probe, _PROBED_ROWS)
        move = 0.0
        for foreign in (0, _FOREIGN_CELLS):
            self._occupy(foreign)
            for chunk in _CHUNKS:
                self._context.clear_sequence(_PROBE_ID)
                for rows in (1, 2, 8):
                    if self._context.pos_max(_PROBE_ID) < start or not self._context.truncate_sequence(
                        _PROBE_ID, start
                    ):
                        self._context.clear_sequence(_PROBE_ID)
                        self._prefill(probe[:start], chunk)
                    move = max(move, _largest_move(reference, self._decode(probe, start, rows)))
        self._occupy(0)
        return move

    def _occupy(self, cells: int) -> None:
        """Let another sequence hold the first cells of an otherwise empty memory."""
        self._context.clear_sequence(_PROBE_ID)
        self._context.clear_sequence(_FOREIGN_ID)
        if cells:
            tokens = np.random.default_rng(0).integers(*ORDINARY_TOKENS, cells, dtype=np.int32)
            self._batch.clear()
            self._batch.add_run(tokens, 0, _FOREIGN_ID, last_output=False)
            self._context.decode(self._batch)

    def _prefill(self, tokens: Tokens, chunk: int) -> None:
        for start in range(0, len(tokens), chunk):
            self._batch.clear()
            self._batch.add_run(tokens[start : start + chunk], start, _PROBE_ID, last_output=False)
            self._context.decode(self._batch)

    def _decode(self, tokens: Tokens, start: int, rows: int) -> Logits:
        found: list[Logits] = []
        for first in range(start, len(tokens), rows):
            self._batch.clear()
            for position in range(first, first + rows):
                self._batch.add_row(int(tokens[position]), position, _PROBE_ID)
            self._context.decode(self._batch)
            found.append(self._context.logits.copy())
        return np.concatenate(found)

    def close(self) -> None:
        self._context.close()

    def __repr__(self) -> str:
        return f"GreedyOracle({self.model.path.name}, noise {self.noise:.2f})"


def without_ends(model: LlamaModel) -> Edit:
    """What `ignore_eos` does to logits."""
    ends = sorted(model.vocabulary.end_tokens)

    def ban(row: Logits, _known: Sequence[int]) -> None:
        row[ends] = -np.inf

    return ban


def _largest_move(reference: Logits, other: Logits) -> float:
    """How far any contender came closer to, or went away from, the best token of its row."""
    best = reference.argmax(axis=1)[:, None]
    gaps, moved = (np.take_along_axis(rows, best, axis=1) - rows for rows in (reference, other))
    return float(np.abs(gaps - moved)[gaps <= _CONTENDS].max())
