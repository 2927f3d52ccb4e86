"""One stored segment as a file. Nothing in one is trusted: what is not exactly as written here raises BadSegmentError.

    offset      bytes
    0           8       magic, "FORERUN\\n"
    8           4       format version, 1
    12          4       H, bytes of the header
    16          4       T, token ids
    20          4       zero
    24          8       P, bytes of the payload
    32          H       header: a JSON object, ASCII, keys sorted, no spaces
    32+H        4T      token ids of all text in order, int32
                32      SHA-256 of all above: what a scan at start reads ends here
                P       payload: a PromptCheckpointState's bytes
                32      SHA-256 of all above

Numbers are little-endian. The header of 700 tokens of text around an image, which go on from another segment:

    {"content":[["text",600],["media","image-a",576,1],["text",100]],"draft_stop":1212,"key":"5f0c...","model":"9ab2...",
     "parent":"d41d...","scope":"","start":[512,512],"state":"speculative","stop":[1788,1213,576],"whole_from":0}

Boundaries are logical tokens, native position and, where there are any, tokens of media.

`key` is `core.segment.segment_key` of the rest: a file under another's name, of another model or with other tokens is
found out by its head alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from forerun.buffers import new_buffer
from forerun.core.prefix import PromptCheckpointState
from forerun.core.prompt import PromptBoundary, PromptSegment, as_tokens
from forerun.core.segment import SegmentHeader, segment_key

MAGIC: Final = b"FORERUN\n"
VERSION: Final = 1
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_TOKENS: Final = 2**20
"""Text tokens of one segment: where memory has a state, a segment may be a whole prompt."""
MAX_PAYLOAD_BYTES: Final = 2**31 - 4096
"""Linux reads no more than this at once."""

_PREAMBLE: Final = struct.Struct("<8sIIIIQ")
_DIGEST_BYTES: Final = 32
_FIRST_READ: Final = 4096
"""The head of an ordinary segment, 512 tokens of text, is 2.5 KB."""
_MAX_COORDINATE: Final = 2**53
_KEY: Final = re.compile(r"[0-9a-f]{32}")
_SCOPE: Final = re.compile(r"(?:[0-9a-f]{32}){0,2}")
_FIELDS: Final = frozenset(
    {"content", "draft_stop", "key", "model", "parent", "scope", "start", "state", "stop", "whole_from"}
)
_STATES: Final = {"target": PromptCheckpointState.target, "speculative": PromptCheckpointState.speculative}
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Json: TypeAlias = Any
"""What json.loads gave: anything."""


class SegmentFile(Protocol):
    """A file opened for reading bytes, buffered or not."""

    def read(self, size: int, /) -> bytes | None: ...

    def readinto(self, buffer: memoryview, /) -> int | None: ...

    def seek(self, offset: int, /) -> int: ...


class BadSegmentError(Exception):
    """A file is no segment, or not the one it should be; or a segment is beyond what a file may hold."""


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """All of a segment's file but its payload."""

    model_key: str
    header: SegmentHeader
    is_speculative: bool
    payload_bytes: int
    encoded: bytes
    """As it stands in the file, digest included."""

    @property
    def file_bytes(self) -> int:
        return len(self.encoded) + self.payload_bytes + _DIGEST_BYTES

    def payload_digest(self, payload: bytes | memoryview) -> bytes:
        """The last bytes of the file."""
        digest = hashlib.sha256(self.encoded)
        digest.update(payload)
        return digest.digest()


def is_key(text: str) -> bool:
    """Whether a text is a key: 32 hexadecimal digits, lower case."""
    return _KEY.fullmatch(text) is not None


# --- writing ----------------------------------------------------------


