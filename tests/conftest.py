"""Fixtures shared by all tests: the default model and tiny generated ones, made when a test asks for them.

`tiny_model` builds any recipe; the named fixtures are the ones most tests want. All are paths.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.models.resolve import resolve_model
from tests.support.tiny_models import TinyModel, build

MakeTinyModel = Callable[[TinyModel], Path]


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive() -> None:
    """Some tests send Ctrl-C, which a shell has everything ignore that it starts in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, the default model."""
    return resolve_model("smollm2")


@pytest.fixture(scope="session")
def tiny_model(smollm2_path: Path) -> MakeTinyModel:
    """Builds the file of a recipe, once."""
    return lambda model: build(model, smollm2_path)


@pytest.fixture(scope="session")
def tiny_dense_path(tiny_model: MakeTinyModel) -> Path:
    """A dense two-layer model: full attention, memory that can be truncated anywhere."""
    return tiny_model(TinyModel())


@pytest.fixture(scope="session")
def tiny_medium_draft_path(tiny_model: MakeTinyModel) -> Path:
    """Agrees with `tiny_dense_path` on about two of three greedy tokens."""
    return tiny_model(TinyModel(noise=0.02))


@pytest.fixture(scope="session")
def tiny_poor_draft_path(tiny_model: MakeTinyModel) -> Path:
    """Agrees with `tiny_dense_path` on about one of seven greedy tokens."""
    return tiny_model(TinyModel(noise=0.1))


@pytest.fixture(scope="session")
def tiny_unrelated_path(tiny_model: MakeTinyModel) -> Path:
    """The vocabulary of `tiny_dense_path`, other weights: as a draft it is never right."""
    return tiny_model(TinyModel(seed=1))


@pytest.fixture(scope="session")
def tiny_smollm2_draft_path(tiny_model: MakeTinyModel) -> Path:
    """All of SmolLM2's vocabulary: as its draft it is never right."""
    return tiny_model(TinyModel(vocabulary="smollm2"))


@pytest.fixture(scope="session")
def tiny_permuted_path(tiny_model: MakeTinyModel) -> Path:
    """A vocabulary of the same size with two tokens swapped: no draft for `tiny_dense_path`."""
    return tiny_model(TinyModel(vocabulary="permuted"))


@pytest.fixture(scope="session")
def tiny_foreign_path(tiny_model: MakeTinyModel) -> Path:
    """A vocabulary of another size: no draft for `tiny_dense_path`."""
    return tiny_model(TinyModel(vocabulary="truncated"))


@pytest.fixture(scope="session")
def tiny_swa_path(tiny_model: MakeTinyModel) -> Path:
    """Sliding-window attention over 64 tokens in five of six layers."""
    return tiny_model(TinyModel(kind="gemma3", layers=6))


@pytest.fixture(scope="session")
def tiny_hybrid_path(tiny_model: MakeTinyModel) -> Path:
    """Short convolutions and attention in turn: a memory that cannot be truncated."""
    return tiny_model(TinyModel(kind="lfm2", layers=4))


@pytest.fixture(scope="session")
def tiny_recurrent_path(tiny_model: MakeTinyModel) -> Path:
    """Mamba: one state of constant size."""
    return tiny_model(TinyModel(kind="mamba"))


@pytest.fixture(scope="session")
def tiny_mtp_path(tiny_model: MakeTinyModel) -> Path:
    """A dense mixture of experts with an MTP head that is right about two times of three."""
    return tiny_model(TinyModel("glm4moe", layers=1))


@pytest.fixture(scope="session")
def tiny_hybrid_mtp_path(tiny_model: MakeTinyModel) -> Path:
    """A delta net and attention, with an MTP head that is right about six times of ten."""
    return tiny_model(TinyModel("qwen35", layers=2))
