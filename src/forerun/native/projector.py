"""A model's projector (mmproj): from a picture or a recording to what the model reads of it, through llama.cpp's mtmd.

    item ──place──► [ text tokens | chunk | text tokens ... ]      preprocessed; tens of milliseconds
                                        └──encode──► embeddings       a row for each logical token; seconds

The tokens around and between chunks are the model's own marks (`<|vision_start|>`, rows of slices). A long recording is
several chunks, half a minute each with most models.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
from llama_cpp import llama_cpp, mtmd_cpp
from numpy.typing import NDArray

from forerun.core.prompt import Tokens, as_tokens
from forerun.errors import InvalidRequestError, ModelLoadError
from forerun.media.item import Media
from forerun.media.kind import MediaKind, why_unread
from forerun.media.picture import Picture
from forerun.media.sound import Sound
from forerun.native.encoded import Embeddings, Geometry
from forerun.native.log import log_callback, native_log
from forerun.native.model import LlamaModel
from forerun.native.resampling import RESAMPLER, resampled
from forerun.native.uninterrupted import uninterrupted

_CLOSED = "the engine was closed"


class MediaChunk:
    """A preprocessed span, ready to be encoded. Owns native memory: about 12 bytes a pixel of the resized picture, or
    some 50 KB a second of a recording."""

    def __init__(self, handle: int, geometry: Geometry, *, positions: int, is_causal: bool) -> None:
        self.handle = handle
        self.geometry = geometry
        self.tokens: int = geometry.offsets.shape[1]
        """Rows: logical tokens."""
        self.positions = positions
        """Native positions that it takes."""
        self.is_causal = is_causal
        """False: its rows look at all others of the span, so that it is evaluated as one."""
        self._free = weakref.finalize(self, mtmd_cpp.mtmd_input_chunk_free, handle)

    def __repr__(self) -> str:
        return f"MediaChunk({self.tokens} tokens, {self.positions} positions)"


class Projector:
    """A loaded projector. `place` may be called by any thread, `encode` by one; closed before its model.

    Raises ModelLoadError, naming the file and what llama.cpp said.
    """

    def __init__(self, path: Path, handle: int, model: LlamaModel, identity: str) -> None:
        self.path = path
        self.identity = identity
        """Of all that embeddings depend on beside the item."""
        self._handle = handle
        self._model = model
        self._placing = threading.Lock()
        self._encoding = threading.Lock()
        self._is_closed = False
        self._free = weakref.finalize(self, _free, handle, model)
        self._width: int = llama_cpp.llama_model_n_embd_inp(model.handle)
        self._marker: bytes = mtmd_cpp.mtmd_get_marker(handle)
        self.has_vision: bool = mtmd_cpp.mtmd_support_vision(handle)
        self._audio_rate: int = mtmd_cpp.mtmd_get_audio_sample_rate(handle)
        """Samples a second; below 0 where it hears nothing."""
        self.is_causal: bool = not mtmd_cpp.mtmd_decode_use_non_causal(handle, None)
        """Whether spans may be evaluated in parts."""
        self.uses_mrope: bool = mtmd_cpp.mtmd_decode_use_mrope(handle)

    @classmethod
    def load(cls, path: Path, model: LlamaModel, identity: str, *, n_threads: int, use_gpu: bool = True) -> Self:
        """Load a projector for a model. `identity`: of the file and the library."""
        mtmd_cpp.mtmd_helper_log_set(log_callback, None)
        mark = native_log.mark()
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.n_threads = n_threads
        params.print_timings = False
        params.warmup = False
        file = os.fsencode(path)
        handle = uninterrupted(lambda: mtmd_cpp.mtmd_init_from_file(file, model.handle, params), mtmd_cpp.mtmd_free)
        if handle is None:
            reasons = "; ".join(native_log.errors_since(mark)) or "llama.cpp gave no reason"
            raise ModelLoadError(f"{path}: llama.cpp could not load this projector for {model.path.name}: {reasons}")
        return cls(path, handle, model, identity)

    @property
    def has_audio(self) -> bool:
        return self._audio_rate > 0

    # --- from items to chunks ---

    def place(self, item: Media) -> list[Tokens | MediaChunk]:
        """An item as the model reads it. Raises InvalidRequestError where it cannot be preprocessed."""
        with self._placing:
            if self._is_closed:
                raise InvalidRequestError("", _CLOSED)
            bitmap = self._bitmap(item)
            chunks = mtmd_cpp.mtmd_input_chunks_init()
            try:
                self._tokenize(bitmap, chunks)
                return list(self._read(chunks))
            finally:
                mtmd_cpp.mtmd_input_chunks_free(chunks)
                mtmd_cpp.mtmd_bitmap_free(bitmap)

    def _bitmap(self, item: Media) -> int:
        """mtmd's copy of an item, to be freed."""
        match item:
            case Picture():
                pixels = ctypes.cast(ctypes.c_char_p(item.rgb), ctypes.POINTER(ctypes.c_uint8))
                bitmap: int = mtmd_cpp.mtmd_bitmap_init(item.width, item.height, pixels)
            case Sound():
                if not self.has_audio:  # llama.cpp looks only later, and would be given a rate of -1
                    raise InvalidRequestError("", why_unread(item.kind, {MediaKind.IMAGE}))
                wave = resampled(item, self._audio_rate)
                samples = wave.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                bitmap = mtmd_cpp.mtmd_bitmap_init_from_audio(wave.size, samples)
        return bitmap

    def _tokenize(self, bitmap: int, chunks: int) -> None:
        mark = native_log.mark()
        text = mtmd_cpp.mtmd_input_text(
            text=self._marker, text_len=len(self._marker), add_special=False, parse_special=True
        )
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        code: int = mtmd_cpp.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1)
        if code != 0:
            reasons = "; ".join(native_log.errors_since(mark)) or f"mtmd_tokenize returned {code}"
            raise InvalidRequestError("", f"cannot be prepared for the model: {reasons}")

    def _read(self, chunks: int) -> Iterator[Tokens | MediaChunk]:
        for index in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
            chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, index)
            if mtmd_cpp.mtmd_input_chunk_get_type(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
                count = ctypes.c_size_t()
                tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
                yield as_tokens(tokens[: count.value])
            else:
                yield self._chunk(chunk)

    def _chunk(self, chunk: int) -> MediaChunk:
        tokens = mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
        return MediaChunk(
            mtmd_cpp.mtmd_input_chunk_copy(chunk),
            self._geometry(chunk, tokens),
            positions=mtmd_cpp.mtmd_input_chunk_get_n_pos(chunk),
            is_causal=not mtmd_cpp.mtmd_decode_use_non_causal(self._handle, chunk),
        )

    def _geometry(self, chunk: int, tokens: int) -> Geometry:
        image = mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk)
        if not self.uses_mrope or image is None:
            dimensions = 4 if self.uses_mrope else 1
            moves = np.ones((dimensions, tokens), np.int32)
            offsets = np.tile(np.arange(tokens, dtype=np.int32), (dimensions, 1))
            moves[3:] = offsets[3:] = 0
            return Geometry(offsets, moves)
        first, second = (_image_positions(image, start, tokens) for start in (0, 1))
        difference: NDArray[np.int32] = second - first
        return Geometry(first, difference)

    # --- from chunks to embeddings ---

    def encode(self, chunk: MediaChunk) -> Embeddings:
        """Embeddings, a row a token. Takes long, and cannot be cut short. Raises InvalidRequestError."""
        with self._encoding:
            if self._is_closed:
                raise InvalidRequestError("", _CLOSED)
            mark = native_log.mark()
            code: int = mtmd_cpp.mtmd_encode_chunk(self._handle, chunk.handle)
            if code != 0:
                reasons = "; ".join(native_log.errors_since(mark)) or f"mtmd_encode_chunk returned {code}"
                raise InvalidRequestError("", reasons)
            found = mtmd_cpp.mtmd_get_output_embd(self._handle)
            shape = (chunk.tokens, self._width)
            embeddings: Embeddings = np.ctypeslib.as_array(found, shape).copy()
            return embeddings

    def close(self) -> None:
        """Free the projector, once what is being placed or encoded has ended; safe to call twice."""
        with self._placing, self._encoding:
            self._is_closed = True
            self._free()

    def __repr__(self) -> str:
        return f"Projector({self.path.name}, {'M-RoPE' if self.uses_mrope else 'plain positions'})"


def _free(handle: int, _model: LlamaModel) -> None:
    mtmd_cpp.mtmd_free(handle)


def _image_positions(image: int, start: int, tokens: int) -> NDArray[np.int32]:
    """M-RoPE positions of an image's rows, in the order of a batch: time, height, width, none."""
    found = (mtmd_cpp.mtmd_decoder_pos * tokens)()
    mtmd_cpp.mtmd_helper_image_get_decoder_pos(image, start, found)
    rows = np.frombuffer(found, np.int32).reshape(tokens, 4)
    return np.ascontiguousarray(rows.T[[0, 2, 1, 3]])


def projector_identity(file_digest: str, build: str) -> str:
    """Names all that embeddings depend on beside the item: the projector's bytes, and the libraries that resize,
    resample and encode, which this runs with their defaults."""
    return hashlib.sha256(f"forerun projector 1\0{file_digest}\0{build}\0{RESAMPLER}".encode()).hexdigest()[:16]
