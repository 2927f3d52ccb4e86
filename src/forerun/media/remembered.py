"""Media that were decoded: the same file again is not, and all that are held take a bounded amount of memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

from forerun.errors import OverloadedError
from forerun.media.item import Media

KEPT_BYTES: Final = 64 * 2**20
HELD_BYTES: Final = 2**30
_AGAIN: Final = 1.0


class RememberedMedia:
    """By the digest of the file they came from and what it was read as. Any thread.

    Keeps the latest `kept_bytes` of pixels and samples. Finds those, too, that others hold: requests that are open.
    Refuses what would have all of them take more than `held_bytes`.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES, held_bytes: int = HELD_BYTES) -> None:
        self._kept_bytes, self._held_bytes = kept_bytes, held_bytes
        self._kept: OrderedDict[bytes, Media] = OrderedDict()
        self._kept_now = 0
        self._alive: WeakValueDictionary[bytes, Media] = WeakValueDictionary()
        self._lock = threading.Lock()

    def find(self, file_digest: bytes) -> Media | None:
        with self._lock:
            item = self._alive.get(file_digest)
            if item is not None:
                self._keep(file_digest, item)
            return item

    def add(self, file_digest: bytes, item: Media) -> Media:
        """The item, or the equal one that was there before. Raises OverloadedError where there is no room."""
        with self._lock:
            there = self._alive.get(file_digest)
            if there is not None:
                return there
            held = self.held_bytes + item.nbytes
            if held > self._held_bytes:
                self._drop(0)
                held = self.held_bytes + item.nbytes
            if held > self._held_bytes:
                said = f"the media of open requests would take {held} bytes, at most {self._held_bytes} are held"
                raise OverloadedError(f"{said}; try again later", _AGAIN)
            self._alive[file_digest] = item
            self._keep(file_digest, item)
            return item

    @property
    def held_bytes(self) -> int:
        """Of all items that somebody holds."""
        return sum(item.nbytes for item in list(self._alive.values()))

    def _keep(self, file_digest: bytes, item: Media) -> None:
        if file_digest in self._kept:
            self._kept.move_to_end(file_digest)
            return
        self._kept[file_digest] = item
        self._kept_now += item.nbytes
        self._drop(self._kept_bytes)

    def _drop(self, most: int) -> None:
        while self._kept_now > most:
            _, item = self._kept.popitem(last=False)
            self._kept_now -= item.nbytes

    def __repr__(self) -> str:
        return f"RememberedMedia({len(self._kept)} of {self._kept_now} bytes kept, {len(self._alive)} held)"
