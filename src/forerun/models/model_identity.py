"""What stored KV depends on, prompt and adapters aside: KV of one identity is no use under another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.models.gguf_header import GgufHeader
from forerun.models.package import Bundle

_KEY_DIGITS: Final = 32
# Sizes, threads and places: they change how fast KV is computed, or how much fits, and its last bits at most.
_NOT_KV: Final = frozenset(
    {"n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_outputs_max", "n_outputs_max_per_seq", "n_samplers"}
    | {"n_threads", "n_threads_batch", "n_rs_seq", "offload_kqv", "op_offload", "no_perf", "embeddings", "defrag_thold"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """A target, what drafts for it, and how both are run."""

    bundle: Bundle
    """Their files, by content."""
    target_name: str
    """The target's file, for people."""
    draft_name: str = ""
    build: str
    """Version and features of llama.cpp: what a state looks like is its own affair."""
    settings: Mapping[str, int | float | bool]
    """The contexts' parameters (llama_context_params): KV types, rope, flash attention."""
    beyond_training: tuple[bool, ...] = (False,)
    """Whether target's and draft's contexts are longer than those they were first trained for: models with two sets of
    rope factors (LongRoPE) choose between them by that.
    """

    @property
    def key(self) -> str:
        """32 hexadecimal digits over all that matters, names aside."""
        settings = {name: value for name, value in self.settings.items() if name not in _NOT_KV}
        parts = [2, self.bundle.key, self.build, settings, list(self.beyond_training)]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]

    def description(self) -> dict[str, str]:
        """What the key stands for, for people."""
        return {
            "target": self.target_name,
            "draft": self.draft_name,
            "build": self.build,
            "package": self.bundle.target,
            "bundle": self.bundle.key,
        }


def is_beyond_training(header: GgufHeader, n_ctx: int) -> bool:
    """Whether a context is longer than the one a model was trained for before it was extended.

    llama.cpp compares with the same number (llama-model.cpp, get_rope_factors).
    """
    trained = header.hparam("rope.scaling.original_context_length") or header.hparam("context_length")
    return isinstance(trained, int) and n_ctx > trained