def encode_head(model_key: str, header: SegmentHeader, state: PromptCheckpointState) -> SegmentHead:
    """What stands before the payload. Raises BadSegmentError for what could not be read again."""
    payload_bytes = memoryview(state.state).nbytes
    tokens = b"".join(segment.tokens.astype("<i4").tobytes() for segment in header.content)
    text = _header_text(model_key, header, is_speculative=state.is_speculative)
    preamble = _PREAMBLE.pack(MAGIC, VERSION, len(text), len(tokens) // 4, 0, payload_bytes)
    encoded = preamble + text + tokens
    encoded += hashlib.sha256(encoded).digest()
    if decode_head(encoded).header != header:
        raise BadSegmentError(f"segment {header.key} does not come back from a file as it is")
    return SegmentHead(model_key, header, state.is_speculative, payload_bytes, encoded)


def _header_text(model_key: str, header: SegmentHeader, *, is_speculative: bool) -> bytes:
    fields = {
        "content": [_described(segment) for segment in header.content],
        "draft_stop": header.draft_stop,
        "key": header.key,
        "model": model_key,
        "parent": header.parent,
        "scope": header.scope,
        "start": _coordinates(header.start),
        "state": "speculative" if is_speculative else "target",
        "stop": _coordinates(header.stop),
        "whole_from": header.whole_from,
    }
    return _ENCODER.encode(fields).encode()


def _coordinates(boundary: PromptBoundary) -> list[int]:
    """Two numbers where all before it is text."""
    media = [boundary.media_tokens] if boundary.media_tokens else []
    return [boundary.logical_tokens, boundary.native_position, *media]


def _described(segment: PromptSegment) -> list[str | int]:
    span = segment.media_span
    if span is None:
        return ["text", segment.logical_tokens]
    return ["media", span.identity, span.logical_tokens, span.native_positions]


# --- reading ----------------------------------------------------------


def read_head(file: SegmentFile, size: int) -> SegmentHead:
    """The head of a file of `size` bytes, read from its start; at most 4.3 MB are, 4 KB as a rule.

    Raises BadSegmentError, also where `size` is not what the head says; OSError.
    """
    data = _read(file, min(_FIRST_READ, size))
    missing = _head_bytes(data) - len(data)
    if missing > 0:
        data += _read(file, missing)
    head = decode_head(data)
    if head.file_bytes != size:
        raise BadSegmentError(f"the file has {size} bytes, its head says {head.file_bytes}")
    return head


def read_segment(file: SegmentFile, size: int) -> tuple[SegmentHead, PromptCheckpointState]:
    """All of a seekable file of `size` bytes, every byte checked. Raises BadSegmentError; OSError."""
    head = read_head(file, size)
    file.seek(len(head.encoded))
    payload = new_buffer(head.payload_bytes)
    if file.readinto(payload) != payload.nbytes:
        raise BadSegmentError("the file is shorter than it says")
    if _read(file, _DIGEST_BYTES) != head.payload_digest(payload):
        raise BadSegmentError("the payload does not match its digest")
    return head, _STATES["speculative" if head.is_speculative else "target"](payload.toreadonly())


def decode_head(data: bytes) -> SegmentHead:
    """The head that `data` begins with. Raises BadSegmentError."""
    length = _head_bytes(data)
    if len(data) < length:
        raise BadSegmentError(f"the head has {length} bytes, the file {len(data)}")
    encoded = data[:length]
    if hashlib.sha256(encoded[:-_DIGEST_BYTES]).digest() != encoded[-_DIGEST_BYTES:]:
        raise BadSegmentError("the head does not match its digest")
    _, _, header_bytes, _, _, payload_bytes = _PREAMBLE.unpack_from(encoded)
    text_end = _PREAMBLE.size + header_bytes
    text = encoded[_PREAMBLE.size : text_end]
    try:
        fields = json.loads(text.decode("ascii"))
        head = _head(fields, encoded[text_end:-_DIGEST_BYTES], payload_bytes, encoded)
        again = _header_text(head.model_key, head.header, is_speculative=head.is_speculative)
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise BadSegmentError(f"the header makes no sense: {error!r:.200}") from None
    # There is one way to write a header: what else JSON allows (1.0 for 1, a name twice, spaces) ends here.
    if again != text:
        raise BadSegmentError("the header is not written as it should be")
    return head


def _head_bytes(data: bytes) -> int:
    """How long the head is that `data` begins with, as far as its preamble can be believed."""
    if len(data) < _PREAMBLE.size:
        raise BadSegmentError(f"a head has {_PREAMBLE.size} bytes at least, the file {len(data)}")
    magic, version, header_bytes, tokens, zero, payload_bytes = _PREAMBLE.unpack_from(data)
    if magic != MAGIC or zero:
        raise BadSegmentError("the file is no segment")
    if version != VERSION:
        raise BadSegmentError(f"format version {version}, this is {VERSION}")
    if header_bytes > MAX_HEADER_BYTES or tokens > MAX_TOKENS or payload_bytes > MAX_PAYLOAD_BYTES:
        raise BadSegmentError(f"{header_bytes} bytes of header, {tokens} tokens, {payload_bytes} bytes of payload")
    return _PREAMBLE.size + int(header_bytes) + 4 * int(tokens) + _DIGEST_BYTES


def _head(fields: Json, tokens: bytes, payload_bytes: int, encoded: bytes) -> SegmentHead:
    """Raises KeyError, TypeError or ValueError for fields that make no sense."""
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        raise ValueError("other fields")
    start = _boundary(fields["start"])
    stop = _boundary(fields["stop"])
    content = _content(fields["content"], tokens)
    model_key, parent = (_key(fields[name]) for name in ("model", "parent"))
    scope = _text(fields["scope"])
    if not _SCOPE.fullmatch(scope):
        raise ValueError("no scope")
    if not model_key:
        raise ValueError("no model")
    if fields["key"] != segment_key(model_key, scope, parent, start, content):
        raise ValueError("the key is not that of the content")
    header = SegmentHeader(
        key=fields["key"],
        parent=parent,
        scope=scope,
        start=start,
        stop=stop,
        content=content,
        draft_stop=_count(fields["draft_stop"]),
        whole_from=_count(fields["whole_from"]),
    )
    _check_extent(header)
    if fields["state"] not in _STATES:
        raise ValueError("unknown state")
    return SegmentHead(model_key, header, fields["state"] == "speculative", payload_bytes, encoded)


def _content(described: Json, tokens: bytes) -> tuple[PromptSegment, ...]:
    ids = as_tokens(np.frombuffer(tokens, "<i4"))
    content: list[PromptSegment] = []
    taken = 0
    for kind, *rest in described:
        if kind == "text":
            (count,) = map(_count, rest)
            content.append(PromptSegment(ids[taken : taken + count], None))
            taken += count
        else:
            identity, logical_tokens, native_positions = rest
            content.append(PromptSegment.media(_text(identity), _count(logical_tokens), _count(native_positions)))
    if taken != ids.size:
        raise ValueError(f"{ids.size} token ids for text of {taken} tokens")
    return tuple(content)


def _check_extent(header: SegmentHeader) -> None:
    end = header.start.behind(header.content)
    if header.stop != end or header.stop.media_tokens != end.media_tokens or not header.tokens:
        raise ValueError("the content does not reach from start to stop")
    if not header.start.text_tokens <= header.draft_stop <= header.stop.text_tokens:
        raise ValueError("the draft's part ends elsewhere")


def _boundary(value: Json) -> PromptBoundary:
    logical_tokens, native_position, *media = map(_count, value)
    if not media:
        return PromptBoundary(logical_tokens, native_position)
    (media_tokens,) = media
    if not 0 < media_tokens <= logical_tokens:
        raise ValueError("no count of media")
    return PromptBoundary(logical_tokens, native_position, media_tokens)


def _count(value: Json) -> int:
    if type(value) is not int or not 0 <= value < _MAX_COORDINATE:
        raise ValueError("no count")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _key(value: Json) -> str:
    """A key, or "" for none."""
    if _text(value) and not is_key(value):
        raise ValueError("no key")
    return _text(value)


def _read(file: SegmentFile, count: int) -> bytes:
    data = file.read(count) or b""
    if len(data) != count:
        raise BadSegmentError("the file is shorter than it says")
    return data
