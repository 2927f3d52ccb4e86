"""A model's context: its KV memory, decoding into it, and the logits that come out."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_cpp import llama_cpp
from numpy.typing import NDArray

from forerun.core.memory import DENSE
from forerun.core.step import FailureKind
from forerun.errors import EngineError, ModelLoadError
from forerun.native.batch import Batch
from forerun.native.log import native_log
from forerun.native.media_batch import MediaBatch
from forerun.native.model import LlamaModel
from forerun.native.nextn import nextn_width
from forerun.native.uninterrupted import uninterrupted

CACHE_TYPES: dict[str, int] = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
}
"""Number formats of the KV memory, by llama.cpp's names."""

_DECODE_FAILURES = {1: FailureKind.NO_ROOM, 2: FailureKind.ABORTED}

# The binding's llama_get_logits returns a ctypes pointer, slow to turn into an array; its address is enough.
_logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
    ctypes.cast(llama_cpp.llama_get_logits, ctypes.c_void_p).value or 0
)


class NativeStepError(EngineError):
    """A native call failed in a way that a step reports; `kind` says how."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParams:
    """How a context is made. The KV memory is always unified: one pool of cells, and forks share cells."""

    n_ctx: int
    """Cells, in tokens, all sequences together. llama.cpp rounds it up; `LlamaContext.n_ctx` is what it became."""
    n_threads: int
    """CPU threads for decodes of one row."""
    n_threads_batch: int
    """CPU threads for decodes of several rows."""
    n_batch: int = 512
    """Most rows of one decode."""
    n_ubatch: int = 512
    """Most rows computed at a time; larger needs more memory."""
    n_seq_max: int = 64
    """Sequence ids, at most 256."""
    max_logit_rows: int = 0
    """Most rows of one decode that ask for logits, at least `n_seq_max`; 0: all of them. Each takes the vocabulary's
    width twice: where it is computed, and where it is read."""
    flash_attention: bool = False
    """Faster on a GPU; on a CPU slower for 2 to 63 rows over many cells (decision 37)."""
    type_k: str = "f16"
    type_v: str = "f16"
    """A key of CACHE_TYPES."""
    offload_kqv: bool = True
    """Keep the KV memory on the GPU if there is one."""
    is_mtp: bool = False
    """Run the model's MTP (NextN) layer instead of the model: rows are tokens with hidden states (native/mtp.py)."""
    embeds: bool = False
    """Give vectors of texts instead of logits (native/embedding.py)."""

    def native(self) -> Any:
        """As llama_context_params. Raises KeyError for an unknown cache type."""
        params = llama_cpp.llama_context_default_params()
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch", "offload_kqv"):
            setattr(params, name, getattr(self, name))
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if self.flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.n_outputs_max = self.max_logit_rows
        params.type_k = CACHE_TYPES[self.type_k]
        params.type_v = CACHE_TYPES[self.type_v]
        params.kv_unified = True
        # With a unified memory and many ids the short one would not be much smaller, and cuts would soon be unsound.
        params.swa_full = True
        if self.embeds:
            params.embeddings = True
            # Encoders are of all shapes: llama.cpp knows for which of them it can.
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
        if self.is_mtp:
            params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
        params.no_perf = True
        return params

    def numbers(self) -> dict[str, int | float | bool]:
        """What of `native` is a number or yes or no: all that a context's size depends on, ready to be told as JSON."""
        params = self.native()
        values = {name: getattr(params, name) for name, *_ in params._fields_}
        return {name: value for name, value in values.items() if isinstance(value, int | float)}


