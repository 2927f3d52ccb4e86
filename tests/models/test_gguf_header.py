"""Case O1 (ggml-org/llama.cpp#24884) at the level of the header: every fault is named, with the path, and quickly."""

from __future__ import annotations

import os
import random
import struct
import time
from pathlib import Path

import pytest

from forerun.errors import ModelError, ModelFileError, ModelNotFoundError
from forerun.models.gguf_header import RawArray, read_header
from forerun.models.gguf_types import FILE_TYPES, MAX_ARRAY_ELEMENTS, TENSOR_TYPES, ValueType
from forerun.models.validate import read_model_header
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor
from tests.support.tiny_models import TinyModel, assemble

SLOW = 1.0  # seconds; a bound for a loaded machine, the typical header takes 10 ms


def minimal() -> GgufFile:
    """The least that passes as a model's header."""
    return GgufFile(
        {
            "general.architecture": gguf.text("llama"),
            "llama.block_count": gguf.u32(1),
            "llama.context_length": gguf.u32(128),
            "llama.embedding_length": gguf.u32(8),
            "tokenizer.ggml.model": gguf.text("gpt2"),
            "tokenizer.ggml.tokens": gguf.string_array([b"a", b"bc", b""]),
            "tokenizer.ggml.scores": gguf.f32_array([0.5, 1.0, -1.0]),
        },
        [Tensor("token_embd.weight", (8, 3), 0, bytes(96)), Tensor("output_norm.weight", (8,), 0, bytes(32))],
    )


def refusal(path: Path) -> str:
    started = time.monotonic()
    with pytest.raises(ModelFileError) as caught:
        read_model_header(path)
    assert time.monotonic() - started < SLOW
    assert str(path) in str(caught.value)
    return str(caught.value)


def refusal_of(content: bytes, folder: Path) -> str:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return refusal(path)


def test_a_model_tells_its_architecture_metadata_and_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    minimal().write(path)
    header = read_model_header(path)
    assert header.architecture == "llama"
    assert header.hparam("context_length") == 128
    assert header.metadata["tokenizer.ggml.model"] == "gpt2"
    assert [(t.name, t.shape, t.offset, t.size) for t in header.tensors] == [
        ("token_embd.weight", (8, 3), 0, 96),
        ("output_norm.weight", (8,), 96, 32),
    ]
    assert header.expected_size == header.file_size == path.stat().st_size
    assert "llama, 7 keys, 2 tensors" in repr(header)


def test_arrays_are_kept_raw_and_decoded_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    minimal().write(path)
    header = read_header(path)
    tokens, scores = header.array("tokenizer.ggml.tokens"), header.array("tokenizer.ggml.scores")
    assert tokens is not None
    assert scores is not None
    assert repr(tokens) == "RawArray(3 x string, 27 bytes)"
    assert tokens.strings() == [b"a", b"bc", b""]
    assert scores.numbers() == (0.5, 1.0, -1.0)
    with pytest.raises(TypeError, match="holds no numbers"):
        tokens.numbers()
    with pytest.raises(TypeError, match="holds no strings"):
        scores.strings()


def test_a_value_of_another_type_reads_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    minimal().write(path)
    header = read_header(path)
    assert header.integer("tokenizer.ggml.model") is None
    assert header.string("llama.block_count") is None
    assert header.array("llama.block_count") is None


def test_a_real_model_is_read_as_the_gguf_package_reads_it_and_quickly(smollm2_path: Path) -> None:
    reader = pytest.importorskip("gguf").GGUFReader(smollm2_path)
    started = time.monotonic()
    header = read_model_header(smollm2_path)
    assert time.monotonic() - started < SLOW
    assert [(t.name, t.shape, t.type, t.size) for t in header.tensors] == [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), int(t.n_bytes)) for t in reader.tensors
    ]
    assert header.data_start == reader.data_offset
    tokens = header.array("tokenizer.ggml.tokens")
    assert tokens is not None
    assert [t.decode() for t in tokens.strings()] == reader.fields["tokenizer.ggml.tokens"].contents()
    plain = {key: value for key, value in header.metadata.items() if not isinstance(value, RawArray)}
    assert plain == {key: reader.fields[key].contents() for key in plain}


def test_the_tables_of_types_are_those_of_the_gguf_package() -> None:
    gguf_package = pytest.importorskip("gguf")
    known = {int(kind): (kind.name, *size) for kind, size in gguf_package.GGML_QUANT_SIZES.items()}
    assert {number: known[number] for number in TENSOR_TYPES} == TENSOR_TYPES
    names = {int(kind): kind.name for kind in gguf_package.LlamaFileType}
    assert {number: names[number].removeprefix("MOSTLY_").removeprefix("ALL_") for number in FILE_TYPES} == FILE_TYPES


