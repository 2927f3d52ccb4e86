"""llama.cpp's own sampler chain: the reference that core/sampling.py is checked against."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
from llama_cpp import llama_cpp
from numpy.typing import NDArray

from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""

_MIN_KEEP = 1


class NativeSamplerChain:
    """Bias, penalties, top_k, typical, top_p, min_p and temperature, as llama.cpp applies them.

    `history` is what penalties look at, prompt first. Each filter is in the chain only where `params` sets it.
    """

    def __init__(self, params: SamplingParams, n_vocab: int, history: Tokens) -> None:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        self._chain = chain
        self._free = weakref.finalize(self, llama_cpp.llama_sampler_free, chain)
        self._rows = np.zeros(n_vocab, _CANDIDATE)
        for sampler in _samplers(params, n_vocab, history.size):
            llama_cpp.llama_sampler_chain_add(chain, sampler)
        for token in history.tolist():
            llama_cpp.llama_sampler_accept(chain, token)

    def candidates(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The ids that are left of a row of logits (shape: vocabulary), likeliest first, and their probabilities."""
        left = self._apply(logits)
        left = left[np.argsort(-left["logit"], kind="stable")]
        weights = np.exp(left["logit"].astype(np.float64) - float(left["logit"][0]))
        ids: NDArray[np.int32] = left["id"]
        probabilities: NDArray[np.float64] = weights / weights.sum()
        return ids, probabilities

    def _apply(self, logits: NDArray[np.float32]) -> NDArray[np.void]:
        rows = self._rows
        rows["id"] = np.arange(rows.size, dtype=np.int32)
        rows["logit"] = logits
        array = llama_cpp.llama_token_data_array(
            data=rows.ctypes.data_as(llama_cpp.llama_token_data_p), size=rows.size, selected=-1, sorted=False
        )
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        size: int = array.size
        return rows[:size].copy()  # samplers filter in place

    def close(self) -> None:
        """Free the chain; safe to call twice."""
        self._free()


def _samplers(params: SamplingParams, n_vocab: int, history_size: int) -> list[Any]:
    samplers: list[Any] = []
    if params.logit_bias:
        pairs = [llama_cpp.llama_logit_bias(token, bias) for token, bias in params.logit_bias.items()]
        biases = (llama_cpp.llama_logit_bias * len(pairs))(*pairs)
        samplers.append(llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(pairs), biases))
    last_n = history_size if params.penalty_last_n < 0 else params.penalty_last_n
    samplers.append(
        llama_cpp.llama_sampler_init_penalties(
            n_vocab, last_n, params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        )
    )
    if params.top_k > 0:
        samplers.append(llama_cpp.llama_sampler_init_top_k(params.top_k))
    if params.typical_p < 1:
        samplers.append(llama_cpp.llama_sampler_init_typical(params.typical_p, _MIN_KEEP))
    if params.top_p < 1:
        samplers.append(llama_cpp.llama_sampler_init_top_p(params.top_p, _MIN_KEEP))
    if params.min_p > 0:
        samplers.append(llama_cpp.llama_sampler_init_min_p(params.min_p, _MIN_KEEP))
    samplers.append(llama_cpp.llama_sampler_init_temp(params.temperature))
    return samplers
