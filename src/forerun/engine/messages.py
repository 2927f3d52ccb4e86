"""What a front end and an engine process say to each other: frozen values, as msgpack, each with its length before it.

    front end   Start, then Submit, Abort, Pause, Resume, Ask, GiveMedia, Close      ──►
                ◄──  Loading, then Ready or Failed; then Deltas (one a step), Answer, WantMedia, Beat      engine

    front end   Start, then Embed, one at a time  ──►
                ◄──  Loading, then EmbedderReady or Failed; then Embedded                       embedding engine

    [ length: 4 bytes, little endian | msgpack ]

Nothing is pickled: each message is decoded into the types it is declared with. Prompts are the bytes of their token
ids, in the machine's order: both sides are one machine. Media spans travel by identity, what they are of only when
asked for.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar, get_type_hints

import msgspec
import numpy as np

from forerun import errors
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import OutputDelta, Request
from forerun.engine.loading import LoadPhase
from forerun.engine.media_mail import Measure
from forerun.engine.questions import ClearCache, Counts, Explain, LookUp, Pin, Question, Stats
from forerun.errors import EngineError, ForerunError, InvalidConfigError, InvalidRequestError
from forerun.media.item import Media

MAX_MESSAGE: Final = 256 * 2**20
"""Bytes. A prompt of the longest context there may be has 64 MiB."""
LENGTH: Final = struct.Struct("<I")
_NOTHING: Final = msgspec.Raw(b"\xc0")
"""None, as msgpack."""
_T = TypeVar("_T")


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One thing said. The class name goes first."""


class Start(_Message, frozen=True):
    """Build an engine. `factory`: "module:function", given the options and what to report progress to."""

    factory: str
    options: Mapping[str, Any]
    """Plain values: text, numbers, lists and maps of them."""
    path: tuple[str, ...] = ()
    """Where modules are found, beside where they are anyway."""
    log_levels: Mapping[str, int] = {}
    """Of loggers, by name; "" is the root."""
    beat: float = 1.0
    """Seconds between two beats."""


class Submit(_Message, frozen=True):
    requests: tuple[Request, ...]


class Abort(_Message, frozen=True):
    request_ids: tuple[str, ...]


class Pause(_Message, frozen=True):
    request_ids: tuple[str, ...]


class Resume(_Message, frozen=True):
    request_ids: tuple[str, ...]


class Ask(_Message, frozen=True):
    number: int
    """Comes back with the answer."""
    kind: str
    """A name in QUESTIONS."""
    question: msgspec.Raw


class GiveMedia(_Message, frozen=True):
    """What was wanted; None where nobody has it any more."""

    digest: str
    item: Media | None


class Close(_Message, frozen=True):
    pass


class Embed(_Message, frozen=True):
    """Compute vectors, as one batch. For the process of an embedding engine, which is given nothing else."""

    inputs: tuple[bytes, ...]
    """Token ids."""


class Loading(_Message, frozen=True):
    phase: LoadPhase
    what: str
    share: float


class Ready(_Message, frozen=True):
    model_name: str
    n_ctx: int


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """An error of errors.py, or of nobody's."""

    kind: str
    """Its class."""
    message: str
    field: str = ""


class Failed(_Message, frozen=True):
    """The engine could not be built."""

    error: WireError


class Deltas(_Message, frozen=True):
    """What one step gave."""

    deltas: tuple[OutputDelta, ...]


class Answer(_Message, frozen=True):
    number: int
    value: msgspec.Raw
    error: WireError | None = None


class WantMedia(_Message, frozen=True):
    """An item of an open request has to be encoded, and is not here."""

    digest: str


class Beat(_Message, frozen=True):
    """The engine process is there."""

    steps: int
    """Steps that ended since it started."""
    step_seconds: float | None
    """How long the step that goes on has taken; None where there is no work."""


class EmbedderReady(_Message, frozen=True):
    """What `embedding.Embedder` says of itself."""

    n_ctx: int
    max_inputs: int
    max_batch_tokens: int
    dimensions: int


class Embedded(_Message, frozen=True):
    """What came of the batch: a vector for each input, one after the other, or why there is none."""

    vectors: bytes
    """float32."""
    error: WireError | None = None


