"""Two tiers behind one store: the engine's thread never waits, every beginning ends in one event, budgets are hard."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forerun.cache import TieredStore, open_store
from forerun.cache.disk import SegmentFiles
from forerun.cache.host import SEGMENT_OVERHEAD, HostTier
from forerun.core.segment import SegmentHeader, StoredSegment, StoreEvent, StoreEventKind
from forerun.errors import InvalidConfigError
from tests.cache.support import MODEL_KEY, OTHER_MODEL, events, file_of, header_of, names, state_of, text_header

A, B, C = (text_header([token]) for token in range(3))
SIZE = SEGMENT_OVERHEAD + 1000
FILE = len(file_of(A, state_of(A)))
PLENTY = 10**9
PERSISTED, PERSIST_FAILED = StoreEventKind.PERSISTED, StoreEventKind.PERSIST_FAILED
FETCHED, FETCH_FAILED, FETCH_REFUSED = StoreEventKind.FETCHED, StoreEventKind.FETCH_FAILED, StoreEventKind.FETCH_REFUSED


class Cache:
    """A directory, and the stores that tests open on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[TieredStore] = []

    def open(self, ram: int = PLENTY, disk: int = PLENTY, model_key: str = MODEL_KEY) -> TieredStore:
        return self.open_with(ram, disk, model_key)[0]

    def open_with(
        self, ram: int = PLENTY, disk: int = PLENTY, model_key: str = MODEL_KEY
    ) -> tuple[TieredStore, list[StoredSegment]]:
        store, found = open_store(ram, self.path, disk, model_key)
        self.opened.append(store)
        return store, found

    def file(self, header: SegmentHeader) -> Path:
        return self.path / MODEL_KEY / header.key[:2] / f"{header.key}.kv"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(tmp_path / "cache")
    yield cache
    for store in cache.opened:
        store.close()
        store.take_events()
        store.check_integrity()


