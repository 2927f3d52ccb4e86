"""Joins what an engine of an embedding model is made of."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from forerun.engine.cores import physical_cores
from forerun.engine.embedding import EmbeddingEngine, EmbeddingParts
from forerun.engine_config import DEFAULT_MAX_N_CTX, EngineConfig
from forerun.errors import InvalidConfigError

if TYPE_CHECKING:  # forerun.native loads llama.cpp: only building an engine does that
    from forerun.compose import LoadProgress

_MAX_INPUTS = 64
"""Of a batch."""
_SMALLEST_BATCH = 512
"""Tokens of a batch that models with short inputs get, so that several are computed at once."""
_NOT_FOR_EMBEDDINGS = ("draft", "drafter", "mtp", "cache_dir", "synthetic_acceptance", "chat_template")


def is_embedding_model(config: EngineConfig) -> bool:
    """Whether the model makes vectors of texts: its file says how tokens are pooled. Raises ModelError."""
    from forerun.models.embedding_file import pools
    from forerun.models.probe import probe_model
    from forerun.models.resolve import resolve_model

    return pools(probe_model(resolve_model(config.model)))


def open_embedding_engine(
    config: EngineConfig, progress: LoadProgress | None = None, *, max_queue: int = 64
) -> EmbeddingEngine:
    """Load an embedding model and start its engine. Raises ModelError, and InvalidConfigError for what is meant for
    models that write."""
    return EmbeddingEngine(build_embedding(config, progress, max_queue=max_queue))


def build_embedding(config: EngineConfig, progress: LoadProgress | None, *, max_queue: int) -> EmbeddingParts:
    from forerun.models.probe import probe_model
    from forerun.models.resolve import resolve_model
    from forerun.native.embedding import LlamaEmbedder
    from forerun.native.model import LlamaModel

    _check(config)
    path = probe_model(resolve_model(config.model)).path
    with ExitStack() as loaded:
        model = LlamaModel.load(
            path,
            n_gpu_layers=config.n_gpu_layers,
            progress=lambda share: None if progress is None else progress(path.name, share),
        )
        loaded.callback(model.close)
        n_ctx = config.n_ctx or max(_SMALLEST_BATCH, min(model.n_ctx_train, DEFAULT_MAX_N_CTX))
        threads = config.n_threads or physical_cores()
        embedder = LlamaEmbedder(model, n_ctx=n_ctx, max_inputs=_MAX_INPUTS, n_threads=threads)
        return EmbeddingParts(
            embedder=embedder,
            vocabulary=model.vocabulary,
            model_name=path.name,
            max_queue=max_queue,
            dispose=loaded.pop_all().close,
        )


def _check(config: EngineConfig) -> None:
    for name in _NOT_FOR_EMBEDDINGS:
        if getattr(config, name):
            raise InvalidConfigError(name, "is for models that write text; this one embeds. Leave it out")
    if config.adapters:
        raise InvalidConfigError("adapters", "are for models that write text; this one embeds. Leave them out")