Command: TypeAlias = Start | Submit | Abort | Pause | Resume | Ask | GiveMedia | Close | Embed
Report: TypeAlias = Loading | Ready | Failed | Deltas | Answer | WantMedia | Beat | EmbedderReady | Embedded

QUESTIONS: Final[Mapping[str, type[Question[Any]]]] = {
    kind.__name__: kind for kind in (LookUp, Pin, ClearCache, Explain, Stats, Counts, Measure)
}
_KINDS: Final[Mapping[str, type[ForerunError]]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ForerunError)
}
_WITH_FIELD: Final = (InvalidRequestError, InvalidConfigError)


def wire_error(error: BaseException) -> WireError:
    """An error as it travels."""
    if isinstance(error, _WITH_FIELD):
        return WireError(type(error).__name__, str(error).removeprefix(f"{error.field}: "), error.field)
    if isinstance(error, ForerunError):
        return WireError(type(error).__name__, str(error))
    return WireError("EngineError", f"{type(error).__name__}: {error}")


def own_error(wire: WireError) -> ForerunError:
    """The error that travelled: of its class where errors.py has it, else an EngineError."""
    kind = _KINDS.get(wire.kind, EngineError)
    try:
        return kind(wire.field, wire.message) if issubclass(kind, _WITH_FIELD) else kind(wire.message)
    except TypeError:
        return EngineError(wire.message)


def _encoded(value: object) -> object:
    if isinstance(value, PromptLayout):
        return [_encoded(segment) for segment in value.segments]
    if isinstance(value, PromptSegment):
        span = value.media_span
        return value.tokens.tobytes() if span is None else [span.identity, span.logical_tokens, span.native_positions]
    if isinstance(value, ForerunError):
        return wire_error(value)
    raise NotImplementedError(f"{type(value).__name__} does not travel between processes")


def _decoded(kind: type, value: Any) -> object:
    if kind is PromptLayout:
        return PromptLayout(map(_segment, value))
    if kind is PromptSegment:
        return _segment(value)
    if issubclass(kind, ForerunError):
        return own_error(msgspec.convert(value, WireError))
    raise NotImplementedError(f"{kind.__name__} does not travel between processes")


def _segment(value: Any) -> PromptSegment:
    if isinstance(value, bytes):
        return PromptSegment(np.frombuffer(value, np.int32), None)
    identity, logical_tokens, native_positions = value
    return PromptSegment.media(identity, logical_tokens, native_positions)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_encoded)


class MessageTooLargeError(ForerunError):
    """More than MAX_MESSAGE bytes. Nothing was sent."""


def encode(message: Command | Report) -> bytes:
    """A message with its length. Raises MessageTooLargeError, and InvalidRequestError for what does not travel."""
    body = _ENCODER.encode(message)
    if len(body) > MAX_MESSAGE:
        raise MessageTooLargeError(f"{len(body)} bytes in one message, at most {MAX_MESSAGE} are sent")
    return LENGTH.pack(len(body)) + body


def asked(number: int, question: Question[Any]) -> Ask:
    """A question as it travels."""
    return Ask(number, type(question).__name__, msgspec.Raw(_ENCODER.encode(question)))


def question_of(ask: Ask) -> Question[Any]:
    """What was asked."""
    question: Question[Any] = _decoder(QUESTIONS[ask.kind]).decode(ask.question)
    return question


def answered(number: int, value: object) -> Answer:
    """What was answered, as it travels."""
    return Answer(number, msgspec.Raw(_ENCODER.encode(value)))


def failed(number: int, error: BaseException) -> Answer:
    """A question that ended with an error."""
    return Answer(number, _NOTHING, wire_error(error))


def answer_of(answer: Answer, question: type[Question[_T]]) -> _T:
    """The value that answers a question of this kind: of the type that its `answer` is declared to return."""
    value: _T = _decoder(_answer_type(question)).decode(answer.value)
    return value


@functools.cache
def _answer_type(question: type[Question[Any]]) -> Any:
    return get_type_hints(question.answer)["return"]


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_decoded)


def commands() -> msgspec.msgpack.Decoder[Command]:
    return _decoder(Command)


def reports() -> msgspec.msgpack.Decoder[Report]:
    return _decoder(Report)