class LlamaContext:
    """One context of a model. Used by one thread, except for `request_abort`.

    Memory operations take a sequence id below `params.n_seq_max` and positions in the sequence. Raises ModelLoadError
    where the context cannot be made (memory, parameters).
    """

    def __init__(self, model: LlamaModel, params: ContextParams) -> None:
        self.model = model
        self.params = params
        # The NextN layers of all models that may draft are plain attention.
        self.memory = DENSE if params.is_mtp else model.memory
        mark = native_log.mark()
        native = params.native()
        handle = uninterrupted(lambda: llama_cpp.llama_init_from_model(model.handle, native), llama_cpp.llama_free)
        if not handle:
            reasons = "; ".join(native_log.errors_since(mark)) or "llama.cpp gave no reason"
            raise ModelLoadError(f"{model.path}: no context of {params.n_ctx} tokens could be made: {reasons}")
        # The finalizer holds the model: it must not be freed before its contexts.
        self._handle: int = handle
        self.after_decode: Callable[[Batch], None] | None = None
        """Told of every batch that was decoded, before anything is read of it."""
        self._free = weakref.finalize(self, _free_context, handle, model)
        self._native_memory: int = llama_cpp.llama_get_memory(self._handle)
        self.n_ctx: int = llama_cpp.llama_n_ctx(self._handle)
        self.n_batch: int = llama_cpp.llama_n_batch(self._handle)
        self.max_logit_rows = params.max_logit_rows or self.n_batch
        self._most_threads: int | None = None
        self._n_vocab = model.vocabulary.size
        self._n_outputs = 0
        self._views: dict[tuple[int, int], NDArray[np.float32]] = {}
        self._whole_from: dict[int, int] = {}
        """Where a restored sequence's sliding window is whole again, if it has gaps before that."""
        self._abort_flag = ctypes.create_string_buffer(2)
        llama_cpp.llama_set_abort_callback(self._handle, _STRLEN, ctypes.addressof(self._abort_flag))

    @property
    def handle(self) -> int:
        """The native llama_context; for forerun.native only."""
        return self._handle

    def limit_threads(self, most: int) -> None:
        """Compute with so many threads at most from the next decode on: what comes out is the same to the last bit, but
        for flash attention on a CPU."""
        if most == self._most_threads:
            return
        self._most_threads = most
        llama_cpp.llama_set_n_threads(
            self._handle, min(most, self.params.n_threads), min(most, self.params.n_threads_batch)
        )

    # --- decoding ---

    def new_batch(self) -> Batch:
        """A batch as large as this context takes."""
        return Batch(self.n_batch, nextn_width(self.model.handle) if self.params.is_mtp else 0)

    def decode(self, batch: Batch | MediaBatch) -> None:
        """Evaluate a batch (1 to n_batch rows, max_logit_rows of them with logits).

        Raises NativeStepError: NO_ROOM leaves the memory as it was; ABORTED and FAILED leave what was computed before,
        so every sequence of the batch may hold some of its rows or none.
        """
        if not 0 < batch.rows <= self.n_batch:  # native code would end the process
            raise ValueError(f"a decode takes 1 to {self.n_batch} rows, got {batch.rows}")
        if batch.outputs > self.max_logit_rows:  # the same
            raise ValueError(f"{self.max_logit_rows} rows can have logits, {batch.outputs} ask for them")
        self._n_outputs = 0
        code: int = llama_cpp.llama_decode(self._handle, batch.native)
        if code == 0:
            self._n_outputs = batch.outputs
            if self.after_decode is not None and isinstance(batch, Batch):
                self.after_decode(batch)
            return
        kind = _DECODE_FAILURES.get(code, FailureKind.FAILED)
        if kind is FailureKind.ABORTED:
            self._abort_flag[0] = b"\0"
        raise NativeStepError(kind, f"{kind}: {batch.rows} rows, llama_decode returned {code}")

    def decode_together(self, batch: MediaBatch) -> None:
        """The same for rows of which each looks at all others."""
        llama_cpp.llama_set_causal_attn(self._handle, False)
        try:
            self.decode(batch)
        finally:
            llama_cpp.llama_set_causal_attn(self._handle, True)

    def warm_up(self) -> None:
        """Evaluate one row and forget it: weights are read in and buffers made now, not by the first request.

        What cannot be computed at all raises ModelLoadError.
        """
        mark = native_log.mark()
        batch = self.new_batch()
        batch.add_row(0, 0, 0)
        llama_cpp.llama_set_warmup(self._handle, True)
        code: int = llama_cpp.llama_decode(self._handle, batch.native)
        llama_cpp.llama_synchronize(self._handle)
        llama_cpp.llama_set_warmup(self._handle, False)
        self.clear_sequence(0)
        if code:
            reasons = "; ".join(native_log.errors_since(mark)) or f"llama_decode returned {code}"
            raise ModelLoadError(f"{self.model.path}: nothing can be computed with this model here: {reasons}")

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of the last decode's output rows, in order: shape (outputs, vocabulary).

        A writable view of native memory: valid until the next decode.
        """
        address: int = _logits_address(self._handle)
        view = self._views.get((address, self._n_outputs))
        if view is None:
            view = self._view(address, self._n_outputs)
        return view

    def _view(self, address: int, rows: int) -> NDArray[np.float32]:
        if any(known != address for known, _ in self._views):  # the buffer has moved
            self._views.clear()
        buffer = (ctypes.c_float * (rows * self._n_vocab)).from_address(address)
        view: NDArray[np.float32] = np.ctypeslib.as_array(buffer).reshape(rows, self._n_vocab)
        self._views[address, rows] = view
        return view

    def request_abort(self) -> None:
        """End the running decode, or else the next one, with ABORTED (on a CPU; a GPU finishes it). Any thread."""
        self._abort_flag[0] = b"\1"

    # --- memory ---

    def clear_sequence(self, sequence_id: int) -> None:
        """Forget all of a sequence."""
        llama_cpp.llama_memory_seq_rm(self._native_memory, sequence_id, -1, -1)
        self._whole_from.pop(sequence_id, None)

    def truncate_sequence(self, sequence_id: int, position: int) -> bool:
        """Keep what lies before `position`. False, with nothing changed, where this memory cannot be cut there.

        llama.cpp cuts a sliding-window memory anywhere, also where cells before the cut are gone that the next token
        looks at; the answer is then silently wrong. Cells behind the window get lost when others need room, even in a
        full-size memory (`swa_full`).
        """
        if not self.can_cut(sequence_id, position):
            return False
        removed: bool = llama_cpp.llama_memory_seq_rm(self._native_memory, sequence_id, position, -1)
        if position == 0:
            self._whole_from.pop(sequence_id, None)
        return removed

    def can_cut(self, sequence_id: int, position: int) -> bool:
        """Whether a sequence, or a copy of it, can go on from `position`."""
        first = self.whole_from(sequence_id) if self.memory.window else 0
        if sequence_id in self._whole_from and first > max(0, position - self.memory.window + 1):
            return position == 0
        held = position if self.ends_at(sequence_id, position) else self.pos_max(sequence_id) + 1
        return self.memory.can_cut(position, held=held, held_from=first)

    def ends_at(self, sequence_id: int, position: int) -> bool:
        """Whether what a sequence holds goes on at a position; with gaps that may be behind the last one held."""
        end = self.pos_max(sequence_id) + 1
        return end == position or (self.model.has_gaps and 0 < end < position)

    def whole_from(self, sequence_id: int) -> int:
        """First position from which a sliding window's cells are all there; -1 where the sequence is empty."""
        return max(self.pos_min(sequence_id), self._whole_from.get(sequence_id, -1))

    def gap_until(self, sequence_id: int) -> int:
        """Where the last gap ends that was noted for a sequence; 0 without one."""
        return self._whole_from.get(sequence_id, 0)

    def note_gap(self, sequence_id: int, whole_from: int) -> None:
        """From now on a sequence with a sliding window counts as whole from a position on: cells before it are not
        there, though others may be further in front. Until it is cleared."""
        self._whole_from[sequence_id] = max(whole_from, self._whole_from.get(sequence_id, 0))

    def held_from(self) -> dict[int, int]:
        """First position that is still there, of every sequence whose sliding window has lost some."""
        if not self.memory.window:
            return {}
        firsts = {sequence_id: self.whole_from(sequence_id) for sequence_id in range(self.params.n_seq_max)}
        return {sequence_id: first for sequence_id, first in firsts.items() if first > 0}

    def copy_sequence(self, source_id: int, target_id: int, stop: int = -1, start: int = 0) -> None:
        """Let `target_id` share the source's cells at positions in [start, stop); a negative stop is the end."""
        llama_cpp.llama_memory_seq_cp(self._native_memory, source_id, target_id, start, stop)
        if source_id in self._whole_from:
            self.note_gap(target_id, self._whole_from[source_id])

    def pos_min(self, sequence_id: int) -> int:
        """The first position held, -1 where the sequence is empty."""
        position: int = llama_cpp.llama_memory_seq_pos_min(self._native_memory, sequence_id)
        return position

    def pos_max(self, sequence_id: int) -> int:
        """The last position held, -1 where the sequence is empty."""
        position: int = llama_cpp.llama_memory_seq_pos_max(self._native_memory, sequence_id)
        return position

    # --- sequence states ---

    def state_size(self, sequence_id: int) -> int:
        """Bytes of what a sequence holds."""
        size: int = llama_cpp.llama_state_seq_get_size_ext(self._handle, sequence_id, 0)
        return size

    def get_sequence_state(self, sequence_id: int, out: NDArray[np.uint8]) -> None:
        """Write what a sequence holds to `out`, of `state_size` bytes, in a format of this model, these parameters and
        this llama.cpp. Raises NativeStepError."""
        written: int = llama_cpp.llama_state_seq_get_data_ext(
            self._handle, _bytes_pointer(out), out.size, sequence_id, 0
        )
        if written != out.size or not out.size:
            raise NativeStepError(
                FailureKind.FAILED, f"state of sequence {sequence_id}: {written} of {out.size} bytes were written"
            )

    def set_sequence_state(self, sequence_id: int, state: NDArray[np.uint8]) -> None:
        """Replace what a sequence holds. Raises NativeStepError (NO_ROOM: too few free cells); it is then empty."""
        mark = native_log.mark()
        read: int = llama_cpp.llama_state_seq_set_data_ext(
            self._handle, _bytes_pointer(state), state.size, sequence_id, 0
        )
        if read != state.size or not state.size:
            self.clear_sequence(sequence_id)  # a failure half-way leaves written cells behind
            reasons = native_log.errors_since(mark)
            is_full = any("available cells" in line or "not enough cells" in line for line in reasons)
            raise NativeStepError(
                FailureKind.NO_ROOM if is_full else FailureKind.FAILED,
                f"state of sequence {sequence_id}: {read} of {state.size} bytes were accepted; {'; '.join(reasons)}",
            )

    def close(self) -> None:
        """Free the context; safe to call twice. No other method, and no logits view, may be used afterwards."""
        self._free()

    def __repr__(self) -> str:
        return f"LlamaContext({self.model.path.name}, n_ctx={self.n_ctx}, n_batch={self.n_batch})"


def _free_context(handle: int, _model: LlamaModel) -> None:
    llama_cpp.llama_free(handle)


def _bytes_pointer(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _strlen() -> Any:
    """C's strlen as llama.cpp's abort callback: over the flag's two bytes it answers 0 or 1.

    The callback runs after every node of the graph, about a thousand times a step: a Python function there, taking the
    interpreter lock each time, would slow every step by a tenth.
    """
    try:
        library = ctypes.CDLL(None)
    except TypeError:  # Windows
        library = ctypes.CDLL("msvcrt")
    return llama_cpp.ggml_abort_callback(ctypes.cast(library.strlen, ctypes.c_void_p).value or 0)


_STRLEN = _strlen()
