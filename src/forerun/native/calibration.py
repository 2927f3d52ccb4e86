"""Measures what a decode costs as a function of its rows: the curve from which drafts are allocated."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import numpy as np
from llama_cpp import llama_cpp
from numpy.typing import NDArray

from forerun.core.costs import CostCurve
from forerun.devices import visible_devices
from forerun.native.context import ContextParams, LlamaContext

_ROWS = (
    *(1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48, 128, 96),
    *(5, 7, 9, 13, 15, 17, 20, 23, 25, 31, 33, 40, 65),
    *(256, 512),
)
"""The shape of the curve first, all of its length: a slow machine has no time for more. Then its teeth: kernels work on
tiles of 4 to 16 rows, so that 16 rows may cost less than 15, and 17 a fifth more. Then what fast machines take."""
_DEEP_ROWS = (64, 1, 16, 4, 32, 8, 2, 128, 256)
"""From 64 rows more can be told of fewer than the other way round: a row's part of what cells cost is less then."""
_LOGIT_ROWS = 64
"""Logits are told from a decode of so many rows, with and without."""
_SHALLOW, _DEEP, _COMPUTED = 256, 2048, 1024
"""Cells behind which decodes are timed; where memory cannot be copied, as many as can be computed in time."""
_FAR_APART = 256
"""Closer depths say less about what cells cost a few rows than the chunks say that were computed on the way."""
_CHUNK = 64
_REPEATS = 5
_PAIRS = 3
_FIRST_PASS = 0.6
"""Share of the time for measuring every row count once."""
_SEQUENCE, _SPARE = 0, 1