class Gate:
    """Holds what the worker does with files until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.entered = threading.Event()
        self.is_open = threading.Event()
        original: Callable[..., object] = getattr(SegmentFiles, name)

        def held(*arguments: object) -> object:
            self.entered.set()
            assert self.is_open.wait(10)
            return original(*arguments)

        monkeypatch.setattr(SegmentFiles, name, held)


def put(store: TieredStore, *headers: SegmentHeader) -> None:
    for header in headers:
        assert store.put(header, state_of(header)) == SIZE


def finish(store: TieredStore, count: int = 1) -> list[StoreEvent]:
    found: list[StoreEvent] = []
    end = time.monotonic() + 10
    while len(found) < count and time.monotonic() < end:
        store.wait(1.0)
        found += store.take_events()
    assert len(found) == count
    store.check_integrity()
    return found


def persist(store: TieredStore, *headers: SegmentHeader) -> None:
    put(store, *headers)
    for header in headers:
        store.persist(header.key)
    assert names(finish(store, len(headers))) == events(PERSISTED, *(header.key for header in headers))


def test_without_a_directory_there_is_host_memory_alone() -> None:
    store, found = open_store(SIZE)
    assert found == []
    put(store, A)
    assert store.put(B, state_of(B)) == 0
    assert store.get(A.key) == state_of(A)
    store.persist(A.key)
    store.fetch(B.key)
    store.wait(100.0)
    assert names(store.take_events()) == events(PERSIST_FAILED, A.key) | events(FETCH_FAILED, B.key)
    store.remove(A.key)
    store.drop(A.key)
    store.drop(A.key)
    with pytest.raises(KeyError):
        store.get(A.key)
    store.close()


def test_a_restart_serves_what_was_persisted(cache: Cache) -> None:
    store = cache.open()
    child = text_header(range(10, 20), A, draft_tokens=3)
    persist(store, A, child)
    store.close()
    again, found = cache.open_with()
    assert {segment.header.key: segment.header for segment in found} == {A.key: A, child.key: child}
    for segment in found:
        again.fetch(segment.header.key)
    assert {event.nbytes for event in finish(again, 2)} == {segment.host_bytes for segment in found}
    assert again.get(A.key) == state_of(A)
    assert again.get(child.key) == state_of(child)
    assert again.host.used == 2 * SIZE


def test_the_event_of_a_persist_says_how_large_the_file_is(cache: Cache) -> None:
    store = cache.open()
    put(store, A)
    store.persist(A.key)
    (event,) = finish(store)
    assert event == StoreEvent(PERSISTED, A.key, cache.file(A).stat().st_size)
    assert store.disk is not None
    assert store.disk.used == event.nbytes == FILE


def test_persisting_what_is_not_in_host_memory_fails(cache: Cache) -> None:
    store = cache.open()
    store.persist(A.key)
    assert names(store.take_events()) == events(PERSIST_FAILED, A.key)


def test_what_is_on_disk_already_is_not_written_again_unless_it_vanished(cache: Cache) -> None:
    store = cache.open()
    persist(store, A)
    inode = cache.file(A).stat().st_ino
    persist(store, A)
    assert cache.file(A).stat().st_ino == inode
    cache.file(A).unlink()
    persist(store, A)
    assert cache.file(A).exists()
    assert store.disk is not None
    assert store.disk.used == FILE


def test_a_segment_with_more_of_the_draft_replaces_its_file(cache: Cache) -> None:
    store = cache.open()
    persist(store, A)
    more = text_header([0], draft_tokens=1)
    assert more.key == A.key
    persist(store, more)
    store.drop(A.key)
    store.fetch(A.key)
    assert names(finish(store)) == events(FETCHED, A.key)
    assert cache.open_with()[1][0].header == more
    assert store.disk is not None
    assert store.disk.used == FILE


def test_fetching_what_is_not_there_fails_at_once(cache: Cache) -> None:
    store = cache.open()
    store.fetch(A.key)
    assert names(store.take_events()) == events(FETCH_FAILED, A.key)


def test_fetching_what_is_in_host_memory_is_done_at_once(cache: Cache) -> None:
    store = cache.open()
    put(store, A)
    store.fetch(A.key)
    assert store.take_events() == [StoreEvent(FETCHED, A.key, SIZE)]


def test_a_fetch_without_room_is_refused_and_the_file_stays(cache: Cache) -> None:
    store = cache.open(ram=2 * SIZE)
    persist(store, A)
    store.drop(A.key)
    put(store, B, C)
    store.fetch(A.key)
    assert names(store.take_events()) == events(FETCH_REFUSED, A.key)
    store.drop(B.key)
    store.fetch(A.key)
    assert store.put(B, state_of(B)) == 0  # the room is promised
    assert names(finish(store)) == events(FETCHED, A.key)
    assert store.host.used == 2 * SIZE


@pytest.mark.parametrize("damage", ["flip", "cut", "append", "swap", "vanish", "link", "unreadable"])
def test_a_file_that_is_not_what_it_should_be_is_a_miss_and_is_removed(cache: Cache, damage: str) -> None:
    store = cache.open()
    persist(store, A, B)
    store.drop(A.key)
    file, data = cache.file(A), cache.file(A).read_bytes()
    match damage:
        case "flip":
            file.write_bytes(data[:-50] + bytes([data[-50] ^ 4]) + data[-49:])
        case "cut":
            file.write_bytes(data[:-1])
        case "append":
            file.write_bytes(data + b"\0")
        case "swap":
            file.write_bytes(cache.file(B).read_bytes())
        case "vanish":
            file.unlink()
        case "link":
            file.unlink()
            file.symlink_to(cache.file(B))
        case "unreadable":
            file.unlink()
            file.mkdir()
    store.fetch(A.key)
    assert names(finish(store)) == events(FETCH_FAILED, A.key)
    assert file.is_dir() or not os.path.lexists(file)
    assert store.host.used == SIZE
    store.fetch(A.key)
    assert names(store.take_events()) == events(FETCH_FAILED, A.key)
    put(store, A)
    if damage != "unreadable":
        store.persist(A.key)
        assert names(finish(store)) == events(PERSISTED, A.key)


def test_a_file_that_another_engine_wrote_with_less_of_the_draft_is_a_miss(cache: Cache) -> None:
    mine, theirs = cache.open(), cache.open()
    more = text_header([0], draft_tokens=1)
    persist(mine, more)
    mine.drop(more.key)
    persist(theirs, A)
    mine.fetch(A.key)
    assert names(finish(mine)) == events(FETCH_FAILED, A.key)


def test_the_disk_budget_is_kept_to_the_byte(cache: Cache) -> None:
    store = cache.open(disk=2 * FILE)
    persist(store, A, B)
    put(store, C)
    store.persist(C.key)
    assert names(store.take_events()) == events(PERSIST_FAILED, C.key)
    store.remove(A.key)
    store.persist(C.key)
    assert names(finish(store)) == events(PERSISTED, C.key)
    assert not cache.file(A).exists()
    assert sum(path.stat().st_size for path in cache.path.rglob("*.kv")) == 2 * FILE


def test_a_directory_with_more_than_the_budget_takes_nothing_until_something_goes(cache: Cache) -> None:
    persist(cache.open(), A, B)
    store, found = cache.open_with(disk=FILE)
    assert len(found) == 2
    put(store, C)
    store.persist(C.key)
    assert names(store.take_events()) == events(PERSIST_FAILED, C.key)
    for key in (A.key, B.key):
        store.remove(key)
    store.persist(C.key)
    assert names(finish(store)) == events(PERSISTED, C.key)


def test_nothing_waits_for_the_disk(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write")
    store = cache.open()
    put(store, A, B)
    store.persist(A.key)
    store.persist(A.key)
    assert gate.entered.wait(10)
    store.persist(B.key)
    store.drop(A.key)
    store.remove(C.key)
    store.wait(0.01)
    assert store.take_events() == []
    gate.is_open.set()
    assert names(finish(store, 2)) == events(PERSISTED, A.key, B.key)


def test_a_segment_dropped_before_it_is_written_is_written(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write")
    store = cache.open()
    put(store, A, B)
    store.persist(A.key)
    store.persist(B.key)
    store.drop(A.key)
    store.drop(B.key)
    assert store.host.used == 0
    gate.is_open.set()
    assert names(finish(store, 2)) == events(PERSISTED, A.key, B.key)
    store.fetch(B.key)
    assert names(finish(store)) == events(FETCHED, B.key)
    assert store.get(B.key) == state_of(B)


def test_a_segment_on_its_way_to_the_disk_is_fetched_from_there(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write")
    store = cache.open(ram=SIZE)
    put(store, A)
    store.persist(A.key)
    store.drop(A.key)
    store.fetch(A.key)
    assert store.take_events() == [StoreEvent(FETCHED, A.key, SIZE)]
    store.drop(A.key)
    put(store, B)
    store.fetch(A.key)
    assert names(store.take_events()) == events(FETCH_REFUSED, A.key)
    gate.is_open.set()
    assert names(finish(store)) == events(PERSISTED, A.key)


def test_bytes_dropped_before_they_are_written_are_bounded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write")
    store = cache.open(ram=32 * SIZE)
    headers = [text_header([token]) for token in range(6)]
    put(store, *headers)
    for header in headers:
        store.persist(header.key)
    assert gate.entered.wait(10)
    for header in headers:
        store.drop(header.key)
    gate.is_open.set()
    found = names(finish(store, 6))
    written = {header.key for header in headers[:2]}
    assert {key for kind, key in found if kind is PERSISTED} == written
    assert {segment.header.key for segment in cache.open_with()[1]} == written
    assert store.disk is not None
    assert store.disk.used == 2 * FILE


def test_bytes_waiting_to_be_written_are_bounded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cache.disk_tier.MAX_WAITING_BYTES", 2 * FILE)
    gate = Gate(monkeypatch, "write")
    store = cache.open()
    put(store, A, B, C)
    for header in (A, B, C):
        store.persist(header.key)
    assert names(store.take_events()) == events(PERSIST_FAILED, C.key)
    gate.is_open.set()
    assert names(finish(store, 2)) == events(PERSISTED, A.key, B.key)
    persist(store, C)


def test_a_segment_removed_before_it_is_written_does_not_stay(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write")
    store = cache.open()
    put(store, A, B)
    store.persist(A.key)
    store.persist(B.key)
    assert gate.entered.wait(10)
    store.remove(A.key)  # being written
    store.remove(B.key)  # waiting
    store.persist(B.key)
    gate.is_open.set()
    assert names(finish(store)) == events(PERSISTED, B.key)
    assert not cache.file(A).exists()
    assert store.disk is not None
    assert store.disk.used == FILE


def test_a_segment_put_while_it_is_read_is_there_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "read")
    store = cache.open()
    persist(store, A)
    store.drop(A.key)
    store.fetch(A.key)
    store.fetch(A.key)
    assert gate.entered.wait(10)
    put(store, A)
    gate.is_open.set()
    assert names(finish(store)) == events(FETCHED, A.key)
    assert store.host.used == SIZE


def test_a_segment_dropped_while_it_is_read_does_not_come(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "read")
    store = cache.open(ram=2 * SIZE)
    persist(store, A, B)
    store.drop(A.key)
    store.drop(B.key)
    store.fetch(A.key)
    store.fetch(B.key)
    assert gate.entered.wait(10)
    for header in (A, B):
        store.drop(header.key)
    put(store, C)
    store.fetch(B.key)
    gate.is_open.set()
    assert names(finish(store)) == events(FETCHED, B.key)
    assert store.host.used == 2 * SIZE
    with pytest.raises(KeyError):
        store.get(A.key)


def test_what_was_dropped_or_removed_before_its_event_was_taken_has_none(cache: Cache) -> None:
    store = cache.open()
    put(store, A)
    store.persist(B.key)
    store.fetch(A.key)
    store.fetch(B.key)
    store.drop(A.key)
    store.remove(B.key)
    assert names(store.take_events()) == events(FETCH_FAILED, B.key)


def test_a_segment_persisted_again_while_its_file_turns_out_torn_is_written_anew(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cache.open()
    persist(store, A)
    store.drop(A.key)
    cache.file(A).write_bytes(b"torn")
    gate = Gate(monkeypatch, "read")
    store.fetch(A.key)
    put(store, A)
    store.persist(A.key)
    gate.is_open.set()
    assert names(finish(store, 2)) == events(FETCHED, A.key) | events(PERSISTED, A.key)
    assert store.disk is not None
    assert store.disk.used == FILE == cache.file(A).stat().st_size
    store.drop(A.key)
    store.fetch(A.key)
    assert names(finish(store)) == events(FETCHED, A.key)


def test_a_torn_file_that_cannot_be_removed_goes_on_counting(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    store = cache.open(disk=FILE)
    persist(store, A)
    store.drop(A.key)
    cache.file(A).write_bytes(b"torn")
    monkeypatch.setattr(SegmentFiles, "remove", refused)
    store.fetch(A.key)
    assert names(finish(store)) == events(FETCH_FAILED, A.key)
    assert store.disk is not None
    assert store.disk.used == FILE


def test_a_broken_disk_is_told_in_events_and_once_in_the_log(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    store = cache.open()
    monkeypatch.setattr(SegmentFiles, "write", full)
    put(store, A, B)
    with caplog.at_level(logging.WARNING):
        for header in (A, B, A):
            store.persist(header.key)
            assert names(finish(store)) == events(PERSIST_FAILED, header.key)
    assert [record.getMessage() for record in caplog.records] == [
        f"{cache.path}: segments cannot be written: No space left on device"
    ]
    monkeypatch.undo()
    store.persist(A.key)
    assert names(finish(store)) == events(PERSISTED, A.key)
    assert store.disk is not None
    assert store.disk.used == FILE


def test_whatever_goes_wrong_on_the_worker_s_thread_ends_in_an_event(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("a bug")

    store = cache.open()
    persist(store, A)
    for name in ("read", "write", "remove", "touch"):
        monkeypatch.setattr(SegmentFiles, name, broken)
    store.drop(A.key)
    put(store, B)
    store.persist(B.key)
    store.fetch(A.key)
    assert names(finish(store, 2)) == events(PERSIST_FAILED, B.key) | events(FETCH_FAILED, A.key)


def test_a_file_that_cannot_be_removed_goes_on_counting(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    store = cache.open(disk=FILE)
    persist(store, A)
    monkeypatch.setattr(SegmentFiles, "remove", refused)
    store.remove(A.key)
    persist_later(store, B)
    assert store.disk is not None
    assert store.disk.used == FILE


def persist_later(store: TieredStore, header: SegmentHeader) -> None:
    """Persist where the budget may have to be found out to be full first."""
    end = time.monotonic() + 10
    while store.disk is not None and store.disk.used < FILE and time.monotonic() < end:
        store.wait(0.1)
        store.take_events()
    put(store, header)
    store.persist(header.key)
    assert names(store.take_events()) == events(PERSIST_FAILED, header.key)


def test_closing_writes_what_is_begun_and_ends_what_comes_later(cache: Cache) -> None:
    store = cache.open()
    headers = [text_header([token]) for token in range(50)]
    put(store, *headers)
    for header in headers:
        store.persist(header.key)
    store.close()
    store.close()
    assert len(store.take_events()) == 50
    assert len(cache.open_with()[1]) == 50
    put(store, C)
    store.persist(C.key)
    store.fetch(headers[-1].key)
    store.drop(headers[0].key)
    store.fetch(headers[0].key)
    store.remove(headers[0].key)
    store.wait(5.0)
    assert len(store.take_events()) == 3


def test_closing_does_not_wait_for_ever(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write")
    monkeypatch.setattr("forerun.cache.store.CLOSE_SECONDS", 0.2)
    store = cache.open()
    put(store, A)
    store.persist(A.key)
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < 5
    gate.is_open.set()


def test_last_use_is_noted_when_a_segment_leaves_host_memory(cache: Cache) -> None:
    store = cache.open()
    persist(store, A, B)
    clock = iter([2e9, 3e9])
    store._clock = lambda: next(clock)
    store.get(A.key)
    store.get(B.key)
    store.drop(A.key)
    store.close()
    found = cache.open_with()[1]
    assert {segment.header.key: segment.last_used for segment in found} == {A.key: 2e9, B.key: 3e9}


def test_other_models_keep_half_of_the_budget_and_what_they_keep_is_not_to_be_had(cache: Cache) -> None:
    other = cache.open(model_key=OTHER_MODEL)
    theirs = [header_of(text_header([token]).content, model_key=OTHER_MODEL) for token in range(4)]
    persist(other, *theirs)
    assert other.disk is not None
    for age, header in enumerate(theirs):
        other.disk.touch(header.key, 1e9 + age)
    other.close()
    store = cache.open(disk=6 * FILE)
    assert store.disk is not None
    assert store.disk.budget == 3 * FILE
    assert {segment.header.key for segment in cache.open_with(model_key=OTHER_MODEL)[1]} == {
        header.key for header in theirs[1:]
    }


def test_two_stores_on_one_directory_do_not_harm_each_other(cache: Cache) -> None:
    first, second = cache.open(), cache.open()
    headers = [text_header([token]) for token in range(30)]
    for store in (first, second):
        put(store, *headers)
    for header in headers:
        first.persist(header.key)
        second.persist(header.key)
    assert {event.kind for event in finish(first, 30) + finish(second, 30)} == {PERSISTED}
    for header in headers[:15]:
        first.remove(header.key)
    for header in headers:
        second.drop(header.key)
        second.fetch(header.key)
    found = finish(second, 30)
    assert {event.key for event in found if event.kind is FETCHED} >= {header.key for header in headers[15:]}
    for event in found:
        if event.kind is FETCHED:
            assert second.get(event.key) == state_of(next(one for one in headers if one.key == event.key))


def test_a_directory_that_cannot_be_read_is_refused(cache: Cache) -> None:
    cache.path.mkdir(mode=0o700)
    (cache.path / MODEL_KEY).write_text("")
    with pytest.raises(InvalidConfigError, match=r"cache_dir: .*Not a directory"):
        cache.open()


def test_a_store_says_what_it_holds() -> None:
    store = TieredStore(HostTier(100))
    assert repr(store) == "TieredStore(HostTier(0 segments, 0 of 100 bytes), None)"


def test_random_operations_keep_every_book_right_and_every_byte(cache: Cache) -> None:
    chance = random.Random(0)
    headers = [text_header([token]) for token in range(12)]
    store = cache.open(ram=6 * SIZE, disk=7 * FILE)
    assert store.disk is not None
    operations: list[Callable[[SegmentHeader], object]] = [
        lambda header: store.put(header, state_of(header)),
        lambda header: store.put(header, state_of(header)),
        lambda header: store.drop(header.key),
        lambda header: store.persist(header.key),
        lambda header: store.fetch(header.key),
        lambda header: store.remove(header.key),
        lambda _: store.take_events(),
    ]
    for _ in range(3000):
        header = chance.choice(headers)
        chance.choice(operations)(header)
        assert store.host.find(header.key) is None or store.get(header.key) == state_of(header)
        assert store.disk.used <= store.disk.budget
        store.check_integrity()
    store.close()
    store.take_events()
    assert sum(segment.nbytes for segment in cache.open_with()[1]) == store.disk.used
