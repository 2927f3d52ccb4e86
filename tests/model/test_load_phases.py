"""Loading in named phases, all or nothing: what ends it in any of them leaves no model and no process behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from forerun import SamplingParams
from forerun.compose import build
from forerun.compose_process import in_own_process
from forerun.engine.loading import LoadPhase
from forerun.engine_config import EngineConfig
from forerun.errors import ModelLoadError
from forerun.native.context import LlamaContext
from forerun.native.model import LlamaModel
from forerun.native.projector import Projector
from tests.conftest import MakeTinyModel
from tests.model.serving import answer, serving
from tests.support.tiny_models import TinyModel
from tests.support.tiny_projector import TinyProjector, build_projector

pytestmark = pytest.mark.model


@pytest.fixture
def config(tiny_model: MakeTinyModel, tmp_path: Path) -> EngineConfig:
    """A pair with a projector and a cache on disk: all phases have something to do."""
    return EngineConfig(
        model=str(tiny_model(TinyModel(kind="qwen2vl"))),
        draft=str(tiny_model(TinyModel(kind="qwen2vl", noise=0.02))),
        projector=str(build_projector(TinyProjector())),
        speculation=2,
        n_ctx=256,
        n_threads=1,
        cache_dir=str(tmp_path / "prefixes"),
    )


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every model, context and projector that llama.cpp makes from now on."""
    made: list[Any] = []

    def remembered(kind: type[Any]) -> None:
        before = kind.__init__

        def init(self: Any, *args: Any, **options: Any) -> None:
            before(self, *args, **options)
            made.append(self)

        monkeypatch.setattr(kind, "__init__", init)

    remembered(LlamaModel)
    remembered(LlamaContext)
    remembered(Projector)
    return made


def test_the_phases_come_in_their_order_and_each_share_goes_from_nothing_to_all(config: EngineConfig) -> None:
    told: list[tuple[LoadPhase, str, float]] = []
    build(config, lambda *report: told.append(report)).dispose()
    assert list(dict.fromkeys(phase for phase, _, _ in told)) == list(LoadPhase)
    for phase, what in dict.fromkeys((phase, what) for phase, what, _ in told):
        shares = [share for *of, share in told if of == [phase, what]]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0, (phase, what)


def test_a_model_without_a_draft_or_a_projector_has_no_phase_for_one(tiny_dense_path: Path) -> None:
    told: list[LoadPhase] = []
    config = EngineConfig(model=str(tiny_dense_path), n_ctx=256, n_threads=1)
    build(config, lambda phase, *_: told.append(phase)).dispose()
    assert not {LoadPhase.DRAFT, LoadPhase.PROJECTOR} & set(told)


@pytest.mark.parametrize("last", list(LoadPhase))
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_who_ends_a_load_in_any_phase_leaves_nothing_in_memory(
    last: LoadPhase, error: type[BaseException], config: EngineConfig, native: list[Any]
) -> None:
    def progress(phase: LoadPhase, _what: str, share: float) -> None:
        if phase is last and share == 1.0:
            raise error

    with pytest.raises(error):
        build(config, progress)
    assert bool(native) == (last not in (LoadPhase.FILES, LoadPhase.TARGET))
    assert not [one for one in native if one._free.alive]


def test_what_cannot_be_computed_is_found_while_loading_and_leaves_nothing_in_memory(
    config: EngineConfig, native: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_decode", lambda *_: -3)
    with pytest.raises(ModelLoadError, match="nothing can be computed with this model here"):
        build(config)
    assert len(native) == 5
    assert not [one for one in native if one._free.alive]


def test_the_row_of_the_warm_up_is_forgotten(tiny_dense_path: Path, tiny_recurrent_path: Path) -> None:
    for path in (tiny_dense_path, tiny_recurrent_path):
        with serving(path) as engine:
            assert engine.stats().used_cells == 0
            assert answer(engine, [5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True)).usage is not None


def test_who_ends_the_load_of_a_process_leaves_no_process_behind(config: EngineConfig, native: list[Any]) -> None:
    started: set[int] = set()

    def progress(_phase: LoadPhase, _what: str, _share: float) -> None:
        started.update(child.pid for child in psutil.Process().children() if "forerun.engine.child" in child.cmdline())
        if started:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_own_process(config, progress)
    assert not [pid for pid in started if psutil.pid_exists(pid)]
    assert not [one for one in native if one._free.alive]
