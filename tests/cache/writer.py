"""A program that stores segments until it is killed: `python -m tests.cache.writer DIRECTORY SEED`.

Standard output: "+KEY" once a segment is safe on disk, "-KEY" before its file is removed.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from forerun.cache import TieredStore, open_store
from forerun.core.segment import SegmentHeader, StoreEventKind
from tests.cache.support import MODEL_KEY, state_of, text_header

RAM, DISK = 2**24, 2**24
SEGMENTS = 300


def numbered(number: int) -> SegmentHeader:
    return text_header([number, *range(number % 300)])


def size_of(header: SegmentHeader) -> int:
    """Payload bytes of a segment; most are small, some are written in many pieces."""
    return random.Random(header.key).choice((0, 100, 5000, 50_000, 500_000))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def work(store: TieredStore, chance: random.Random) -> None:
    header = numbered(chance.randrange(SEGMENTS))
    action = chance.random()
    if action < 0.7:
        if store.put(header, state_of(header, size_of(header))):
            store.persist(header.key)
        store.drop(header.key)
    elif action < 0.8:
        say(f"-{header.key}")
        store.remove(header.key)
    else:
        store.fetch(header.key)
    store.wait(0.01)
    for event in store.take_events():
        if event.kind is StoreEventKind.PERSISTED:
            say(f"+{event.key}")


def main() -> None:
    store, _ = open_store(RAM, Path(sys.argv[1]), DISK, MODEL_KEY)
    chance = random.Random(sys.argv[2])
    say("started")
    while True:
        work(store, chance)


if __name__ == "__main__":
    main()
