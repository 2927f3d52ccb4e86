"""The yardstick: the shortest loop over llama_decode that answers one prompt, with nothing of Forerun in it.

It runs in a process of its own: two OpenMP teams in one process are more threads than cores to libgomp, which then
spins less and makes both slow (19 instead of 9 ms a token here).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np
from llama_cpp import llama_cpp

from forerun.core.prompt import Tokens

_SILENT = llama_cpp.llama_log_callback(lambda *_: None)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds to the first token, and for the tokens after it."""

    prefill: float
    decode: float
    tokens: tuple[int, ...]


class BareLoop:
    """One context, greedy. One sequence is fed by llama_batch_get_one, several by one batch a step."""

    def __init__(self, path: Path, *, n_ctx: int, n_batch: int, threads: int, sequences: int = 1) -> None:
        llama_cpp.llama_log_set(_SILENT, None)
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, n_batch, n_batch, sequences
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._n_batch = n_batch
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def answer(self, prompt: Tokens, max_tokens: int) -> Timing:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        tokens = (ctypes.c_int32 * len(prompt))(*prompt.tolist())
        started = time.perf_counter()
        for start in range(0, len(prompt), self._n_batch):
            self._decode(ctypes.byref(tokens, 4 * start), min(self._n_batch, len(prompt) - start))
        output = [self._best()]
        first = time.perf_counter()
        while len(output) < max_tokens:
            self._decode(ctypes.byref(ctypes.c_int32(output[-1])), 1)
            output.append(self._best())
        return Timing(first - started, time.perf_counter() - first, tuple(output))

    def together(self, prompts: Sequence[Tokens], max_tokens: int) -> float:
        """Seconds for answers to several prompts, which fit one batch: all at once, then a row of each a step."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        batch = llama_cpp.llama_batch_init(self._n_batch, 0, 1)
        started = time.perf_counter()
        rows = [(sequence, prompt.tolist(), 0) for sequence, prompt in enumerate(prompts)]
        for _ in range(max_tokens):
            best = self._step(batch, rows)
            rows = [(one, [token], at + len(run)) for (one, run, at), token in zip(rows, best, strict=True)]
        seconds = time.perf_counter() - started
        llama_cpp.llama_batch_free(batch)
        return seconds

    def _step(self, batch: Any, rows: Sequence[tuple[int, list[int], int]]) -> list[int]:
        """Decode a run of tokens of each sequence, from a position on; the likeliest token after each."""
        ends: list[int] = []
        row = 0
        for sequence, tokens, position in rows:
            for offset, token in enumerate(tokens):
                batch.token[row], batch.pos[row] = token, position + offset
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                batch.logits[row] = offset == len(tokens) - 1
                row += 1
            ends.append(row - 1)
        batch.n_tokens = row
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        return [self._best(end) for end in ends]

    def _decode(self, tokens: object, count: int) -> None:
        batch = llama_cpp.llama_batch_get_one(ctypes.cast(tokens, ctypes.POINTER(ctypes.c_int32)), count)  # type: ignore[arg-type]
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")

    def _best(self, row: int = -1) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._n_vocab,)).argmax())


@dataclass(frozen=True, slots=True)
class BareSettings:
    path: Path
    n_ctx: int
    n_batch: int
    threads: int
    sequences: int = 1


class BareProcess:
    """A BareLoop in a child process, asleep between answers."""

    def __init__(self, settings: BareSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(settings, theirs), daemon=True)
        self._process.start()

    def answer(self, prompt: Tokens, max_tokens: int) -> Timing:
        self._connection.send((prompt, max_tokens))
        timing = self._connection.recv()
        assert isinstance(timing, Timing)
        return timing

    def together(self, prompts: Sequence[Tokens], max_tokens: int) -> float:
        self._connection.send((list(prompts), max_tokens))
        seconds = self._connection.recv()
        assert isinstance(seconds, float)
        return seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join()


def _serve(settings: BareSettings, connection: Connection) -> None:
    loop = BareLoop(
        settings.path,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        threads=settings.threads,
        sequences=settings.sequences,
    )
    while True:
        try:
            prompt, max_tokens = connection.recv()
        except EOFError:
            return
        several = isinstance(prompt, list)
        connection.send(loop.together(prompt, max_tokens) if several else loop.answer(prompt, max_tokens))
