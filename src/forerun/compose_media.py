"""Joins what a model needs to read media: its projector, who prepares prompts with it, and the encoder."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forerun.engine.loading import PhaseProgress
from forerun.engine.media_mail import MediaMail
from forerun.errors import ModelError, ModelFileError
from forerun.media.kind import MediaKind

if TYPE_CHECKING:  # forerun.native loads llama.cpp: only an engine that is built does that
    from forerun.cache.embeddings import EmbeddingCache
    from forerun.engine_config import EngineConfig
    from forerun.models.gguf_header import GgufHeader
    from forerun.native.context import LlamaContext
    from forerun.native.encoder import MediaEncoder
    from forerun.native.media_reader import LlamaMediaReader

_ENCODERS: Final = {MediaKind.IMAGE: "clip.has_vision_encoder", MediaKind.AUDIO: "clip.has_audio_encoder"}
_DISK_SHARE: Final = 8
"""One of so many bytes of `cache_disk` is for encoded media."""


@dataclass(frozen=True, slots=True)
class OpenMedia:
    """The projector's side of an engine."""

    reader: LlamaMediaReader
    encoder: MediaEncoder
    mail: MediaMail
    splits_media: bool
    """Whether a span may be evaluated in parts, a step each."""


def open_media(
    config: EngineConfig, context: LlamaContext, n_ctx: int, loaded: ExitStack, report: PhaseProgress
) -> OpenMedia | None:
    """What reads media for a target whose context is made; None without a projector. Raises ModelError.

    `n_ctx`: tokens of a prompt at most.
    """
    if config.projector is None:
        return None
    from forerun.models.file_digest import file_digest
    from forerun.native.build import library_build
    from forerun.native.encoder import MediaEncoder
    from forerun.native.media_reader import LlamaMediaReader
    from forerun.native.projector import Projector, projector_identity

    path = projector_header(config).path
    report(path.name, 0.0)
    identity = projector_identity(file_digest(path), library_build())
    projector = Projector.load(
        path,
        context.model,
        identity,
        n_threads=context.params.n_threads_batch,
        use_gpu=config.n_gpu_layers != 0,
    )
    loaded.callback(projector.close)
    report(path.name, 1.0)
    together = min(context.params.n_ubatch, config.max_num_batched_tokens)
    reader = LlamaMediaReader(projector, most_tokens=n_ctx, most_together=together)
    mail = MediaMail()
    encoder = MediaEncoder(projector, reader, _embedding_cache(config), mail.fetch)
    loaded.callback(encoder.close)
    return OpenMedia(reader, encoder, mail, projector.is_causal and not context.memory.has_state)


def projector_header(config: EngineConfig) -> GgufHeader:
    """The header of the projector's file. Raises ModelError, also for a file that is another kind of model."""
    from forerun.models.gguf_header import read_header
    from forerun.models.resolve import resolve_model

    assert config.projector is not None
    header = read_header(resolve_model(config.projector))
    if header.architecture != "clip":
        raise ModelFileError(
            f"{header.path}: is a {header.architecture} model, no projector: give --mmproj the file that came with the "
            "model as its mmproj"
        )
    return header


def media_kinds(config: EngineConfig) -> frozenset[MediaKind]:
    """What a model can be shown, by its projector's header. Raises ModelError."""
    if config.projector is None:
        return frozenset()
    metadata = projector_header(config).metadata
    return frozenset(kind for kind, key in _ENCODERS.items() if metadata.get(key) is True)


def media_memory(config: EngineConfig) -> dict[str, int]:
    """Bytes of host memory that media take at most, by what for. A file that is not there is `media_kinds`' to tell."""
    if config.projector is None:
        return {}
    nbytes = 0
    with suppress(ModelError, OSError):
        nbytes = projector_header(config).path.stat().st_size
    return {"projector": nbytes, "encoded media": config.media_cache}


def prefix_disk(config: EngineConfig) -> int:
    """Bytes of `cache_disk` that are for prefixes."""
    return config.cache_disk - _media_disk(config)


def _media_disk(config: EngineConfig) -> int:
    has_files = config.projector is not None and config.cache_dir is not None
    return config.cache_disk // _DISK_SHARE if has_files else 0


def _embedding_cache(config: EngineConfig) -> EmbeddingCache:
    """Raises InvalidConfigError where the cache directory is no good."""
    from forerun.cache.embeddings import EmbeddingCache, EmbeddingFiles

    if config.cache_dir is None:
        return EmbeddingCache(config.media_cache)
    from forerun.cache.directory import CacheDirectory

    files = EmbeddingFiles(CacheDirectory(Path(config.cache_dir)), _media_disk(config))
    return EmbeddingCache(config.media_cache, files)
