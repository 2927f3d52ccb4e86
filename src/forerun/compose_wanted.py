"""What a configuration comes out as for the models it names: what they are loaded with, and what they are asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forerun.compose_media import media_memory
from forerun.core.memory import DENSE, MemoryKind
from forerun.engine.cores import physical_cores
from forerun.engine_config import EngineConfig
from forerun.errors import ModelLoadError

if TYPE_CHECKING:  # forerun.native loads llama.cpp: only an engine that is built does that
    from forerun.models.gguf_header import GgufHeader
    from forerun.models.machine_memory import FreeMemory
    from forerun.models.wanted import Limits
    from forerun.native.context import ContextParams

logger = logging.getLogger(__name__)

SUFFIX_BYTES = 36
"""What a token of past outputs takes (core/suffix.py)."""
_UBATCH, _SCORED_UBATCH = 512, 128
"""Rows computed at a time, with flash attention and without: it keeps no scores of all rows and cells."""


@dataclass(frozen=True, slots=True)
class Configured:
    """Implements models.wanted.Wanted: what a configuration comes out as for the files it names."""

    config: EngineConfig

    @property
    def target(self) -> str:
        return self.config.model

    @property
    def draft(self) -> str | None:
        return self.config.draft

    @property
    def adapters(self) -> Mapping[str, str]:
        return {name: os.fspath(file) for name, file in self.config.adapters.items()}

    def drafts_with_mtp(self, target: GgufHeader) -> bool:
        return _drafts_with_mtp(self.config, target)

    @property
    def n_ctx(self) -> int | None:
        return self.config.n_ctx

    @property
    def max_num_seqs(self) -> int | None:
        return self.config.max_num_seqs

    @property
    def running(self) -> int:
        return self.config.running

    @property
    def beside(self) -> Mapping[str, int]:
        outputs = SUFFIX_BYTES * self.config.suffix_tokens if self.config.draft_tokens else 0
        return {"past outputs": outputs, **media_memory(self.config)}

    def chosen(self, n_ctx: int, max_num_seqs: int) -> Configured:
        config = self.config
        return Configured(
            replace(config, n_ctx=config.n_ctx or n_ctx, max_num_seqs=config.max_num_seqs or max_num_seqs)
        )

    def cache_ram(self, free: FreeMemory | None, needed: int) -> int:
        from forerun.models.machine_memory import default_cache_ram

        if not self.config.moves_prefixes:
            return self.config.cache_ram or 0
        return default_cache_ram(free, needed) if self.config.cache_ram is None else self.config.cache_ram

    def limits(self, n_ctx: int, draft_n_ctx_train: int | None) -> Limits:
        from forerun.models.wanted import Limits

        config = self.config
        is_drafting = draft_n_ctx_train is not None and config.draft_tokens > 0
        draft_n_ctx = config.draft_n_ctx or min(n_ctx, draft_n_ctx_train or n_ctx)
        return Limits(
            n_ctx=n_ctx,
            draft_n_ctx=draft_n_ctx if is_drafting else 0,
            n_seq_max=config.sequence_ids(has_state=False),
            max_num_seqs=config.running,
            max_num_batched_tokens=config.max_num_batched_tokens,
            draft_tokens=config.draft_tokens,
        )

    def model_params(self, *, with_mtp: bool) -> dict[str, int | float | bool]:
        params: dict[str, int | float | bool] = {"n_gpu_layers": self.config.n_gpu_layers}
        return params | {"load_mtp": True} if with_mtp else params

    def context_params(self, n_ctx: int, *, is_mtp: bool) -> dict[str, int | float | bool]:
        return context_params(self.config, n_ctx, is_mtp=is_mtp).numbers()

    def sequence_ids(self, *, has_state: bool) -> int:
        return self.config.sequence_ids(has_state=has_state)

    def native_ids(self, *, has_state: bool) -> int:
        return self.config.native_ids(has_state=has_state)


def _drafts_with_mtp(config: EngineConfig, header: GgufHeader) -> bool:
    """Whether the model's MTP head drafts. Raises ModelLoadError where it is to and cannot."""
    from forerun.models.nextn import nextn_layers, why_no_mtp
    from forerun.native.nextn import why_no_nextn

    is_allowed = config.mtp is not False and config.draft is None and config.draft_tokens > 0
    if not is_allowed or not (config.mtp or nextn_layers(header)):
        return False
    reason = why_no_mtp(header) or why_no_nextn()
    if reason and config.mtp:
        raise ModelLoadError(f"{header.path}: its MTP head cannot draft: {reason}")
    if reason:
        logger.info("%s: its MTP head does not draft: %s", header.path, reason)
    return reason is None


def context_params(
    config: EngineConfig, n_ctx: int, memory: MemoryKind = DENSE, *, is_mtp: bool = False
) -> ContextParams:
    from forerun.native.build import can_offload
    from forerun.native.context import ContextParams

    n_seq_max = config.native_ids(has_state=memory.has_state)
    threads = config.n_threads or physical_cores()
    # llama.cpp ends the process where a batch has no room for a row of every sequence id, and cuts batches down to the
    # context. So both are made large enough here, and the scheduler keeps to the limits that were asked for.
    n_batch = max(config.max_num_batched_tokens, n_seq_max)
    flash = config.n_gpu_layers != 0 and can_offload() if config.flash_attention is None else config.flash_attention
    n_ubatch = config.n_ubatch or (_UBATCH if flash else _SCORED_UBATCH)
    return ContextParams(
        n_ctx=max(n_ctx + config.scratch_cells, n_batch),
        n_batch=n_batch,
        # Several micro-batches could take cells of a window that taking back rejected drafts needs.
        n_ubatch=n_batch if memory.window else min(n_ubatch, n_batch),
        n_seq_max=n_seq_max,
        max_logit_rows=max(config.logit_rows, n_seq_max),
        n_threads=threads,
        n_threads_batch=threads,
        is_mtp=is_mtp,
        flash_attention=flash,
    )
