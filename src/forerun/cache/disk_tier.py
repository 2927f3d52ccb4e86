"""What is on disk, what is being written and read, and the hard budget: the engine's side of the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forerun.cache.file_format import BadSegmentError, SegmentHead, encode_head
from forerun.cache.host import HostSegment, host_bytes
from forerun.cache.worker import DiskWorker
from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import SegmentHeader, StoredSegment

if TYPE_CHECKING:  # needs a POSIX system; an engine without a disk tier does not
    from forerun.cache.disk import SegmentFiles

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES: Final = 2**30
"""Bytes of files waiting to be written, unless it is one larger file."""

Written = Callable[[int | None], None]
"""Told the bytes of a file that is safe on disk, or None where it is not; nothing where it is removed meanwhile."""
Read = Callable[[PromptCheckpointState | None], None]
"""Told what a file held, or None where it was no use and is gone."""


@dataclass(frozen=True, slots=True)
class DiskSegment:
    """A segment's file."""

    header: SegmentHeader
    nbytes: int
    host_bytes: int


class PendingWrite:
    """A segment on its way to the disk. `cancel` lets go of its bytes, unless the worker has begun with them."""

    def __init__(self, segment: HostSegment, head: SegmentHead, reserved: int) -> None:
        self.header = segment.header
        self.head = head
        self.reserved = reserved
        """Bytes of the disk's budget taken for it."""
        self.segment: HostSegment | None = segment
        self.is_removed = False
        """Its file is deleted right after it was written."""

    def cancel(self) -> None:
        self.segment = None


@dataclass(slots=True)
class PendingRead:
    """A segment on its way to host memory; one that is cancelled before the worker gets to it is not read."""

    segment: DiskSegment
    is_cancelled: bool = False
    is_stuck: bool = False
    """Its file was no use and could not be deleted."""


