"""A model that cannot be put behind the APIs after all leaves no process."""

from __future__ import annotations

import pytest

from forerun import compose_models
from forerun.compose_models import ConfiguredModel
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError
from forerun.media.loading import MediaLoader
from forerun.server.model_entry import ServedModel
from forerun.server.residency import Footprint
from forerun.server.settings import ServerSettings
from forerun.structured.checking import GrammarChecker
from forerun.testing.served import served_parts


def test_an_unknown_chat_format_ends_the_engine_and_the_processes_that_check_grammars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkers: list[GrammarChecker] = []

    class Watched(GrammarChecker):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]
            checkers.append(self)

    monkeypatch.setattr(compose_models, "GrammarChecker", Watched)
    engine = AsyncioEngine(served_parts())
    media = MediaLoader()
    try:
        source = ConfiguredModel(
            EngineConfig(model="fake"), ServerSettings(), lambda *_: engine, media, "nonsense", Footprint(0, 0)
        )
        with pytest.raises(InvalidConfigError, match="nonsense"):
            source.open(ServedModel("fake"), lambda *_: None)
    finally:
        media.close()
    assert not engine.is_alive
    (checker,) = checkers
    assert not any(child.is_alive for child in checker._alive)
