"""Headers that are no headers: whatever a file holds, reading it ends in a value or in one ModelError, and stays within
a second and 50 MB.

Longer: FORERUN_FUZZ_INPUTS=1000000 pytest tests/models/test_gguf_fuzz.py --timeout 7200
"""

from __future__ import annotations

import io
import os
import random
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import ModelError, ModelFileError
from forerun.models.gguf_header import GgufHeader, parse_header
from forerun.models.gguf_types import (
    MAX_DIMENSIONS,
    MAX_HEADER_BYTES,
    MAX_KEYS,
    MAX_TENSORS,
    MAX_TEXT_BYTES,
    SCALARS,
    ValueType,
)
from forerun.models.inspection import FilePart, description_of
from forerun.models.validate import check_model_header
from tests.support import gguf_file as gguf

INPUTS = int(os.environ.get("FORERUN_FUZZ_INPUTS", "3000"))
MOST_SECONDS = 1.0
"""Of the processor, a file."""
MOST_BYTES = 50 * 10**6
PATH = Path("fuzzed.gguf")
KEYS = (
    b"general.architecture general.type general.alignment general.file_type split.count split.no llama.block_count "
    b"llama.context_length llama.embedding_length llama.attention.head_count_kv llama.rope.dimension_sections "
    b"llama.pooling_type llama.nextn_predict_layers llama.rope.freq_base tokenizer.ggml.model tokenizer.ggml.tokens "
    b"tokenizer.chat_template llama.attention.layer_norm_rms_epsilon llama.rope.scaling.factor"
).split()
NAMES = b"token_embd.weight blk.0.attn_output.weight blk.1.ssm_a blk.9999999999.x blk.0.nextn.eh_proj.weight x".split()
TEXTS = (b"llama", b"gpt2", b"clip", b"", b"\xff\xfe", "é😀".encode(), b"a" * 300)
LENGTHS = (0, 1, 7, 8, 255, 2**16, 2**22, 2**24, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
Chance = random.Random


def length(chance: Chance, right: int) -> bytes:
    """A length: the right one as a rule, else one that lies."""
    return struct.pack("<Q", right if chance.random() < 0.97 else chance.choice(LENGTHS))


def string(chance: Chance, value: bytes) -> bytes:
    return length(chance, len(value)) + value


def scalar(chance: Chance, kind: int) -> bytes:
    code = SCALARS[ValueType(kind)]
    size = struct.calcsize("<" + code)
    return chance.choice((bytes(size), b"\1" + bytes(size - 1), b"\xff" * size, chance.randbytes(size)))


def array(chance: Chance) -> bytes:
    kind, count = chance.choice((*SCALARS, gguf.STRING, gguf.STRING, gguf.ARRAY, 13)), chance.choice((0, 1, 3, 40))
    elements = [
        string(chance, chance.choice(TEXTS)) if kind == gguf.STRING else scalar(chance, kind)
        for _ in range(count if kind in SCALARS or kind == gguf.STRING else 0)
    ]
    return struct.pack("<I", kind) + length(chance, count) + b"".join(elements)


def value(chance: Chance) -> bytes:
    kind = chance.choice((*SCALARS, gguf.STRING, gguf.STRING, gguf.ARRAY, 99))
    if kind == gguf.STRING:
        content = string(chance, chance.choice(TEXTS))
    elif kind == gguf.ARRAY:
        content = array(chance)
    else:
        content = scalar(chance, kind) if kind in SCALARS else b""
    return struct.pack("<I", kind) + content


def tensor(chance: Chance) -> bytes:
    dimensions = chance.choice((0, 1, 2, 2, 4, 5)) if chance.random() < 0.99 else 2**32 - 1
    shape = b"".join(length(chance, chance.choice((1, 32, 256))) for _ in range(min(dimensions, 5)))
    kind, offset = chance.choice((0, 1, 12, 14, 39, 200)), chance.choice((0, 32, 64, 7, 2**63))
    name = string(chance, chance.choice(NAMES) + b"%d" % chance.randrange(20))
    return name + struct.pack("<I", dimensions) + shape + struct.pack("<IQ", kind, offset)


def header(chance: Chance) -> bytes:
    """Something like a header: right in most places, so that it is read far, and wrong in some."""
    keys = chance.sample(KEYS, chance.randint(0, len(KEYS)))
    entries = [string(chance, key) + value(chance) for key in keys]
    tensors = [tensor(chance) for _ in range(chance.choice((0, 1, 3)))]
    version = 3 if chance.random() < 0.98 else chance.choice((0, 1, 2, 4, 3 << 24))
    start = b"GGUF" + struct.pack("<I", version) + length(chance, len(tensors)) + length(chance, len(entries))
    return start + b"".join(entries + tensors) + bytes(chance.choice((0, 32, 4096)))


def flipped(chance: Chance, content: bytearray) -> None:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def overwritten(chance: Chance, content: bytearray) -> None:
    at = chance.randrange(len(content))
    content[at : at + 8] = struct.pack("<Q", chance.choice(LENGTHS))


def cut(chance: Chance, content: bytearray) -> None:
    del content[chance.randint(1, len(content)) :]


def doubled(chance: Chance, content: bytearray) -> None:
    start, end = sorted(chance.randrange(len(content)) for _ in range(2))
    content[end:end] = content[start:end]


DAMAGES: tuple[Callable[[Chance, bytearray], None], ...] = (flipped, overwritten, cut, doubled)


def damaged(chance: Chance) -> bytes:
    content = bytearray(header(chance))
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        chance.choice(DAMAGES)(chance, content)
    return bytes(content)


def read_all_of(content: bytes) -> GgufHeader | None:
    """Everything that is done with a header; None where it is refused."""
    try:
        read = parse_header(io.BytesIO(content), PATH, len(content))
    except ModelFileError as error:
        assert str(error).startswith("fuzzed.gguf: ")  # noqa: PT017 (a header that reads well is right too)
        return None
    assert repr(description_of(read, (FilePart(PATH, len(content)),), read.tensors).memory)
    with suppress(ModelError):
        check_model_header(read)
    return read


def resident() -> int:
    """Bytes that this process has had in memory at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_whatever_a_header_holds_reading_it_ends_well_quickly_and_in_little_memory() -> None:
    chance = random.Random(int(os.environ.get("FORERUN_FUZZ_SEED", "0")))
    for _ in range(100):
        read_all_of(damaged(chance))
    before, slowest, whole = resident(), 0.0, 0
    for _ in range(INPUTS):
        content = damaged(chance)
        started = time.process_time()
        whole += read_all_of(content) is not None
        slowest = max(slowest, time.process_time() - started)
    assert slowest < MOST_SECONDS
    assert resident() - before < MOST_BYTES
    assert whole > INPUTS // 20, "the generator makes nothing that is read to its end any more"


@given(tail=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_bytes_at_all_raise_anything_but_a_model_error(tail: bytes) -> None:
    for content in (tail, b"GGUF\x03\0\0\0" + tail, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + tail):
        if content:
            read_all_of(content)


def greedy() -> bytes:
    """The most memory that a header can ask for and still be whole: wide characters, tensors, keys, an array."""
    wide = "😀".encode()
    room = MAX_TEXT_BYTES
    tensors, entries = [], []
    for number in range(MAX_TENSORS):
        name = b"t%05d" % number + 20 * wide
        room -= len(name)
        shape = [2**14 + number + place for place in range(MAX_DIMENSIONS)]
        tensors.append(gguf.raw_string(name) + struct.pack("<I4QIQ", 4, *shape, 0, (number + 2**50) * 32))
    for number in range(MAX_KEYS - 4):
        key = b"k%05d" % number
        room -= len(key)
        entries.append(gguf.raw_string(key) + struct.pack("<IQ", gguf.UINT64, 2**62 + number))
    for number in range(3):
        text = b"a" * (room // 3 - 100) + wide
        entries.append(gguf.raw_string(b"text%d" % number) + struct.pack("<I", gguf.STRING) + gguf.raw_string(text))
    left = MAX_HEADER_BYTES - 24 - sum(map(len, entries + tensors)) - len(b"12345678array") - 16
    count = left // 16
    elements = struct.pack("<IIQ", gguf.ARRAY, gguf.STRING, count) + gguf.raw_string(b"x" * 8) * count
    entries.append(gguf.raw_string(b"array") + elements)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    return start + b"".join(entries + tensors)


READING = """
import resource, sys, time
from pathlib import Path
from forerun.models.gguf_header import read_header
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
tensors = len(read_header(Path(sys.argv[1])).tensors)
seconds, after = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(tensors, (after - before) * 1024, seconds)
"""


def test_the_greediest_header_that_is_allowed_takes_no_more_either(tmp_path: Path) -> None:
    path = tmp_path / "greedy.gguf"
    path.write_bytes(greedy())
    assert path.stat().st_size > 0.99 * MAX_HEADER_BYTES
    command = [sys.executable, "-c", READING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    tensors, nbytes, seconds = done.stdout.split()
    assert int(tensors) == MAX_TENSORS
    assert int(nbytes) < MOST_BYTES
    assert float(seconds) < 2 * MOST_SECONDS  # half of it where nobody else has the machine


@pytest.mark.parametrize("count", [2**22 - 1, 2**22])
def test_an_array_of_nothing_costs_no_more_than_its_bytes(count: int) -> None:
    """A count that the file does not back up is refused without reserving anything for it."""
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf.raw_string(b"a") + struct.pack("<IIQ", 9, 8, count)
    tracemalloc.start()
    try:
        assert read_all_of(content) is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
