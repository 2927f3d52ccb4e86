"""A segment comes back from its file as it was, and any other file is a BadSegmentError and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.cache.file_format import (
    MAX_PAYLOAD_BYTES,
    BadSegmentError,
    decode_head,
    encode_head,
    read_head,
    read_segment,
)
from forerun.core.prefix import PromptCheckpointState
from forerun.core.prompt import PromptBoundary, PromptSegment
from forerun.core.segment import SegmentHeader
from tests.cache.strategies import headers, states
from tests.cache.support import MODEL_KEY, file_of, header_of, state_of, text_header

HEADER = header_of(
    [PromptSegment.text(range(100)), PromptSegment.media("image-a", 576, 1), PromptSegment.text([7])],
    PromptBoundary(512, 512),
    parent="ab" * 16,
    draft_tokens=90,
    whole_from=3,
)
STATE = state_of(HEADER, 200)
FILE = file_of(HEADER, STATE)


def read(data: bytes) -> tuple[SegmentHeader, PromptCheckpointState]:
    head, state = read_segment(io.BytesIO(data), len(data))
    return head.header, state


def refused(data: bytes) -> str:
    with pytest.raises(BadSegmentError) as refusal:
        read(data)
    return str(refusal.value)


def with_header(text: bytes, tokens: bytes | None = None, payload: int = 200) -> bytes:
    """A file with another header, all digests right."""
    own_tokens = struct.pack("<101i", *range(100), 7) if tokens is None else tokens
    start = struct.pack("<8sIIIIQ", b"FORERUN\n", 1, len(text), len(own_tokens) // 4, 0, payload) + text + own_tokens
    head = start + hashlib.sha256(start).digest()
    body = head + STATE.state
    return body + hashlib.sha256(body).digest()


def lying(**fields: Any) -> bytes:
    """The file with other values in its header, written as headers are."""
    honest = json.loads(FILE[32 : 32 + struct.unpack_from("<I", FILE, 12)[0]])
    return with_header(json.dumps(honest | fields, sort_keys=True, separators=(",", ":")).encode())


@given(headers(), states)
def test_what_is_written_is_read(header: SegmentHeader, state: PromptCheckpointState) -> None:
    data = file_of(header, state)
    assert read(data) == (header, state)
    head = read_head(io.BytesIO(data), len(data))
    assert (head.header, head.model_key, head.payload_bytes) == (header, MODEL_KEY, len(state.state))
    assert head.file_bytes == len(data)


def test_the_file_is_laid_out_as_documented() -> None:
    assert lying() == FILE
    assert FILE[:12] == b"FORERUN\n\x01\0\0\0"
    assert FILE[-32:] == hashlib.sha256(FILE[:-32]).digest()
    assert FILE[32:].startswith(b'{"content":[["text",100],["media","image-a",576,1],["text",1]],"draft_stop":602,')


@given(st.data())
def test_a_flipped_bit_is_found_wherever_it_is(data: st.DataObject) -> None:
    broken = bytearray(FILE)
    broken[data.draw(st.integers(0, len(FILE) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused(bytes(broken))


@given(st.integers(0, len(FILE) - 1))
def test_a_cut_file_is_refused_by_its_head_already(length: int) -> None:
    refused(FILE[:length])
    with pytest.raises(BadSegmentError):
        read_head(io.BytesIO(FILE[:length]), length)


@given(st.binary(min_size=1, max_size=200))
def test_a_file_with_more_behind_it_is_refused(more: bytes) -> None:
    refused(FILE + more)


@given(st.binary(max_size=3000))
def test_noise_is_refused(noise: bytes) -> None:
    refused(noise)
    refused(FILE[:12] + noise)
    refused(FILE[:32] + noise)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_head_with_right_digests_and_noise_inside_is_refused(text: bytes, tokens: bytes) -> None:
    refused(with_header(text, tokens[: len(tokens) // 4 * 4]))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = ("content", "draft_stop", "key", "model", "parent", "scope", "start", "state", "stop", "whole_from")


@given(st.sampled_from(_FIELDS), _json)
def test_a_header_that_lies_in_one_field_is_refused_or_says_what_was_meant(field: str, value: object) -> None:
    data = lying(**{field: value})
    try:
        header, state = read(data)
    except BadSegmentError:
        return
    assert file_of(header, state) == data


@pytest.mark.parametrize(
    "fields",
    [
        {"draft_stop": 602.0},
        {"draft_stop": True},
        {"draft_stop": 511},
        {"draft_stop": 614},
        {"whole_from": -1},
        {"whole_from": 2**53},
        {"whole_from": 10**4000},
        {"stop": [1189, 615, 576]},
        {"stop": [1189, 614]},
        {"stop": [1189, 614, 577]},
        {"start": [512, 512, 513], "stop": [1189, 614, 1089]},
        {"start": [512, 512, 0]},
        {"start": [0, 0], "stop": [677, 102, 576], "draft_stop": 90},
        {"parent": "AB" * 16},
        {"parent": "../../../../../../etc/passwd"},
        {"scope": "ab" * 16},
        {"scope": "ab" * 8},
        {"scope": "ab" * 48},
        {"scope": "AB" * 32},
        {"model": ""},
        {"model": "ba" * 16},
        {"key": "00" * 16},
        {"state": "other"},
        {"state": ["target"]},
        {"content": []},
        {"content": [["text", 101]]},
        {"content": [["text", 100], ["media", "image-a", 576, 1], ["text", 2]]},
        {"content": [["text", 100], ["media", "image-b", 576, 1], ["text", 1]]},
        {"content": [["text", 100], ["media", "\ud800", 576, 1], ["text", 1]]},
        {"content": [["text", 100], ["media", "", 576, 1], ["text", 1]]},
        {"content": 5},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_lie_is_refused(fields: dict[str, Any]) -> None:
    assert "header" in refused(lying(**fields))


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"null", b"[" * 60000, b'{"a":' * 10000, b"\xff\xfe{\0}\0", b"NaN"]
)
def test_a_header_that_is_no_header_is_refused(text: bytes) -> None:
    refused(with_header(text))


def test_there_is_one_way_to_write_a_header() -> None:
    text = FILE[32 : 32 + struct.unpack_from("<I", FILE, 12)[0]]
    assert with_header(text) == FILE
    for other in (text + b" ", b" " + text, text[:-1] + b',"key":"' + HEADER.key.encode() + b'"}'):
        assert "not written as it should be" in refused(with_header(other))
    refused(with_header(text.decode().encode("utf-16")))


@pytest.mark.parametrize(("offset", "value"), [(12, 2**32 - 1), (16, 2**32 - 1), (16, 2**20 + 1), (20, 1), (24, 2**31)])
def test_a_length_beyond_all_measure_is_refused_before_anything_is_read_for_it(offset: int, value: int) -> None:
    data = FILE[:offset] + struct.pack("<I", value) + FILE[offset + 4 :]
    refused(data)


def test_another_version_is_named() -> None:
    assert refused(FILE[:8] + struct.pack("<I", 2) + FILE[12:]) == "format version 2, this is 1"


def test_negative_token_ids_are_refused() -> None:
    refused(with_header(FILE[32 : 32 + struct.unpack_from("<I", FILE, 12)[0]], b"\xff" * 404))


def test_what_could_not_be_read_again_is_not_written() -> None:
    header = text_header([1, 2, 3])
    long = header_of([PromptSegment.text([1])] * 30000)
    for wrong in (dataclasses.replace(header, key="00" * 16), dataclasses.replace(header, draft_stop=4), long):
        with pytest.raises(BadSegmentError):
            encode_head(MODEL_KEY, wrong, state_of(header))
    with pytest.raises(BadSegmentError):
        encode_head("no key", header, state_of(header))


def test_the_head_of_an_ordinary_segment_is_read_at_once() -> None:
    data = file_of(text_header(range(512)), STATE)
    head = decode_head(data)
    assert len(head.encoded) < 4096
    assert head.payload_bytes < MAX_PAYLOAD_BYTES
