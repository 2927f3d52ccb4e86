"""From what requests name to decoded media, within limits.

sources ──► told apart ──► fetched, read from the folder, or taken out of base64 ──► decoded, or remembered
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from forerun.errors import InvalidConfigError, InvalidRequestError, OverloadedError
from forerun.media.addresses import AllowedHost
from forerun.media.decoding import PROCESSES, MediaDecoder
from forerun.media.fetching import MediaFetcher
from forerun.media.files import MediaFolder
from forerun.media.item import Media
from forerun.media.kind import MediaKind, why_unread
from forerun.media.limits import MediaLimits
from forerun.media.picture import Picture
from forerun.media.remembered import RememberedMedia
from forerun.media.sound import Sound
from forerun.media.sources import Base64, FileAddress, HttpAddress, MediaSource, Place, Url, decoded_base64, place_of

_WAITING: Final = 256
_AGAIN: Final = 1.0


class MediaLoader:
    """Used on one event loop; what takes long happens on threads and in processes, which `close` ends."""

    def __init__(
        self,
        limits: MediaLimits | None = None,
        *,
        hosts: Sequence[AllowedHost] = (),
        root: Path | None = None,
        fetcher: MediaFetcher | None = None,
    ) -> None:
        """`hosts`: whose media is fetched. `root`: below which files are read. `fetcher` None: one for `hosts`.

        Raises InvalidConfigError where the folder cannot be used.
        """
        self._limits = limits or MediaLimits()
        self._folder = None if root is None else _folder(root)
        self._fetcher = fetcher or (MediaFetcher(hosts, self._limits) if hosts else None)
        self._decoder = MediaDecoder(self._limits)
        self._remembered = RememberedMedia()
        self._threads = ThreadPoolExecutor(PROCESSES, thread_name_prefix="forerun-media")
        self._open = 0

    def check(self, sources: Sequence[MediaSource], kinds: frozenset[MediaKind]) -> None:
        """What can be said of sources before any is read. Raises InvalidRequestError, naming the first wrong one."""
        for source in sources:
            if source.kind not in kinds:
                raise InvalidRequestError(source.field, why_unread(source.kind, kinds))
        most = self._limits.max_items
        if len(sources) > most:
            said = f"is one of {len(sources)} images and recordings, a request may have {most}"
            raise InvalidRequestError(sources[most].field, said)

    async def load(self, sources: Sequence[MediaSource]) -> list[Media]:
        """The items, in order; equal ones are one object.

        Raises InvalidRequestError naming a source, OverloadedError.
        """
        if self._open + len(sources) > _WAITING:
            raise OverloadedError(f"{self._open} images and recordings are being read; try again later", _AGAIN)
        self._open += len(sources)
        try:
            return await self._loaded(sources)
        finally:
            self._open -= len(sources)

    async def _loaded(self, sources: Sequence[MediaSource]) -> list[Media]:
        unlike: dict[Base64 | Url, MediaSource] = {}
        for source in sources:
            unlike.setdefault(source.at, source)
        amount = _Amount(self._limits)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {at: group.create_task(self._item(source, amount)) for at, source in unlike.items()}
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [tasks[source.at].result() for source in sources]

    async def _item(self, source: MediaSource, amount: _Amount) -> Media:
        place = place_of(source)
        data = await self._fetched(place, source.field) if isinstance(place, HttpAddress) else None
        item = await asyncio.get_running_loop().run_in_executor(self._threads, self._read, source, place, data)
        amount.add(item, source.field)
        return item

    async def _fetched(self, place: HttpAddress, field: str) -> bytes:
        if self._fetcher is None:
            raise InvalidRequestError(
                field,
                "is an address, and this server fetches none: send a data: URL, or start it with --allow-media-url",
            )
        return await self._fetcher.fetch(place.url, field)

    def _read(self, source: MediaSource, place: Place, data: bytes | None) -> Media:
        """On a thread."""
        field = source.field
        match place:
            case Base64():
                data = decoded_base64(place, field, self._limits.max_item_bytes)
            case FileAddress():
                data = self._file(place, field)
        assert data is not None
        digest = source.kind.encode() + hashlib.sha256(data).digest()
        known = self._remembered.find(digest)
        return known or self._remembered.add(digest, self._decoder.decode(source.kind, data, field))

    def _file(self, place: FileAddress, field: str) -> bytes:
        if self._folder is None:
            raise InvalidRequestError(
                field, "is a file of the server, which reads none: send a data: URL, or start it with --media-root"
            )
        return self._folder.read(place.url, field, self._limits.max_item_bytes)

    def close(self) -> None:
        """End processes and threads. What is being read is refused. Safe to call again."""
        self._decoder.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __repr__(self) -> str:
        return f"MediaLoader({self._open} being read, {self._remembered!r}, {self._decoder!r})"


class _Amount:
    """Of what one request shows."""

    def __init__(self, limits: MediaLimits) -> None:
        self._limits = limits
        self._pixels = 0
        self._seconds = 0.0

    def add(self, item: Media, field: str) -> None:
        """Raises InvalidRequestError."""
        match item:
            case Picture():
                self._pixels += item.width * item.height
                of, most, count = "pictures", f"{self._limits.max_pixels} are read", f"{self._pixels} pixels"
                is_too_much = self._pixels > self._limits.max_pixels
            case Sound():
                self._seconds += item.seconds
                of, most, count = "recordings", f"{self._limits.max_seconds:g} s are heard", f"{self._seconds:.4g} s"
                is_too_much = self._seconds > self._limits.max_seconds
        if is_too_much:
            raise InvalidRequestError(field, f"brings the request's {of} to {count}, at most {most}; send fewer")


def _folder(root: Path) -> MediaFolder:
    try:
        return MediaFolder(root)
    except OSError as error:
        raise InvalidConfigError("media_root", f"cannot be used: {error}") from None