def test_a_vocabulary_of_262144_tokens_is_read_quickly(tmp_path: Path) -> None:
    file = minimal()
    file.entries["tokenizer.ggml.tokens"] = gguf.string_array([b"token%d" % i for i in range(262_144)])
    file.write(tmp_path / "model.gguf")
    started = time.monotonic()
    read_model_header(tmp_path / "model.gguf")
    assert time.monotonic() - started < SLOW


def test_a_missing_path_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"absent\.gguf: no such file$"):
        read_header(tmp_path / "absent.gguf")
    (tmp_path / "file").touch()
    with pytest.raises(ModelNotFoundError, match="a part of the path is not a directory"):
        read_header(tmp_path / "file" / "model.gguf")


def test_a_dangling_link_is_told_with_its_goal(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to("gone.gguf")
    with pytest.raises(ModelNotFoundError, match=r"a link to gone\.gguf, which does not exist"):
        read_header(tmp_path / "link.gguf")


def test_a_directory_is_told_with_the_models_inside_it(tmp_path: Path) -> None:
    (tmp_path / "inside.gguf").touch()
    assert refusal(tmp_path).endswith("this is a directory: give the GGUF file inside it (inside.gguf)")


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


def test_a_link_to_itself_and_an_impossible_name_are_model_errors(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in refusal(tmp_path / "loop")
    with pytest.raises(ModelNotFoundError, match="no file can have this name"):
        read_header(Path("a\0b"))


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    assert "the file is empty (0 bytes)" in refusal_of(b"", tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"Once upon a time there was no model.", "begins with the text 'Once upon a time"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"PK\x03\x04" + bytes(40), "PyTorch checkpoint"),
        (b"\x40\0\0\0\0\0\0\0" + b'{"__metadata__":{}}', "safetensors"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"tjgg" + bytes(40), "from before GGUF"),
        (bytes(100), "zero bytes"),
        (b"\xde\xad\xbe\xef" * 9, "begins with the bytes de ad be ef"),
        (b"x", "begins with the text 'x'"),
    ],
)
def test_something_else_is_told_by_what_it_looks_like(tmp_path: Path, content: bytes, told: str) -> None:
    message = refusal_of(content, tmp_path)
    assert "not a GGUF file" in message
    assert told in message


@pytest.mark.parametrize(("version", "told"), [(1, "version 1"), (4, "version 4"), (0x03000000, "big-endian")])
def test_other_versions_of_the_format_are_named(tmp_path: Path, version: int, told: str) -> None:
    assert told in refusal_of(b"GGUF" + struct.pack("<IQQ", version, 0, 0), tmp_path)


@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_truncated_file_is_told_with_both_sizes(tmp_path: Path, smollm2_path: Path, percent: int) -> None:
    whole = smollm2_path.stat().st_size
    size = whole * percent // 100
    with smollm2_path.open("rb") as source:
        message = refusal_of(source.read(size), tmp_path)
    if percent == 1:  # within the vocabulary: the whole size is not known yet
        assert f"truncated: the file has {size} bytes, but its header needs at least" in message
    else:
        assert f"truncated: the file has {size} bytes of the {whole} its header announces" in message


def test_a_file_cut_anywhere_is_truncated_and_nothing_else(tmp_path: Path) -> None:
    minimal().write(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    for size in range(1, len(content)):
        assert "truncated" in refusal_of(content[:size], tmp_path), size


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("general.architecture", gguf.text("clip"), "projector (mmproj)"),
        ("general.type", gguf.text("mmproj"), "projector (mmproj)"),
        ("general.type", gguf.text("adapter"), "an adapter (LoRA)"),
        ("general.type", gguf.text("imatrix"), "an importance matrix"),
        ("split.no", gguf.u32(2), "part 3 of"),
        ("general.architecture", gguf.u32(7), "'general.architecture' is 7, expected a text"),
        ("llama.block_count", gguf.text("two"), "'llama.block_count' is 'two', expected a positive integer"),
        ("llama.block_count", gguf.u32(0), "'llama.block_count' is 0, expected a positive integer"),
        ("llama.context_length", gguf.u32_array([1, 2]), "is an array of 2, expected a positive integer"),
        ("llama.embedding_length", gguf.boolean(True), "is True, expected a positive integer"),
        ("tokenizer.ggml.model", gguf.u32(3), "is 3, expected a text"),
        ("llama.attention.layer_norm_rms_epsilon", gguf.f32(-1.0), "is -1.0, expected a finite number of at least 0"),
        ("llama.attention.layer_norm_epsilon", gguf.f32(float("nan")), "is nan, expected a finite number"),
    ],
)
def test_a_file_that_is_no_model_is_told_what_it_is(tmp_path: Path, key: str, value: bytes, told: str) -> None:
    file = minimal()
    file.entries[key] = value
    file.write(tmp_path / "model.gguf")
    assert told in refusal(tmp_path / "model.gguf")


