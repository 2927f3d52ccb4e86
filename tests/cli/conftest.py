"""The command line in this process, on the fake model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from forerun.cli import app
from forerun.engine.parts import ChatRenderer, EngineParts, MediaReader
from forerun.engine_config import EngineConfig
from forerun.testing import FakeRunner
from tests.engine.support import TurnTemplate, fake_parts

Forerun = Callable[..., Result]


class FakeBuild:
    """Stands for compose.build; a test may set the runner and look at the configuration."""

    def __init__(self) -> None:
        self.runner: FakeRunner | None = None
        self.media: MediaReader | None = None
        self.template: ChatRenderer = TurnTemplate()
        self.configs: list[EngineConfig] = []

    def __call__(self, config: EngineConfig, progress: object = None) -> EngineParts:
        del progress
        self.configs.append(config)
        parts = fake_parts(
            self.runner,
            n_ctx=config.n_ctx or 256,
            template=self.template,
            speculation=config.draft_tokens,
            synthetic_acceptance=config.synthetic_acceptance,
        )
        return replace(parts, media=self.media)


@pytest.fixture(autouse=True)
def logging_is_put_back() -> Iterator[None]:
    """Commands set up logging for the process they own; here the process goes on with other tests."""
    loggers = [logging.getLogger(name) for name in ("forerun", "forerun.native")]
    before = [(logger, logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.fixture
def fake_build(monkeypatch: pytest.MonkeyPatch) -> FakeBuild:
    build = FakeBuild()
    monkeypatch.setattr("forerun.cli.terminal.build", build)
    return build


@pytest.fixture
def forerun(fake_build: FakeBuild) -> Forerun:
    """Runs `forerun ARGUMENTS...` on the fake model."""
    del fake_build
    return lambda *arguments, stdin=None: CliRunner().invoke(app, arguments, input=stdin)
