"""From budgets and a directory to a store, and what it starts with."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forerun.cache.disk_tier import DiskTier
from forerun.cache.host import HostTier
from forerun.cache.store import TieredStore
from forerun.core.segment import StoredSegment
from forerun.errors import InvalidConfigError

if TYPE_CHECKING:  # needs a POSIX system; an engine without a disk tier does not
    from forerun.cache.disk import SegmentFiles

logger = logging.getLogger(__name__)

_OTHERS_SHARE: Final = 2
"""Files of other models may keep 1/2 of the disk's budget."""


def open_store(
    ram: int,
    directory: Path | None = None,
    disk: int = 0,
    model_key: str = "",
    description: Mapping[str, str] | None = None,
) -> tuple[TieredStore, list[StoredSegment]]:
    """A store, and the segments its disk has of a model (`model_key`: 32 hexadecimal digits), in no order.

    `ram` and `disk` are bytes; without `directory` there is no disk tier. `description` says in words what `model_key`
    stands for. The budget is the whole directory's: what other models' files take is not to be had, but those not used
    for longest are deleted where they take more than half of it. Engines that run at the same time each keep to it on
    their own. Some of the segments may be stranded (`chains.SegmentChains`).

    Raises InvalidConfigError where the directory is no good.
    """
    if directory is None:
        return TieredStore(HostTier(ram)), []
    from forerun.cache.directory import CacheDirectory
    from forerun.cache.disk import SegmentFiles

    started = time.perf_counter()
    cache = CacheDirectory(directory)
    files = SegmentFiles(cache, model_key)
    try:
        cache.describe(model_key, description or {})
        found = files.scan()
        others = [SegmentFiles(cache, key) for key in cache.model_keys() if key != model_key]
        room = disk - _leave_to_others(others, disk // _OTHERS_SHARE)
    except OSError as error:
        raise InvalidConfigError("cache_dir", f"{directory}: {error.strerror or error}") from error
    logger.info("%s: %d segments in %.2f s", cache.path, len(found), time.perf_counter() - started)
    return TieredStore(HostTier(ram), DiskTier(files, room, found)), found


def _leave_to_others(others: list[SegmentFiles], most: int) -> int:
    """Bytes of other models' files, once those beyond `most`, the longest unused first, are deleted."""
    sized = [(size, files) for files in others for size in files.sizes()]
    taken = sum(size.nbytes for size, _ in sized)
    for size, files in sorted(sized, key=lambda each: each[0].last_used):
        if taken <= most:
            break
        with suppress(OSError):
            files.remove(size.key)
            taken -= size.nbytes
    return taken
