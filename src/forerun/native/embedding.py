"""Texts as vectors: one decode (or encoding) of several inputs, each a sequence of its own, pooled by llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llama_cpp import llama_cpp
from numpy.typing import NDArray

from forerun.core.prompt import Tokens
from forerun.core.step import FailureKind
from forerun.errors import ModelLoadError
from forerun.native.context import ContextParams, LlamaContext, NativeStepError
from forerun.native.model import LlamaModel

Vectors = NDArray[np.float32]

_POOLING = {
    llama_cpp.LLAMA_POOLING_TYPE_MEAN: "mean",
    llama_cpp.LLAMA_POOLING_TYPE_CLS: "cls",
    llama_cpp.LLAMA_POOLING_TYPE_LAST: "last",
}


class LlamaEmbedder:
    """Implements engine.embedding.Embedder on a context of its own. Used by one thread.

    How tokens become one vector (mean, first or last token) is the model's own say. Every batch is computed as one
    micro-batch: encoders look at a whole text at once, and a mean over several micro-batches would be that of the last.
    Raises ModelLoadError for a model that does not say, or that ranks instead.
    """

    def __init__(self, model: LlamaModel, *, n_ctx: int, max_inputs: int, n_threads: int) -> None:
        """`n_ctx`: tokens of one input, and of all inputs of a batch, at most."""
        params = ContextParams(
            n_ctx=n_ctx,
            n_batch=n_ctx,
            n_ubatch=n_ctx,
            n_seq_max=max_inputs,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            embeds=True,
        )
        self._context = LlamaContext(model, params)
        pooling = llama_cpp.llama_pooling_type(self._context.handle)
        if pooling not in _POOLING:
            self._context.close()
            is_rank = pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK
            why = "it ranks texts and gives no vectors" if is_rank else "its file does not say how tokens are pooled"
            raise ModelLoadError(f"{model.path}: this model cannot embed: {why}")
        self.pooling = _POOLING[pooling]
        self.max_batch_tokens = self._context.n_batch
        self.n_ctx = min(n_ctx, model.n_ctx_train)
        """Tokens of one input at most."""
        self.max_inputs = max_inputs
        self.dimensions: int = llama_cpp.llama_model_n_embd_out(model.handle)
        self._memory = llama_cpp.llama_get_memory(self._context.handle)
        """None for encoders, which remember nothing."""
        self._batch = self._context.new_batch()

    def embed(self, inputs: Sequence[Tokens]) -> Vectors:
        """A vector of length 1 for each input, shape (inputs, dimensions).

        1 to max_inputs inputs of 1 to n_ctx tokens, max_batch_tokens together: ValueError else. Raises NativeStepError.
        """
        self._check(inputs)
        self._batch.clear()
        for sequence_id, tokens in enumerate(inputs):
            self._batch.add_run(tokens, 0, sequence_id, last_output=False)
        self._batch.want_all()
        try:
            self._compute()
            return _normalised(np.stack([self._pooled(sequence_id) for sequence_id in range(len(inputs))]))
        finally:
            if self._memory:
                llama_cpp.llama_memory_clear(self._memory, False)

    def _check(self, inputs: Sequence[Tokens]) -> None:
        """Native code would end the process for a batch that does not fit."""
        sizes = [len(tokens) for tokens in inputs]
        if not 0 < len(sizes) <= self.max_inputs or sum(sizes) > self.max_batch_tokens:
            raise ValueError(f"{len(sizes)} inputs of {sum(sizes)} tokens do not fit a batch of {self!r}")
        if not 0 < min(sizes) <= max(sizes) <= self.n_ctx:
            raise ValueError(f"an input has 1 to {self.n_ctx} tokens, got {min(sizes)} to {max(sizes)}")

    def _compute(self) -> None:
        if self._memory:
            self._context.decode(self._batch)
            return
        code: int = llama_cpp.llama_encode(self._context.handle, self._batch.native)
        if code:
            raise NativeStepError(FailureKind.FAILED, f"{self._batch.rows} rows, llama_encode returned {code}")

    def _pooled(self, sequence_id: int) -> Vectors:
        pointer = llama_cpp.llama_get_embeddings_seq(self._context.handle, sequence_id)
        if not pointer:
            raise NativeStepError(FailureKind.FAILED, f"llama.cpp gave no embedding of input {sequence_id}")
        vector: Vectors = np.ctypeslib.as_array(pointer, (self.dimensions,)).copy()
        return vector

    def close(self) -> None:
        """Free the context; safe to call twice."""
        self._context.close()

    def __repr__(self) -> str:
        return f"LlamaEmbedder({self.pooling}, {self.max_inputs} inputs, {self.max_batch_tokens} tokens)"


def _normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, np.where(lengths > 0, lengths, 1), dtype=np.float32)
