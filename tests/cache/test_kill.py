"""Kill -9 at any moment leaves a cache that opens, holds what was persisted, and never a torn file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forerun.cache import open_store
from forerun.core.segment import StoreEvent, StoreEventKind
from tests.cache.support import MODEL_KEY, state_of
from tests.cache.writer import DISK, SEGMENTS, numbered, size_of

ROOT = Path(__file__).parents[2]


def killed_writer(directory: Path, seed: int, seconds: float) -> list[str]:
    """What a writer said until it was killed, so many seconds after its start."""
    command = [sys.executable, "-m", "tests.cache.writer", os.fspath(directory), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "started\n"
        time.sleep(seconds)
        writer.send_signal(signal.SIGKILL)
        return writer.stdout.read().splitlines()


def assert_sound(directory: Path, safe: set[str]) -> set[str]:
    """Everything that is reported is there to the byte, and everything safe is reported; the keys."""
    store, found = open_store(2**30, directory, DISK, MODEL_KEY)
    headers = {header.key: header for header in map(numbered, range(SEGMENTS))}
    keys = {segment.header.key for segment in found}
    assert safe <= keys
    for segment in found:
        assert segment.header == headers[segment.header.key]
        store.fetch(segment.header.key)
    events: list[StoreEvent] = []
    while len(events) < len(found):
        store.wait(5.0)
        events += store.take_events()
    assert {event.kind for event in events} <= {StoreEventKind.FETCHED}
    for key in keys:
        assert store.get(key) == state_of(headers[key], size_of(headers[key]))
    store.close()
    assert not list(directory.rglob("*.tmp"))
    return keys


def kill_and_look(directory: Path, rounds: int) -> None:
    chance = random.Random(rounds)
    present: set[str] = set()
    for seed in range(rounds):
        safe, unknown = set(present), set[str]()
        for line in killed_writer(directory, seed, chance.uniform(0.0, 0.4)):
            if len(line) == 33 and line[0] == "-":
                unknown.add(line[1:])
            elif len(line) == 33:
                safe.add(line[1:])
        present = assert_sound(directory, safe - unknown)
    assert len(present) > 10


def test_a_cache_survives_kill_9(tmp_path: Path) -> None:
    kill_and_look(tmp_path / "cache", rounds=6)


@pytest.mark.slow
def test_a_cache_survives_kill_9_fifty_times(tmp_path: Path) -> None:
    kill_and_look(tmp_path / "cache", rounds=50)
