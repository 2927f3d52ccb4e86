"""Memory of segments goes back to the system when it is let go."""

from __future__ import annotations

import platform
import random
import sys
from pathlib import Path

import psutil
import pytest

from forerun.buffers import new_buffer, trim_heap

MIB = 2**20


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 256 * 1024 - 1, 256 * 1024, 3 * MIB + 1])
def test_a_buffer_has_its_size_and_can_be_written(nbytes: int) -> None:
    buffer = new_buffer(nbytes)
    assert (buffer.nbytes, buffer.readonly, buffer.itemsize) == (nbytes, False, 1)
    if nbytes:
        buffer[-1] = 7
        assert buffer.toreadonly()[-1] == 7


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_buffers_that_come_and_go_take_no_more_than_those_that_are_there() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    chance = random.Random(0)
    before, held = resident(), list[memoryview]()
    for _ in range(300):
        buffer = new_buffer(chance.randint(MIB // 2, 6 * MIB))
        buffer[::4096] = bytes(len(buffer[::4096]))
        held.append(buffer)
        while sum(one.nbytes for one in held) > 64 * MIB:
            held.pop(chance.randrange(len(held)))
    there = sum(one.nbytes for one in held)
    assert resident() - before < 1.1 * there + 8 * MIB


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no other C library is known to give memory back")
def test_what_was_freed_goes_back_to_the_system() -> None:
    process = psutil.Process()
    blocks = [b"x" * 2048 + bytes([index % 256]) for index in range(40_000)]
    full = process.memory_info().rss
    del blocks[:-1]  # the last one keeps malloc from giving the others back by itself
    trim_heap()
    assert full - process.memory_info().rss > 40_000_000
