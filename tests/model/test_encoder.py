"""The encoding thread on what it remembers: nothing that is said of a span outlives its being forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from forerun.core.encoding import EncodeMedia, ForgetMedia, MediaEvent
from forerun.core.prompt import MediaSpan
from forerun.native.context import NativeStepError
from forerun.native.encoded import Embeddings, Encoded, Geometry
from forerun.native.encoder import MediaEncoder

pytestmark = pytest.mark.model

SPAN = MediaSpan("image", 3, 2)
ENCODED = Encoded(np.ones((3, 4), np.float32), Geometry(np.zeros((4, 3), np.int32), np.ones((4, 3), np.int32)), True)


class WaitingStore:
    """Remembers every span, and says so as often as it is allowed to."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)

    def get(self, _identity: str) -> bytes | None:
        assert self.allowed.acquire(timeout=30)
        return ENCODED.to_bytes()

    def put(self, identity: str, encoded: bytes) -> None:
        raise AssertionError(f"{identity} was encoded to {len(encoded)} bytes")


@pytest.fixture
def store() -> WaitingStore:
    return WaitingStore()


@pytest.fixture
def encoder(store: WaitingStore) -> Iterator[MediaEncoder]:
    nothing = cast(Any, None)  # everything is remembered
    one = MediaEncoder(nothing, nothing, store)
    yield one
    store.allowed.release(10)
    one.close()


def test_a_span_that_is_forgotten_and_asked_for_again_is_not_ready_before_it_is_encoded_again(
    encoder: MediaEncoder, store: WaitingStore
) -> None:
    encoder.perform([EncodeMedia(SPAN)])
    store.allowed.release()
    encoder.wait(30)  # it is encoded, and nobody was told yet
    encoder.perform([ForgetMedia(SPAN), EncodeMedia(SPAN)])
    assert encoder.take_events() == ()
    with pytest.raises(NativeStepError, match="is not encoded"):
        encoder.encoded_span(SPAN)
    store.allowed.release()
    encoder.wait(30)
    assert encoder.take_events() == (MediaEvent(SPAN),)
    assert encoder.encoded_span(SPAN).embeddings.shape == (3, 4)


def test_nothing_is_told_of_a_span_that_is_forgotten_while_it_is_encoded(
    encoder: MediaEncoder, store: WaitingStore
) -> None:
    other = MediaSpan("other", 3, 2)
    encoder.perform([EncodeMedia(SPAN), EncodeMedia(other)])
    encoder.perform([ForgetMedia(SPAN)])
    store.allowed.release(2)
    encoder.wait(30)
    assert encoder.take_events() == (MediaEvent(other),)


class SpoiltProjector:
    """Encodes everything to one array."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def encode(self, _chunk: object) -> Embeddings:
        return self._embeddings


class OneChunk:
    """Has everything prepared."""

    geometry, is_causal = ENCODED.geometry, True

    def prepared(self, _identity: str) -> OneChunk:
        return self


class EmptyStore:
    """Remembers nothing, and wants nothing to be remembered."""

    def get(self, _identity: str) -> bytes | None:
        return None

    def put(self, identity: str, encoded: bytes) -> None:
        raise AssertionError(f"{identity} was encoded to {len(encoded)} bytes")


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 0.0])
def test_what_would_spoil_the_memory_of_all_ends_its_request_alone(number: float) -> None:
    embeddings = np.ones((3, 4), np.float32)
    embeddings[1] = number
    one = MediaEncoder(cast(Any, SpoiltProjector(embeddings)), cast(Any, OneChunk()), EmptyStore())
    one.perform([EncodeMedia(SPAN)])
    one.wait(30)
    (event,) = one.take_events()
    assert event.error == "the projector makes no numbers of it: send it in another form"
    with pytest.raises(NativeStepError):
        one.encoded_span(SPAN)
    one.close()