@pytest.mark.parametrize("key", ["general.architecture", "llama.block_count", "tokenizer.ggml.model"])
def test_a_missing_mandatory_key_is_named(tmp_path: Path, key: str) -> None:
    file = minimal()
    del file.entries[key]
    file.write(tmp_path / "model.gguf")
    assert f"the mandatory metadata key '{key}' is missing" in refusal(tmp_path / "model.gguf")


def test_a_vocabulary_without_weights_is_no_model(tmp_path: Path) -> None:
    file = minimal()
    file.tensors.clear()
    file.write(tmp_path / "model.gguf")
    assert "no tensors" in refusal(tmp_path / "model.gguf")


def header(keys: int, *parts: bytes, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + b"".join(parts)


KEY = gguf.raw_string(b"some.key")
HUGE = 2**63
NESTED = struct.pack("<IIQ", gguf.ARRAY, gguf.ARRAY, 1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (header(HUGE), f"{HUGE} metadata keys, at most"),
        (header(0, tensors=HUGE), f"{HUGE} tensors, at most"),
        (header(1, struct.pack("<Q", HUGE)), f"metadata key 1 of 1, near byte 32: a string of {HUGE} bytes"),
        (header(1, gguf.raw_string(b"\xff\xfe")), "not UTF-8"),
        (header(1, KEY, struct.pack("<I", 13)), "metadata key 'some.key', near byte 44: value type 13"),
        (header(1, KEY, struct.pack("<IQ", gguf.STRING, HUGE)), f"a string of {HUGE} bytes"),
        (header(1, KEY, NESTED), "an array of arrays"),
        (header(1, KEY, struct.pack("<IIQ", gguf.ARRAY, gguf.UINT32, HUGE)), f"at most {MAX_ARRAY_ELEMENTS}"),
        (header(1, KEY, struct.pack("<IIQ", gguf.ARRAY, gguf.UINT64, 2**22)), "the header takes at least"),
        (header(1, KEY, struct.pack("<IIQ", gguf.ARRAY, gguf.STRING, HUGE)), f"at most {MAX_ARRAY_ELEMENTS}"),
        (header(1, KEY, struct.pack("<IIQQ", gguf.ARRAY, gguf.STRING, 1, HUGE)), "element 0 is a string of"),
        (header(2, KEY, gguf.u32(1), KEY, gguf.u32(1)), "the key appears twice"),
        (header(1, gguf.raw_string(b"general.alignment"), gguf.u32(3)), "expected a power of two"),
        (header(0, KEY, struct.pack("<I", 5), tensors=1), "tensor 'some.key', near byte 44: 5 dimensions"),
        (header(0, KEY, struct.pack("<I2QIQ", 2, HUGE, 2, 0, 0), tensors=1), "more elements than 64 bits"),
        (header(0, KEY, struct.pack("<I1QIQ", 1, 8, 0, 7), tensors=1), "offset 7 is no multiple"),
        (header(0, *[KEY + struct.pack("<I1QIQ", 1, 8, 0, 0)] * 2, tensors=2), "the tensor appears twice"),
    ],
)
def test_a_malformed_header_is_told_with_the_place(tmp_path: Path, content: bytes, told: str) -> None:
    message = refusal_of(content, tmp_path)
    assert "malformed GGUF header" in message
    assert told in message


def never_anything_but_a_model_error(path: Path) -> None:
    started = time.monotonic()
    try:
        read_model_header(path)
    except ModelError as error:
        assert str(path) in str(error)  # noqa: PT017 (a model that still reads well is right too)
    assert time.monotonic() - started < SLOW


def test_no_flipped_byte_in_a_real_header_raises_anything_but_a_model_error(tmp_path: Path, smollm2_path: Path) -> None:
    content = assemble(TinyModel(), smollm2_path).header_bytes()
    ends = (4096, len(content))  # half of them where the structure is dense
    chance = random.Random(1)
    for round_number in range(200):
        damaged = bytearray(content)
        damaged[chance.randrange(ends[round_number % 2])] ^= 1 << chance.randrange(8)
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        never_anything_but_a_model_error(tmp_path / "damaged.gguf")


def test_every_value_type_is_read_with_its_own_size(tmp_path: Path) -> None:
    values = {
        "u8": struct.pack("<IB", ValueType.UINT8, 255),
        "i8": struct.pack("<Ib", ValueType.INT8, -1),
        "u16": struct.pack("<IH", ValueType.UINT16, 65_535),
        "i16": struct.pack("<Ih", ValueType.INT16, -2),
        "u64": struct.pack("<IQ", ValueType.UINT64, 2**64 - 1),
        "i64": struct.pack("<Iq", ValueType.INT64, -3),
        "f64": struct.pack("<Id", ValueType.FLOAT64, 0.5),
        "bool": gguf.boolean(True),
        "text": gguf.text("é"),
    }
    GgufFile(values).write(tmp_path / "values.gguf")
    read = dict(read_header(tmp_path / "values.gguf").metadata)
    assert list(read.values()) == [255, -1, 65_535, -2, 2**64 - 1, -3, 0.5, True, "é"]
