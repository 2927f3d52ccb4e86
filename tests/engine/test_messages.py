"""What travels between a front end and an engine process."""

from __future__ import annotations

import socket
import struct

import msgspec
import pytest

from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import FinishReason, OutputDelta, Request, SamplingParams, TokenLogprobs, Usage
from forerun.engine import messages
from forerun.engine.connection import Connection
from forerun.engine.media_mail import Measure
from forerun.engine.messages import Abort, Beat, Deltas, GiveMedia, Submit
from forerun.engine.questions import LookUp
from forerun.errors import (
    EngineError,
    ForerunError,
    InvalidConfigError,
    InvalidRequestError,
    ModelFileError,
    OverloadedError,
    StepFailedError,
)
from forerun.media.picture import Picture
from forerun.media.sound import Sound
from tests.media.sounds import tone

FULL = SamplingParams(
    max_tokens=5,
    temperature=0.5,
    logit_bias={3: float("-inf")},
    seed=2**64 - 1,
    stop=("a", "世"),
    speculation="off",
    adapters={"x": -2.0},
)
USAGE = Usage(prompt_tokens=3, cached_tokens=1, output_tokens=2, drafters={"ngram": (3, 2)})


def pair() -> tuple[Connection[messages.Report], socket.socket]:
    ours, theirs = socket.socketpair()
    return Connection(ours, messages.reports()), theirs


def test_requests_come_as_they_were_sent() -> None:
    request = Request(
        id="a",
        prompt=PromptLayout.of_text(range(1000)),
        params=FULL,
        tenant="t",
        drawn_seed=2**64 - 1,
        priority=-5,
        deadline=12.5,
        reuses_cache=False,
    )
    data = messages.encode(Submit((request,)))
    assert messages.commands().decode(data[messages.LENGTH.size :]) == Submit((request,))
    assert len(data) < 5000


def test_deltas_come_as_they_were_sent() -> None:
    deltas = (
        OutputDelta("a", "é", (1, 2), (TokenLogprobs(1, -0.5, ((1, -0.5),)),), origins=(("target", 2),)),
        OutputDelta("b", "", (), finish_reason=FinishReason.STOP, usage=USAGE),
        OutputDelta("c", "", (), prefill_done=(5, 9)),
    )
    data = messages.encode(Deltas(deltas))
    assert messages.reports().decode(data[messages.LENGTH.size :]) == Deltas(deltas)


@pytest.mark.parametrize(
    "error", [InvalidRequestError("top_k", "is: odd"), InvalidConfigError("n_ctx", "no"), StepFailedError("x")]
)
def test_errors_keep_class_field_and_message(error: ForerunError) -> None:
    delta = OutputDelta("a", "", (), finish_reason=FinishReason.ERROR, error=error)
    data = messages.encode(Deltas((delta,)))
    received = messages.reports().decode(data[messages.LENGTH.size :])
    assert isinstance(received, Deltas)
    came = received.deltas[0].error
    assert type(came) is type(error)
    assert str(came) == str(error)
    assert getattr(came, "field", None) == getattr(error, "field", None)


@pytest.mark.parametrize("error", [OverloadedError("full", 3.0), KeyError("x")])
def test_errors_that_cannot_travel_are_told_as_engine_errors(error: Exception) -> None:
    came = messages.own_error(messages.wire_error(error))
    assert type(came) is EngineError
    assert str(error) in str(came)


def test_an_unknown_class_of_errors_is_an_engine_error() -> None:
    assert type(messages.own_error(messages.WireError("SystemExit", "x"))) is EngineError
    assert type(messages.own_error(messages.WireError("ModelFileError", "x"))) is ModelFileError


def test_media_travel_by_what_they_are_called_and_pixels_stay_behind() -> None:
    picture = Picture.of(2, 1, b"redgrn")
    segments = [PromptSegment.text([1, 2]), PromptSegment.media("image", 3, 1), PromptSegment.text([4])]
    request = Request(id="a", prompt=PromptLayout(segments, {"image": picture}), params=FULL)
    data = messages.encode(Submit((request,)))
    assert picture.rgb not in data
    submitted = messages.commands().decode(data[messages.LENGTH.size :])
    assert isinstance(submitted, Submit)
    (found,) = submitted.requests
    assert found.prompt == request.prompt
    assert not found.prompt.media


def test_pixels_come_as_they_were_sent_where_they_are_asked_for() -> None:
    picture = Picture.of(2, 1, b"redgrn")
    sound = tone()
    for sent in (GiveMedia("digest", picture), GiveMedia("digest", sound), GiveMedia("digest", None)):
        data = messages.encode(sent)
        found = messages.commands().decode(data[messages.LENGTH.size :])
        assert found == sent
        assert isinstance(found, GiveMedia)
        assert not isinstance(found.item, Picture) or found.item.rgb == picture.rgb
        assert not isinstance(found.item, Sound) or found.item.samples == sound.samples
    for item in (picture, sound):
        assert messages.question_of(messages.asked(1, Measure(item))) == Measure(item)
    segments = (PromptSegment.text([1]), PromptSegment.media("image", 3, 1))
    assert messages.answer_of(messages.answered(1, segments), Measure) == segments


def test_a_question_and_its_answer_have_the_types_they_are_declared_with() -> None:
    question = LookUp(PromptLayout.of_text([1, 2]), "t", (("x", 0.5),))
    assert messages.question_of(messages.asked(1, question)) == question
    wrong = messages.answered(1, {"prompt_tokens": "three"})
    with pytest.raises(msgspec.ValidationError):
        messages.answer_of(wrong, LookUp)


def test_messages_in_pieces_and_together_are_whole() -> None:
    connection, theirs = pair()
    data = messages.encode(Beat(1, None)) + messages.encode(Beat(2, 0.5))
    for start in range(len(data) - 1):
        theirs.send(data[start : start + 1])
    assert connection.receive() == Beat(1, None)
    with pytest.raises(TimeoutError):
        connection.receive(0.01)
    theirs.send(data[-1:])
    assert connection.receive() == Beat(2, 0.5)
    theirs.close()
    connection.close()


def test_a_message_torn_by_a_death_is_the_end() -> None:
    connection, theirs = pair()
    theirs.send(messages.encode(Beat(1, None))[:-1])
    theirs.close()
    assert connection.receive() is None
    connection.close()


@pytest.mark.parametrize("data", [struct.pack("<I", 2**31), struct.pack("<I", 3) + b"abc"])
def test_what_is_no_message_is_an_error_and_not_memory(data: bytes) -> None:
    connection, theirs = pair()
    theirs.send(data)
    with pytest.raises(EngineError, match="a message between front end and engine"):
        connection.receive()
    theirs.close()
    connection.close()


def test_a_message_beyond_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE", 100)
    with pytest.raises(ForerunError, match="bytes in one message, at most 100 are sent"):
        messages.encode(Abort(("x" * 100,)))
