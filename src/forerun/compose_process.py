"""An engine on a real model in a process of its own, and what stands before it in this one: its vocabulary, its chat
template, and the worker that keeps the process going."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import ExitStack, suppress
from dataclasses import fields
from typing import Any, Final, Protocol

from forerun.buffers import trim_heap
from forerun.compose import as_listed, build, chat_template, given_template, settled, usable_files
from forerun.compose_media import media_kinds
from forerun.engine.front_end import FrontEndParts
from forerun.engine.health import EngineHealth
from forerun.engine.loading import LoadPhase, LoadProgress, during
from forerun.engine.media_mail import RemoteMediaReader
from forerun.engine.parts import EngineParts
from forerun.engine.process import EngineProgram
from forerun.engine.remote import RemoteLimits, RemoteWorker
from forerun.engine.spawn import SpareProcess
from forerun.engine.tokenizer import Tokenizer
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError

_LOOKS: Final = 0.2
"""Seconds between two looks at how far loading has got."""


def build_from(options: Mapping[str, Any], progress: LoadProgress) -> EngineParts:
    """What the process builds: `options` are the fields of an EngineConfig. Raises ForerunError."""
    return build(EngineConfig(**options), progress, front_end=os.getppid())


def in_own_process(
    config: EngineConfig,
    progress: LoadProgress | None = None,
    limits: RemoteLimits | None = None,
    *,
    spare: SpareProcess | None = None,
) -> FrontEndParts:
    """Start an engine in a process of its own and wait until it is ready; it is started again whenever it dies.

    `AsyncEngine(in_own_process(config))` is used like any other. `spare`: a process that may be taken for it. Raises
    ModelError with one clear line, and what `progress` raises: there is no process then.
    """
    from forerun.native.model import LlamaModel

    plain_options(config)  # refused before anything is looked at
    given = given_template(config)
    found = usable_files(config, during(LoadPhase.FILES, progress))
    options = plain_options(settled(config, found))
    kinds = media_kinds(as_listed(config))
    held = ExitStack()
    tokenizers: list[Tokenizer] = []

    def dispose(reason: str) -> None:
        for one in tokenizers:
            one.retire(reason)
        held.close()

    program = EngineProgram(f"{__name__}:build_from", options, spare=spare)
    with ExitStack() as starting:
        # First of all: while it loads the model, this process reads the vocabulary.
        worker = RemoteWorker(program, limits or RemoteLimits(), dispose=dispose)
        starting.callback(worker.close)
        model = LlamaModel.load(found.paths[0], vocab_only=True)
        held.callback(model.close)
        tokenizers.append(tokenizer := Tokenizer(model.vocabulary))
        template = chat_template(model, given)
        wait_until_started(worker, progress)
        starting.pop_all()
    trim_heap()
    return FrontEndParts(
        worker=worker,
        tokenizer=tokenizer,
        chat_template=template,
        media=RemoteMediaReader(worker, kinds) if kinds else None,
        model_name=found.paths[0].name,
        n_ctx=found.usable_limits.n_ctx,
        max_num_seqs=found.usable_limits.max_num_seqs,
    )


def plain_options(config: EngineConfig) -> dict[str, Any]:
    """The fields of a configuration, if they can be told another process. Raises InvalidConfigError."""
    if config.drafter is not None and not isinstance(config.drafter, str):
        raise InvalidConfigError(
            "drafter", "an engine in its own process has to find it by name: give 'module:factory', not the object"
        )
    # Templates are rendered in front: a process that starts again needs no file that may be gone by then.
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name != "chat_template"}


class Starting(Protocol):
    """What has a process that loads a model."""

    started: Future[Any]

    @property
    def health(self) -> EngineHealth: ...

    def close(self) -> None: ...


def wait_until_started(one: Starting, progress: LoadProgress | None) -> None:
    """Until its model is loaded; closes it where that fails or `progress` raises, and raises why."""
    try:
        while True:
            with suppress(NotYet):
                one.started.result(_LOOKS)
                return
            health = one.health
            if progress is not None:
                progress(health.phase or LoadPhase.FILES, health.loading, health.progress)
    except BaseException:
        one.close()
        raise
