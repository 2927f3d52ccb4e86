"""Engines in processes of their own, on the fake model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from forerun.engine.front_end import FrontEndParts
from forerun.engine.process import Backoff, EngineProgram
from forerun.engine.remote import RemoteLimits, RemoteWorker
from forerun.engine.tokenizer import Tokenizer
from forerun.testing.served import ByteVocabulary, served_template

FACTORY = "tests.support.fake_engine:make"
AT_ONCE = Backoff(first=0.001, most=0.01)


def remote_worker(
    limits: RemoteLimits | None = None, backoff: Backoff = AT_ONCE, beat: float = 1.0, **options: Any
) -> RemoteWorker:
    """A worker whose process builds tests.support.fake_engine with these options."""
    return RemoteWorker(EngineProgram(FACTORY, options, beat), limits or RemoteLimits(), backoff)


def front_end_parts(worker: RemoteWorker) -> FrontEndParts:
    return FrontEndParts(
        worker=worker,
        tokenizer=Tokenizer(ByteVocabulary()),
        chat_template=served_template(),
        model_name="fake",
        n_ctx=65_536,
        max_num_seqs=64,
    )


@contextmanager
def running(worker: RemoteWorker) -> Iterator[RemoteWorker]:
    """A worker that is ready, closed at the end."""
    try:
        worker.started.result(30)
        yield worker
    finally:
        worker.close()
