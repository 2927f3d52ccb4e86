"""Loading a model file."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from llama_cpp import llama_cpp

from forerun.core.memory import MemoryKind
from forerun.errors import ModelLoadError
from forerun.native.log import native_log, route_native_log
from forerun.native.vocabulary import NativeVocabulary

_DESCRIPTION_BUFFER = 256
_MROPE = (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE)


@cache
def start_backend() -> None:
    """Initialise llama.cpp once per process, its log routed to `logging`."""
    route_native_log()
    llama_cpp.llama_backend_init()


class LlamaModel:
    """A loaded model: weights and vocabulary. Shared by any number of contexts; closed after them.

    Build with `load`.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.handle = handle
        """The native llama_model; for forerun.native only."""
        self._free = weakref.finalize(self, llama_cpp.llama_model_free, handle)
        self.vocabulary = NativeVocabulary(handle, self)
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(handle)
        """Longest context the model was trained for, in tokens."""
        self.n_swa: int = llama_cpp.llama_model_n_swa(handle)
        """Width of the sliding window in tokens; 0 without one."""
        self.is_recurrent: bool = llama_cpp.llama_model_is_recurrent(handle)
        self.is_hybrid: bool = llama_cpp.llama_model_is_hybrid(handle)
        self.has_gaps: bool = llama_cpp.llama_model_rope_type(handle) in _MROPE
        """Whether positions may be left out (M-RoPE): a picture takes more of them than its rows are at."""
        self.description = _description(handle)
        self.size_bytes: int = llama_cpp.llama_model_size(handle)
        """Bytes of all tensors."""

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        n_gpu_layers: int = -1,
        progress: Callable[[float], None] | None = None,
        vocab_only: bool = False,
        with_mtp: bool = False,
    ) -> Self:
        """Load a GGUF file, its vocabulary alone, or its MTP layers too, where asked.

        `n_gpu_layers`: how many layers go to a GPU if there is one, all when negative. `progress` is told the loaded
        share in [0, 1], in the caller's thread; an exception from it (or KeyboardInterrupt at any time) ends the load
        and is raised here. Raises ModelLoadError, naming the path and what llama.cpp said.
        """
        start_backend()
        mark = native_log.mark()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.vocab_only = vocab_only
        if with_mtp:
            params.load_mtp = True
        handle = _load_interruptibly(path, params, progress)
        if handle is None:
            reasons = "; ".join(native_log.errors_since(mark)) or "llama.cpp gave no reason"
            raise ModelLoadError(f"{path}: llama.cpp could not load this model: {reasons}")
        return cls(path, handle)

    @property
    def memory(self) -> MemoryKind:
        """Where a sequence's memory can be cut."""
        return MemoryKind(window=self.n_swa, has_state=self.is_recurrent or self.is_hybrid)

    def close(self) -> None:
        """Free the model; safe to call twice. Its contexts and its vocabulary must not be used afterwards."""
        self._free()

    def __repr__(self) -> str:
        return f"LlamaModel({self.path.name}, {self.description}, {self.size_bytes / 1e6:.0f} MB)"


def _description(handle: int) -> str:
    buffer = ctypes.create_string_buffer(_DESCRIPTION_BUFFER)
    llama_cpp.llama_model_desc(handle, buffer, _DESCRIPTION_BUFFER)
    return buffer.value.decode("utf-8", "replace")


def _load_interruptibly(path: Path, params: Any, progress: Callable[[float], None] | None) -> int | None:
    """Load on a thread of its own, report progress on this one.

    Python runs signal handlers in the main thread: were the native callback called there, KeyboardInterrupt would be
    raised before its first line, where nothing can catch it, and ctypes would drop it.
    """
    reports: SimpleQueue[float | None] = SimpleQueue()
    cancelled = threading.Event()
    loaded: list[int | None] = []

    def report(fraction: float, _user_data: int | None) -> bool:
        reports.put(fraction)
        return not cancelled.is_set()

    def load() -> None:
        try:
            loaded.append(llama_cpp.llama_model_load_from_file(os.fsencode(path), params))
        finally:
            reports.put(None)

    params.progress_callback = llama_cpp.llama_progress_callback(report)
    thread = threading.Thread(target=load, name="forerun-load", daemon=True)
    thread.start()
    try:
        while (fraction := reports.get()) is not None:
            if progress is not None:
                progress(fraction)
        thread.join()
    except BaseException:
        cancelled.set()
        thread.join()
        with suppress(IndexError):
            if (handle := loaded.pop()) is not None:
                llama_cpp.llama_model_free(handle)
        raise
    return loaded[0] if loaded else None