class Calibration:
    """Times decodes in an otherwise empty context, and leaves it empty."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._batch = context.new_batch()
        self._tokens = np.random.default_rng(0).integers(0, context.model.vocabulary.size, context.n_batch)
        self._state: NDArray[np.uint8] | None = None
        """What was computed, to be copied."""
        self._copied = 0
        """Cells that hold it again."""
        self._again: list[float] = []
        """Of each decode that was timed several times: how many times the fastest it took."""
        self._chunks: list[tuple[int, float]] = []
        """Cells held, and the milliseconds that a chunk took behind them."""

    def measure(self, budget: float = 6.0) -> CostCurve:
        """A curve from about `budget` seconds of decodes at most; few repeats, and fewer rows, on a slow machine.

        Two depths, since attention costs every row something for each cell: all row counts where a conversation begins,
        and a few further on. Where the machine is too slow to get far, what cells cost is told from the chunks on the
        way instead. The fastest of the repeats says what rows cost against each other, since whatever disturbs a decode
        makes it slower, and the median of all repeats how much slower than that steps usually are.

        Raises NativeStepError where a decode fails.
        """
        started = perf_counter()
        self._time(1, logits=1)  # the first decode of a context allocates
        shallow = self._deepen(_SHALLOW, budget / 4)
        timed = self._curve(_ROWS, started + 0.5 * budget)
        logit_ms = self._logit_ms(timed, started + 0.6 * budget)
        deep = self._deepen(_DEEP, budget / 5)
        if deep - shallow >= _FAR_APART:
            later = self._curve([rows for rows in _DEEP_ROWS if rows in timed], started + 1.1 * budget)
            slopes = _slopes(timed, later, deep - shallow)
        else:
            slopes = tuple(rows * slope_of(self._chunks) / _CHUNK for rows in timed)
        self._context.clear_sequence(_SEQUENCE)
        most, usual = self._context.max_logit_rows, self._usual()
        curve = {rows: (ms + max(0, rows - most) * logit_ms) * usual for rows, ms in timed.items()}
        slopes = tuple(slope * usual for slope in slopes)
        return CostCurve(tuple(curve), tuple(curve.values()), slopes, shallow, logit_ms * usual)

    def _logit_ms(self, timed: Mapping[int, float], end: float) -> float:
        """What the logits of a row cost: the median over pairs of decodes, with and without. 0 where that is noise."""
        rows = max((rows for rows in timed if rows <= min(_LOGIT_ROWS, self._context.max_logit_rows)), default=1)
        if rows == 1:
            return 0.0
        more: list[float] = []
        while len(more) < _PAIRS and (not more or perf_counter() < end):
            more.append(self._time(rows) - self._time(rows, logits=1))
        return max(0.0, float(np.median(more))) * 1e3 / (rows - 1)

    def _usual(self) -> float:
        """How many times the fastest of its repeats a decode takes usually."""
        return float(np.median(self._again)) if self._again else 1.0

    def _deepen(self, depth: int, budget: float) -> int:
        """Let `depth` cells be used, as far as the context has them; how many they are.

        A few are computed, and what the sequence holds is copied again and again where that is possible: attention does
        not mind that positions are there twice. Otherwise more is computed, for `budget` seconds at most.
        """
        context = self._context
        if not context.memory.is_dense or context.params.n_seq_max <= _SPARE:
            return self._fill(min(depth, _COMPUTED), budget)
        held = self._held() or self._fill(min(depth, _CHUNK), budget)
        if self._state is None:
            self._state = np.empty(context.state_size(_SEQUENCE), np.uint8)
            context.get_sequence_state(_SEQUENCE, self._state)
        while held + self._copied + held <= min(depth, context.n_ctx // 2):
            context.set_sequence_state(_SPARE, self._state)
            context.copy_sequence(_SPARE, _SEQUENCE)
            context.clear_sequence(_SPARE)
            self._copied += held
        return held + self._copied

    def _fill(self, depth: int, budget: float) -> int:
        """Let the sequence hold `depth` cells, or what can be computed in `budget` seconds; how many that are."""
        started, most = perf_counter(), min(depth, self._context.n_ctx // 2)
        while (held := self._held()) < most and perf_counter() - started < budget:
            rows, before = min(self._context.n_batch, _CHUNK, most - held), perf_counter()
            self._decode(rows, held, logits=1)
            float(self._context.logits[0, 0])  # waits for the decode
            if rows == _CHUNK:
                self._chunks.append((held, (perf_counter() - before) * 1e3))
        return self._held()

    def _curve(self, counts: Sequence[int], end: float) -> dict[int, float]:
        """Milliseconds by rows, as far as they can be measured before `end` (on the clock of perf_counter). As many of
        the rows have logits as can have.

        All row counts in turn, and that again while there is time: what disturbs the machine for a moment then hits
        one of several measurements of each count, not all of those of one.
        """
        first = self._first_pass(counts, perf_counter() + _FIRST_PASS * (end - perf_counter()))
        times = {rows: [ms] for rows, ms in sorted(first.items())}
        for _ in range(_REPEATS - 1):
            for rows, known in times.items():
                if known[0] <= (end - perf_counter()) * 1e3:
                    known.append(self._time(rows) * 1e3)
        self._again += [ms / min(known) for known in times.values() if len(known) > 1 for ms in known]
        return {rows: min(known) for rows, known in times.items()}

    def _first_pass(self, counts: Sequence[int], end: float) -> dict[int, float]:
        """As many row counts as can be measured before `end`, the first ones first, one at least."""
        curve: dict[int, float] = {}
        most = min(self._context.n_batch, self._context.n_ctx - self._held() - self._copied)
        for rows in counts:
            if rows <= most and (not curve or _at_most(curve, rows) <= (end - perf_counter()) * 1e3):
                curve[rows] = self._time(rows) * 1e3
        return curve

    def _time(self, rows: int, logits: int | None = None) -> float:
        """Seconds of one decode of `rows` rows behind what is held, the last `logits` with logits (None: as many as can
        have them).

        They are taken back where that is possible; otherwise the next ones are a little deeper.
        """
        held = self._held()
        if held + self._copied + rows > self._context.n_ctx:
            self._context.clear_sequence(_SEQUENCE)
            held = 0
        started = perf_counter()
        self._decode(rows, held, logits=min(rows, self._context.max_logit_rows) if logits is None else logits)
        float(self._context.logits[0, 0])
        seconds = perf_counter() - started
        self._context.truncate_sequence(_SEQUENCE, held)
        return seconds

    def _held(self) -> int:
        return self._context.pos_max(_SEQUENCE) + 1

    def _decode(self, rows: int, position: int, *, logits: int) -> None:
        """Rows from `position` on, the last `logits` of them (one at least) with logits."""
        self._batch.clear()
        without = rows - logits
        if without:
            self._batch.add_run(self._tokens[:without].astype(np.int32), position, _SEQUENCE, last_output=False)
        for row in range(without, rows):
            self._batch.add_row(int(self._tokens[row]), position + row, _SEQUENCE)
        self._context.decode(self._batch)


def _at_most(curve: Mapping[int, float], rows: int) -> float:
    """What a decode takes that is as dear a row as a smaller one, or else as dear as a larger one."""
    smaller = max((known for known in curve if known <= rows), default=0)
    return curve[smaller] * rows / smaller if smaller else min(curve.values())


def _slopes(curve: Mapping[int, float], later: Mapping[int, float], cells: int) -> tuple[float, ...]:
    """Milliseconds that 1,000 cells cost decodes of each row count in `curve`, from those `cells` further on; more rows
    than were measured there cost as much a row."""
    growth = np.array([max(0.0, later[rows] - curve[rows]) for rows in later]) / cells * 1000
    counts = np.array(list(curve))
    within = np.interp(counts, [0, *later], [0.0, *growth]) * np.maximum(counts / max(later), 1.0)
    return tuple(within.tolist())


def slope_of(times: Sequence[tuple[int, float]]) -> float:
    """Milliseconds that 1,000 cells add, from times behind several numbers of cells: the median over all pairs, which a
    disturbed measurement hardly moves (Theil and Sen's estimator). 0 where there are not two."""
    pairs = [(one, other) for index, one in enumerate(times) for other in times[index + 1 :] if one[0] != other[0]]
    slopes = [(other[1] - one[1]) / (other[0] - one[0]) for one, other in pairs]
    return max(0.0, float(np.median(slopes))) * 1000 if slopes else 0.0


def calibration_key(path: Path, params: ContextParams, n_gpu_layers: int) -> str:
    """Everything a curve depends on: the file, the build, the machine, the settings."""
    file = os.stat(path)
    machine = (platform.machine(), _processor(), os.cpu_count(), os.environ.get("GOMP_SPINCOUNT"), visible_devices())
    settings = (params.n_threads, params.n_threads_batch, params.n_ubatch, params.type_k, params.type_v)
    build = (version("llama-cpp-python"), llama_cpp.llama_print_system_info())
    model = (os.path.realpath(path), file.st_size, file.st_mtime_ns, n_gpu_layers)
    layers = ("mtp",) if params.is_mtp else ()
    return repr((5, model, build, machine, settings, params.flash_attention, params.offload_kqv, *layers))


def _processor() -> str:
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    except OSError:  # not Linux
        names = []
    return names[0] if names else platform.processor()