class DiskTier:
    """Owns the accounts of one model's files, and the worker that touches them. Used by the engine's thread.

    Jobs are done in the order they are given. So a file that is to be removed counts no more from then on: whatever is
    written later is written after it is gone.
    """

    def __init__(self, files: SegmentFiles, budget: int, found: Iterable[StoredSegment]) -> None:
        self.budget = budget
        """Bytes; nothing is written that would take `used` beyond it."""
        self._files = files
        self._worker = DiskWorker()
        self._segments = {one.header.key: DiskSegment(one.header, one.nbytes, one.host_bytes) for one in found}
        self._writes: dict[str, PendingWrite] = {}
        self._used = sum(segment.nbytes for segment in self._segments.values())
        self._waiting = 0
        self._told: set[str] = set()
        self._is_closed = False

    @property
    def used(self) -> int:
        """Bytes of all files, and of those being written."""
        return self._used

    def find(self, key: str) -> DiskSegment | None:
        """What is on disk; a file being written is not yet."""
        return self._segments.get(key)

    def pending(self, key: str) -> PendingWrite | None:
        """The write of a segment that is not done."""
        return self._writes.get(key)

    # --- writing ----------------------------------------------------------

    def write(self, segment: HostSegment, then: Written) -> None:
        """Begin to write a segment of which no write is pending; one that is there already is not written again."""
        key = segment.header.key
        try:
            head = encode_head(self._files.model_key, segment.header, segment.state)
        except BadSegmentError as error:
            self._tell_once(f"a segment is not written: {error}")
            then(None)
            return
        known = self._segments.get(key)
        here = DiskSegment(segment.header, head.file_bytes, host_bytes(head.payload_bytes))
        is_known = known == here
        reserved = 0 if is_known else head.file_bytes
        if not self._has_room(head.file_bytes, reserved):
            then(None)
            return
        write = PendingWrite(segment, head, reserved)
        self._writes[key] = write
        self._used += reserved
        self._waiting += head.file_bytes
        self._worker.submit(
            lambda: self._perform(write, is_known=is_known), lambda result: self._end_write(write, result, then)
        )

    def _has_room(self, nbytes: int, reserved: int) -> bool:
        """Whether a file can be queued, and takes no more of the budget than there is."""
        if self._waiting and self._waiting + nbytes > MAX_WAITING_BYTES:
            self._tell_once(f"segments are not written: more than {MAX_WAITING_BYTES} bytes wait for the disk already")
            return False
        return not self._is_closed and self._used + reserved <= self.budget

    def _perform(self, write: PendingWrite, *, is_known: bool) -> int:
        """On the worker's thread: bytes of the segment's file, which is there now; 0 where the write was cancelled."""
        segment = write.segment
        if segment is None:
            return 0
        if not (is_known and self._files.touch(write.header.key, time.time())):
            self._files.write(write.head, segment.state)
        return write.head.file_bytes

    def _end_write(self, write: PendingWrite, result: int | Exception, then: Written) -> None:
        key = write.header.key
        self._waiting -= write.head.file_bytes
        if self._writes.get(key) is write:
            del self._writes[key]
        if isinstance(result, Exception):
            self._tell_once(f"{self._files.directory.path}: segments cannot be written: {_reason(result)}")
        self._used -= write.reserved
        if isinstance(result, Exception) or not result or write.is_removed:
            if not write.is_removed:
                then(None)
            return
        self._forget(key)
        self._segments[key] = DiskSegment(write.header, result, host_bytes(write.head.payload_bytes))
        self._used += result
        then(result)

    # --- reading and removing ----------------------------------------------------------

    def read(self, read: PendingRead, then: Read) -> None:
        """Begin to read a segment. A file that is not what it should be, to the last byte, is removed."""
        if self._is_closed:
            then(None)
        else:
            self._worker.submit(lambda: self._check(read), lambda result: self._end_read(read, result, then))

    def _check(self, read: PendingRead) -> PromptCheckpointState | None:
        """On the worker's thread."""
        if read.is_cancelled:
            return None
        expected, key = read.segment, read.segment.header.key
        try:
            head, state = self._files.read(key)
            if head.header != expected.header or host_bytes(head.payload_bytes) != expected.host_bytes:
                raise BadSegmentError("another engine has written the segment differently")
        except Exception:
            try:
                self._files.remove(key)
            except OSError:
                read.is_stuck = True
            raise
        with suppress(OSError):
            self._files.touch(key, time.time())
        return state

    def _end_read(self, read: PendingRead, result: PromptCheckpointState | Exception | None, then: Read) -> None:
        if not isinstance(result, Exception):
            then(result)
            return
        key = read.segment.header.key
        if not isinstance(result, FileNotFoundError):  # another engine removed it: nothing to tell
            logger.warning("segment %s is not used, and removed: %s", key, _reason(result))
        if self._segments.get(key) is read.segment:
            nbytes = self._forget(key)
            self._keep_counting(nbytes if read.is_stuck else 0)
        then(None)

    def remove(self, key: str) -> None:
        """Begin to delete a segment's file; one on its way to the disk will not stay there."""
        write = self._writes.pop(key, None)
        if write is not None:
            write.cancel()
            write.is_removed = True
        if write is not None or key in self._segments:
            nbytes = self._forget(key)
            self._submit(lambda: self._files.remove(key), lambda: self._keep_counting(nbytes))

    def touch(self, key: str, last_used: float) -> None:
        """Note when a segment was last used, for those who start with this directory later."""
        if key in self._segments:
            self._submit(lambda: self._files.touch(key, last_used), lambda: None)

    def _submit(self, work: Callable[[], object], if_failed: Callable[[], None]) -> None:
        def end(result: object) -> None:
            if isinstance(result, Exception):
                self._tell_once(f"{self._files.directory.path}: {_reason(result)}")
                if_failed()

        if not self._is_closed:
            self._worker.submit(work, end)

    def _keep_counting(self, nbytes: int) -> None:
        """A file that could not be removed takes its room for as long as this engine runs."""
        self._used += nbytes

    def _forget(self, key: str) -> int:
        """A file is gone; how many bytes it had."""
        segment = self._segments.pop(key, None)
        nbytes = segment.nbytes if segment else 0
        self._used -= nbytes
        return nbytes

    # --- the worker ----------------------------------------------------------

    def finish(self) -> None:
        """Tell everybody what was done since the last call."""
        self._worker.finish()

    def wait(self, seconds: float) -> None:
        """Return once there is something to tell, nothing is going on, or after so many seconds."""
        self._worker.wait(seconds)

    def close(self, seconds: float) -> None:
        """Do what was begun, for so many seconds. Safe to call again."""
        if not self._is_closed:
            self._is_closed = True
            if not self._worker.close(seconds):
                logger.warning("%s: not everything could be written in %g s", self._files.directory.path, seconds)
        self._worker.finish()

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            logger.warning("%s", line)

    def check_integrity(self) -> None:
        """Raises AssertionError where the accounts are not those of what is there and on its way."""
        files = sum(segment.nbytes for segment in self._segments.values())
        assert self._used >= files + sum(write.reserved for write in self._writes.values())
        assert self._waiting >= sum(write.head.file_bytes for write in self._writes.values())

    def __repr__(self) -> str:
        return f"DiskTier({len(self._segments)} segments, {self._used} of {self.budget} bytes)"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
