"""What stored KV depends on, prompt and adapters aside: KV of one identity is no use under another."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.models.file_digest import Progress, file_digest
from forerun.models.gguf_header import GgufHeader

_FIRST_PART: Final = re.compile(r"(.*)-00001-of-\d{5}\.gguf")
_KEY_DIGITS: Final = 32
# Sizes, threads and places: they change how fast KV is computed, or how much fits, and its last bits at most.
_NOT_KV: Final = frozenset(
    {"n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_outputs_max", "n_outputs_max_per_seq", "n_samplers"}
    | {"n_threads", "n_threads_batch", "n_rs_seq", "offload_kqv", "op_offload", "no_perf", "embeddings", "defrag_thold"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """A target, what drafts for it, and how both are run."""

    target: str
    """SHA-256 of its file, of all parts where it has several."""
    target_name: str
    """Its file's name, for people."""
    draft: str = ""
    """The same of the draft model; "mtp" for the target's own head, "" for none."""
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
        parts = [1, self.target, self.draft, self.build, settings, list(self.beyond_training)]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]

    def description(self) -> dict[str, str]:
        """What the key stands for, for people."""
        return {"target": self.target_name, "draft": self.draft_name, "build": self.build, "sha256": self.target}


def is_beyond_training(header: GgufHeader, n_ctx: int) -> bool:
    """Whether a context is longer than the one a model was trained for before it was extended.

    llama.cpp compares with the same number (llama-model.cpp, get_rope_factors).
    """
    trained = header.hparam("rope.scaling.original_context_length") or header.hparam("context_length")
    return isinstance(trained, int) and n_ctx > trained


def model_digest(header: GgufHeader, progress: Progress | None = None) -> str:
    """SHA-256 of a model's file; of the digests of all parts where it has several. Raises ModelLoadError."""
    count = header.integer("split.count") or 1
    match = _FIRST_PART.fullmatch(header.path.name)
    if count == 1 or match is None:
        return file_digest(header.path, progress)
    parts = [header.path.with_name(f"{match[1]}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]
    return hashlib.sha256("".join(file_digest(part, progress) for part in parts).encode()).hexdigest()
