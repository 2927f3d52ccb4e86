"""Measures what a decode costs as a function of its rows: the curve from which drafts are allocated."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import numpy as np
from llama_cpp import llama_cpp

from forerun.core.costs import CostCurve
from forerun.native.context import ContextParams, LlamaContext

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_REPEATS = 5
_SEQUENCE = 0


class Calibration:
    """Times decodes in an otherwise empty context, and leaves it empty."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._batch = context.new_batch()
        self._tokens = np.random.default_rng(0).integers(0, context.model.vocabulary.size, context.n_batch)

    def measure(self, budget: float = 4.0) -> CostCurve:
        """A curve from about `budget` seconds of decodes at most; few repeats, and fewer rows, on a slow machine.

        The fastest of the repeats counts: whatever disturbs a decode makes it slower.

        Raises NativeStepError where a decode fails.
        """
        started = perf_counter()
        self._time(1, 0)  # the first decode of a context allocates
        rows: list[int] = []
        seconds: list[float] = []
        for count in (count for count in _ROWS if count <= min(self._context.n_batch, self._context.n_ctx)):
            left = started + budget - perf_counter()
            if rows and count * seconds[-1] / rows[-1] > left:
                break
            rows.append(count)
            seconds.append(self._fastest(count, left))
        slope = min(self._slope(seconds[0], budget / 8), seconds[0] * 1e3)
        self._context.clear_sequence(_SEQUENCE)
        return CostCurve(tuple(rows), tuple(second * 1e3 for second in seconds), slope)

    def _fastest(self, rows: int, left: float) -> float:
        """Seconds of a decode of `rows` rows over an empty memory."""
        times = [self._time(rows, 0)]
        while len(times) < _REPEATS and sum(times) + times[-1] < left / 8:
            times.append(self._time(rows, 0))
        return min(times)

    def _slope(self, empty: float, budget: float) -> float:
        """Milliseconds a row costs more for every 1,000 cells."""
        self._context.clear_sequence(_SEQUENCE)
        depth, started = 0, perf_counter()
        most = min(1024, self._context.n_ctx - 1)
        while depth < most and perf_counter() - started < budget:
            rows = min(self._context.n_batch, 128, most - depth)
            self._decode(rows, depth, last_output=True)
            depth += rows
        if not depth:
            return 0.0
        deep = min(self._time(1, depth + repeat) for repeat in range(min(_REPEATS, self._context.n_ctx - depth)))
        return max(0.0, (deep - empty) * 1e3 / (depth / 1000))

    def _time(self, rows: int, depth: int) -> float:
        """Seconds of one decode of `rows` rows behind `depth` cells, all with logits, as verification needs them.

        Over an empty memory, or going on where the last decode ended: not every memory can be cut.
        """
        if not depth:
            self._context.clear_sequence(_SEQUENCE)
        started = perf_counter()
        self._decode(rows, depth, last_output=False)
        float(self._context.logits[0, 0])
        return perf_counter() - started

    def _decode(self, rows: int, position: int, *, last_output: bool) -> None:
        self._batch.clear()
        if last_output:
            self._batch.add_run(self._tokens[:rows].astype(np.int32), position, _SEQUENCE, last_output=True)
        else:
            for row in range(rows):
                self._batch.add_row(int(self._tokens[row]), position + row, _SEQUENCE)
        self._context.decode(self._batch)


def calibration_key(path: Path, params: ContextParams, n_gpu_layers: int) -> str:
    """Everything a curve depends on: the file, the build, the machine, the settings."""
    file = os.stat(path)
    machine = (platform.machine(), _processor(), os.cpu_count(), os.environ.get("GOMP_SPINCOUNT"))
    settings = (params.n_threads, params.n_threads_batch, params.n_ubatch, params.type_k, params.type_v)
    build = (version("llama-cpp-python"), llama_cpp.llama_print_system_info())
    model = (os.path.realpath(path), file.st_size, file.st_mtime_ns, n_gpu_layers)
    layers = ("mtp",) if params.is_mtp else ()
    return repr((1, model, build, machine, settings, params.flash_attention, params.offload_kqv, *layers))


def _processor() -> str:
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    except OSError:  # not Linux
        names = []
    return names[0] if names else platform.processor()
