"""Items that an engine process has not: asked for by digest, and never waited for in vain."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from forerun.core.prompt import PromptSegment
from forerun.engine.media_desk import MediaDesk
from forerun.engine.media_mail import Measure, MediaMail, RemoteMediaReader
from forerun.errors import InvalidRequestError
from forerun.media.item import Media
from forerun.media.kind import MediaKind
from forerun.media.picture import Picture
from forerun.testing import FakeMediaReader

PICTURE = Picture.of(2, 1, b"redgrn")


def test_an_item_that_is_wanted_is_asked_for_and_waited_for() -> None:
    mail, wanted = MediaMail(), threading.Event()
    mail.connect(lambda digest: wanted.set() if digest == PICTURE.digest else None)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(mail.fetch(PICTURE.digest)))
    thread.start()
    assert wanted.wait(10)
    mail.deliver(PICTURE.digest, PICTURE)
    thread.join(10)
    assert found == [PICTURE]


def test_nobody_waits_for_mail_that_cannot_come() -> None:
    mail, wanted = MediaMail(), threading.Event()
    assert mail.fetch("without a front end") is None
    mail.connect(lambda _: wanted.set())
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(mail.fetch("x")))
    thread.start()
    assert wanted.wait(10)
    mail.close()
    thread.join(10)
    assert found == [None]
    mail.deliver("x", PICTURE)  # late, and for nobody


class CountingWorker:
    """Answers questions as the process would."""

    def __init__(self) -> None:
        self.asked: list[Media] = []

    def ask(self, question: Measure) -> Future[tuple[PromptSegment, ...]]:
        self.asked.append(question.item)
        answer: Future[tuple[PromptSegment, ...]] = Future()
        answer.set_result(tuple(FakeMediaReader().segments(question.item)))
        return answer


def test_a_picture_is_measured_once() -> None:
    worker: Any = CountingWorker()
    reader = RemoteMediaReader(worker, frozenset({MediaKind.IMAGE}))
    first = reader.segments(PICTURE)
    again = reader.segments(Picture.of(2, 1, b"redgrn"))
    other = reader.segments(Picture.of(2, 1, b"bluylw"))
    assert first == again != other
    assert len(worker.asked) == 2


def test_a_desk_without_a_projector_says_so() -> None:
    desk = MediaDesk(None, MediaMail(), lambda _: None)
    with pytest.raises(InvalidRequestError, match="no projector"):
        desk.measure(Measure(PICTURE)).result(10)
    desk.close()
