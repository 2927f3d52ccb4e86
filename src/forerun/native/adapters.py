"""LoRA adapters: loading them, and applying them to the decodes of contexts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from llama_cpp import llama_cpp

from forerun.core.adapters import AdapterSet
from forerun.errors import ModelLoadError
from forerun.native.context import LlamaContext
from forerun.native.log import native_log
from forerun.native.model import LlamaModel
from forerun.native.uninterrupted import uninterrupted


class LoraAdapter:
    """An adapter in memory, beside the weights of its model and freed with them. Build with `load`.

    Load adapters before the model's contexts are made: those make room for what is there.
    """

    def __init__(self, path: Path, handle: Any, model: LlamaModel) -> None:
        self.path = path
        self.handle = handle
        """The native llama_adapter_lora; for forerun.native only."""
        self.model = model

    @classmethod
    def load(cls, model: LlamaModel, path: Path) -> Self:
        """Raises ModelLoadError, naming the path and what llama.cpp said."""
        mark = native_log.mark()
        name = os.fsencode(path)
        handle = uninterrupted(
            lambda: llama_cpp.llama_adapter_lora_init(model.handle, name) or None, llama_cpp.llama_adapter_lora_free
        )
        if handle is None:
            reasons = "; ".join(native_log.errors_since(mark)) or "llama.cpp gave no reason"
            raise ModelLoadError(f"{path}: llama.cpp could not load this adapter for {model.path.name}: {reasons}")
        return cls(path, handle, model)

    def __repr__(self) -> str:
        return f"LoraAdapter({self.path.name} for {self.model.path.name})"


class AppliedAdapters:
    """Adapters by name, and which of them contexts apply to what they decode. Called by one thread.

    Going from one set to another makes llama.cpp plan its graphs anew at the next decode: about as long as a decode of
    one row of a small model takes. So nothing is done where the set stays the same.
    """

    def __init__(self, adapters: Mapping[str, LoraAdapter], contexts: Sequence[LlamaContext]) -> None:
        self._adapters = dict(adapters)
        self._contexts = list(contexts)
        self._applied: AdapterSet = ()

    def apply(self, adapters: AdapterSet) -> None:
        """Whatever is decoded from now on is decoded with these. Raises ValueError for one that is not there."""
        if adapters == self._applied:
            return
        unknown = [name for name, _ in adapters if name not in self._adapters]
        if unknown:
            raise ValueError(f"the plan wants the adapter {unknown[0]!r}, there is {sorted(self._adapters)}")
        count = len(adapters)
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * count)(
            *[self._adapters[name].handle for name, _ in adapters]
        )
        scales = (ctypes.c_float * count)(*[scale for _, scale in adapters])
        for context in self._contexts:
            llama_cpp.llama_set_adapters_lora(context.handle, handles, count, scales)
        self._applied = adapters

    def __repr__(self) -> str:
        return f"AppliedAdapters({self._applied} of {sorted(self._adapters)})"
