"""Joins what an engine of an embedding model is made of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from forerun.compose_process import plain_options, wait_until_started
from forerun.engine.cores import physical_cores
from forerun.engine.embedding import Embedder, EmbeddingEngine, EmbeddingParts
from forerun.engine.loading import LoadPhase, LoadProgress, PhaseProgress, during
from forerun.engine.process import EngineProgram
from forerun.engine.remote_embedder import EMBEDDING_CHILD, RemoteEmbedder
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError

if TYPE_CHECKING:  # forerun.models and forerun.native are loaded where a model is
    from pathlib import Path

_MAX_INPUTS: Final = 64
"""Of a batch."""
_SMALLEST_BATCH: Final = 512
"""Tokens of a batch that models with short inputs get, so that several are computed at once."""
_LARGEST_BATCH: Final = 8192
"""The same for models with long ones, unless n_ctx says."""
_NOT_FOR_EMBEDDINGS: Final = ("draft", "drafter", "mtp", "cache_dir", "synthetic_acceptance", "chat_template", "record")


def is_embedding_model(config: EngineConfig) -> bool:
    """Whether the model makes vectors of texts: its file says how tokens are pooled. Raises ModelError."""
    from forerun.models.embedding_file import pools
    from forerun.models.probe import probe_model
    from forerun.models.resolve import resolve_model

    return pools(probe_model(resolve_model(config.model)))


def open_embedding_engine(
    config: EngineConfig, progress: LoadProgress | None = None, *, max_queue: int = 64
) -> EmbeddingEngine:
    """Load an embedding model in a process of its own, which is started again whenever it dies. Raises ModelError, and
    InvalidConfigError for what is meant for models that write."""
    return EmbeddingEngine(embedding_in_own_process(config, progress, max_queue=max_queue))


def embedding_in_own_process(
    config: EngineConfig, progress: LoadProgress | None = None, *, max_queue: int = 64
) -> EmbeddingParts:
    """Start the process and wait until it is ready; the queue and the tokenizer stay in this one. Raises as
    `open_embedding_engine`."""
    from forerun.native.model import LlamaModel

    _check(config)
    path = _found(config, during(LoadPhase.FILES, progress))
    program = EngineProgram(f"{__name__}:embedder_from", plain_options(config), child=EMBEDDING_CHILD)
    with ExitStack() as loaded:
        model = LlamaModel.load(path, vocab_only=True)
        loaded.callback(model.close)
        embedder = RemoteEmbedder(program)
        wait_until_started(embedder, progress)
        return EmbeddingParts(
            embedder=embedder,
            vocabulary=model.vocabulary,
            model_name=path.name,
            max_queue=max_queue,
            health=lambda: embedder.health,
            interrupt=embedder.close,
            dispose=loaded.pop_all().close,
        )


def embedder_from(options: Mapping[str, Any], progress: LoadProgress) -> Embedder:
    """What the process builds: `options` are the fields of an EngineConfig. It is freed with the process. Raises
    ModelError."""
    from forerun.native.embedding import LlamaEmbedder
    from forerun.native.model import LlamaModel

    config = EngineConfig(**options)
    path = _found(config, during(LoadPhase.FILES, progress))
    loading, making = during(LoadPhase.TARGET, progress), during(LoadPhase.CONTEXTS, progress)
    model = LlamaModel.load(path, n_gpu_layers=config.n_gpu_layers, progress=partial(loading, path.name))
    making(path.name, 0.0)
    n_ctx = config.n_ctx or max(_SMALLEST_BATCH, min(model.n_ctx_train, _LARGEST_BATCH))
    threads = config.n_threads or physical_cores()
    return LlamaEmbedder(model, n_ctx=n_ctx, max_inputs=_MAX_INPUTS, n_threads=threads)


def _found(config: EngineConfig, progress: PhaseProgress) -> Path:
    from forerun.models.probe import probe_model
    from forerun.models.resolve import resolve_model

    progress(config.model, 0.0)
    return probe_model(resolve_model(config.model)).path


def _check(config: EngineConfig) -> None:
    for name in _NOT_FOR_EMBEDDINGS:
        if getattr(config, name):
            raise InvalidConfigError(name, "is for models that write text; this one embeds. Leave it out")
    if config.adapters:
        raise InvalidConfigError("adapters", "are for models that write text; this one embeds. Leave them out")
