"""What a preflight is asked about: models and limits as somebody wants them, wherever they say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from forerun.models.gguf_header import GgufHeader
from forerun.models.machine_memory import FreeMemory
from forerun.models.survey import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine would be given, in tokens, rows, sequence ids and bytes."""

    n_ctx: int
    draft_n_ctx: int
    """0 where no draft model is loaded."""
    n_seq_max: int
    max_num_seqs: int
    max_num_batched_tokens: int
    draft_tokens: int
    """Drafted tokens a step and sequence at most; 0 is off."""
    cache_ram: int = 0
    """Bytes of host memory for cached prefixes."""


class Wanted(Protocol):
    """What is asked for, and what it comes out as for the files that are found."""

    @property
    def target(self) -> str:
        """Name or path of the model."""
        ...

    @property
    def draft(self) -> str | None:
        """Name or path of the draft model."""
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """Paths of the model's adapters by name."""
        ...

    @property
    def n_ctx(self) -> int | None:
        """Tokens of memory, where somebody says."""
        ...

    @property
    def max_num_seqs(self) -> int | None:
        """Requests that run at the same time, where somebody says."""
        ...

    @property
    def running(self) -> int:
        """The same, or what it is where there is memory enough."""
        ...

    @property
    def beside(self) -> Mapping[str, int]:
        """Bytes that the engine takes besides models and adapters, by what for."""
        ...

    def chosen(self, n_ctx: int, max_num_seqs: int) -> Wanted:
        """The same, with these numbers where nobody says."""
        ...

    def drafts_with_mtp(self, target: GgufHeader) -> bool:
        """Whether the model's own MTP head drafts. Raises ModelLoadError where it is to and cannot."""
        ...

    def limits(self, n_ctx: int, draft_n_ctx_train: int | None) -> Limits:
        """The limits with memory for so many tokens, and a draft that was trained for so many; None: nothing but
        n-grams drafts."""
        ...

    def model_params(self, *, with_mtp: bool) -> Params:
        """What llama.cpp will be given to load a model."""
        ...

    def context_params(self, n_ctx: int, *, is_mtp: bool) -> Params:
        """What llama.cpp will be given to make a context of so many cells, or its MTP head's; without a state.

        It has `n_seq_max` and `n_outputs_max` among its fields.
        """
        ...

    def sequence_ids(self, *, has_state: bool) -> int:
        """Ids that requests and cached prefixes get."""
        ...

    def native_ids(self, *, has_state: bool) -> int:
        """Ids that the context is made for. Raises InvalidConfigError where that is too many."""
        ...

    def cache_ram(self, free: FreeMemory | None, needed: int) -> int:
        """Bytes of host memory for cached prefixes."""
        ...
