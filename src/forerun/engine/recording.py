"""The file of a recorded engine: everything its scheduler was told, and what it decided, as JSON lines.

    {"type": "session", ...}     an engine started: its limits, measured costs, what it found on disk
    {"type": "arrival", ...}     a request, its prompt by names (engine/disguise.py)
    {"type": "plan", ...}        a step was decided: when, what drafters proposed for it, a digest of the plan
    {"type": "result", ...}      what the runner learned, and who ended with that
    {"type": "cancel" | "look" | "pin" | "clear", ...}

Text is there only where it was asked for; a replay does not read it. The scheduler is a function of what is recorded:
`forerun replay` decides the same steps again, without a model. An engine that starts again goes on in the same file.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import msgspec
import numpy as np

from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import Request
from forerun.core.segment import StoredSegment
from forerun.core.step import Proposal, StepResult
from forerun.errors import ForerunError, InvalidConfigError

logger = logging.getLogger(__name__)

FORMAT: Final = "forerun-recording-1"
MOST_BYTES: Final = 2**30
"""Of a recording; it ends there."""
_LONGEST_LINE: Final = 2**28


class _Line(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, kw_only=True, omit_defaults=True):
    """One thing that happened. The class name, in small letters, is its type."""


class Session(_Line, frozen=True, kw_only=True):
    """An engine started."""

    format: str
    forerun: str
    """The version that recorded."""
    config: SchedulerConfig
    costs: tuple[Mapping[str, Any], ...] = ()
    """Measured curves, of target and draft."""
    pace: Mapping[str, Any] | None = None
    """The target's curve where drafts do not go by costs."""
    lookups: tuple[str, ...] = ()
    """Drafters that need no model, by name."""
    stored: tuple[StoredSegment, ...] = ()
    """What was on disk."""


class Arrival(_Line, frozen=True, kw_only=True):
    number: int
    """By which later lines call it."""
    request: Request
    """Without text, and without what it brought along to constrain it."""
    has_constraint: bool = False
    has_hook: bool = False
    """Whether something says which tokens are forced."""
    ends: tuple[int, ...] = ()
    """Names of the prompt's tokens that end turns; only where the memory has a state."""
    text: str | None = None


class Cancel(_Line, frozen=True, kw_only=True):
    number: int
    now: float


class Pace(_Line, frozen=True, kw_only=True):
    """A request's reader is behind, or has caught up."""

    number: int
    is_paused: bool


class Look(_Line, frozen=True, kw_only=True):
    """Somebody looked a prompt up."""


class Pin(_Line, frozen=True, kw_only=True):
    prompt: PromptLayout
    scope: str
    until: float


class Clear(_Line, frozen=True, kw_only=True):
    scope: str | None


class Answers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What others told the scheduler while it decided, in order of its questions."""

    proposals: tuple[tuple[Proposal, ...], ...] = ()
    """Of drafters: one for each sequence they were asked about."""
    forced: tuple[tuple[int, ...] | None, ...] = ()
    """Of grammars and hooks; None for one that raised."""
    accepted: tuple[int, ...] = ()
    """How many tokens of a proposal a grammar let come."""


class Plan(_Line, frozen=True, kw_only=True):
    now: float
    digest: str = ""
    """Of the plan in words (engine/plan_text.py); empty where the scheduler raised."""
    rows: tuple[int, int, int] = (0, 0, 0)
    """Decode rows, their drafts, prefill rows."""
    answers: Answers = Answers()
    took: float = 0.0
    """Seconds of deciding, recording left out; for `forerun bench profile`, as `Result.took`."""


class Result(_Line, frozen=True, kw_only=True):
    result: StepResult
    """Tokens by their names, segments by their numbers."""
    answers: Answers = Answers()
    ended: tuple[tuple[int, int | None], ...] = ()
    """Requests, each with the name of the token that ended it, if one did."""
    texts: Mapping[int, str] = {}
    """What requests were given to show."""
    took: float = 0.0
    """Seconds of learning the result."""


Line: TypeAlias = Session | Arrival | Cancel | Pace | Look | Pin | Clear | Plan | Result


def _encoded(value: object) -> object:
    if isinstance(value, PromptLayout):
        return [_encoded(segment) for segment in value.segments]
    if isinstance(value, PromptSegment):
        span = value.media_span
        return value.tokens.tobytes() if span is None else [span.identity, span.logical_tokens, span.native_positions]
    raise NotImplementedError(f"{type(value).__name__} is not recorded")


def _decoded(kind: type, value: Any) -> object:
    if kind is PromptLayout:
        return PromptLayout([_segment(segment) for segment in value])
    if kind is PromptSegment:
        return _segment(value)
    raise NotImplementedError(f"{kind.__name__} is not recorded")


def _segment(value: Any) -> PromptSegment:
    if isinstance(value, list):
        identity, logical_tokens, native_positions = value
        return PromptSegment.media(str(identity), int(logical_tokens), int(native_positions))
    return PromptSegment.text(np.frombuffer(msgspec.convert(value, bytes), np.int32))


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_encoded)


@functools.cache
def _decoder() -> msgspec.json.Decoder[Line]:
    return msgspec.json.Decoder(Line, dec_hook=_decoded)


class Journal:
    """Writes a recording. Used by the engine's thread. What cannot be written ends the recording, not the engine."""

    def __init__(self, path: Path, *, has_text: bool = False, most_bytes: int = MOST_BYTES) -> None:
        """Goes on behind what is in the file. Raises InvalidConfigError where it cannot be opened."""
        self.path = path
        self.has_text = has_text
        self._left = most_bytes
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise InvalidConfigError("record", f"{path} cannot be written: {error.strerror}") from error
        self._file: BinaryIO | None = os.fdopen(descriptor, "ab")
        self._left -= self._file.tell()

    def write(self, line: Line) -> None:
        """Add a line, and see that it gets to the system."""
        file = self._file
        if file is None:
            return
        data = _ENCODER.encode(line) + b"\n"
        self._left -= len(data)
        if self._left < 0:
            self._give_up("it is as large as a recording may get")
            return
        try:
            file.write(data)
            file.flush()
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _give_up(self, reason: str) -> None:
        logger.warning("the recording %s ends here: %s", self.path, reason)
        self.close()

    def close(self) -> None:
        """Safe to call again."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                logger.exception("the recording %s could not be closed", self.path)


def read_recording(path: Path) -> Iterator[Line]:
    """The lines of a recording, without a torn last one. Raises ForerunError, naming the line, for what is none."""
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(_LONGEST_LINE):
                number += 1
                if not data.endswith(b"\n"):  # the engine died while it wrote
                    break
                yield _line(path, number, data)
    except OSError as error:
        raise ForerunError(f"{path} cannot be read: {error.strerror}") from error
    if not number:
        raise ForerunError(f"{path} is no recording: it is empty")


def _line(path: Path, number: int, data: bytes) -> Line:
    try:
        line = _decoder().decode(data)
    except (msgspec.MsgspecError, ForerunError, ValueError, TypeError) as error:
        raise ForerunError(f"{path} is no recording: line {number}: {error}") from error
    if number == 1 and not isinstance(line, Session):
        raise ForerunError(f"{path} is no recording: it does not begin with a session")
    if isinstance(line, Session) and line.format != FORMAT:
        raise ForerunError(f"{path}: line {number}: its format is {line.format!r}, not {FORMAT!r}")
    return line
