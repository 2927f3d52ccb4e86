"""What a cache directory holds, model by model, looked at from outside: nothing is deleted by looking."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from forerun.cache.chains import SegmentChains, StoredConversation
from forerun.cache.directory import CacheDirectory
from forerun.cache.disk import SegmentFiles
from forerun.core.segment import StoredSegment


@dataclass(frozen=True)
class StoredModel:
    """The files of one model."""

    files: SegmentFiles
    description: dict[str, str]
    """What was noted of it: `target`, `draft`, `build`; see `CacheDirectory.describe`."""
    segments: list[StoredSegment]

    @property
    def key(self) -> str:
        return self.files.model_key

    @property
    def name(self) -> str:
        """Its target's file, with its draft's."""
        names = [self.description.get("target", ""), self.description.get("draft", "")]
        return " + ".join(name for name in names if name) or "unknown"

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)

    @property
    def last_used(self) -> float | None:
        """Seconds since the epoch; None where nothing is stored."""
        return max((segment.last_used for segment in self.segments), default=None)

    @cached_property
    def conversations(self) -> list[StoredConversation]:
        """Those that can be restored, the last used first."""
        return SegmentChains(self.segments).conversations()

    def is_meant_by(self, names: set[str]) -> bool:
        """Whether one of some names is its target's file name, or begins its key."""
        return self.description.get("target", "") in names or any(
            len(name) >= _SHORTEST_KEY and self.key.startswith(name) for name in names
        )


_SHORTEST_KEY = 4
"""Digits of a model key that are enough to mean it."""


def stored_models(directory: CacheDirectory) -> list[StoredModel]:
    """All models that have files in a directory, of use or not, the one with most bytes first. Raises OSError."""
    files = [SegmentFiles(directory, key) for key in directory.model_keys()]
    models = [StoredModel(one, directory.description(one.model_key), one.scan(removes=False)) for one in files]
    there = [model for model in models if model.segments or model.files.sizes()]
    return sorted(there, key=lambda model: model.nbytes, reverse=True)
