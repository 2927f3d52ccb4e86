"""A server, files to serve, and a store to put them in. Nothing here leaves the machine."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.errors import DownloadError
from forerun.fetch.http_file import HttpFile
from forerun.fetch.limits import Patience
from forerun.fetch.plan import PlannedFile, PullPlan
from forerun.fetch.pull import PullListener, PullOptions, pull_all
from forerun.models.store import ModelStore, StoredModel
from tests.support.file_server import FileServer, running_file_server
from tests.support.gguf_file import GgufFile, Tensor, text, u32

QUICK = PullOptions(
    patience=Patience(connect=5.0, stall=10.0, attempts=3, progress=2**14, first_wait=0.01, longest_wait=0.02)
)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are remembered, and models kept, for this test alone; its server is asked directly."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path / "models"))


@pytest.fixture
def server() -> Iterator[FileServer]:
    with running_file_server() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def gguf(size: int = 100_000, *, seed: int = 0, **entries: int) -> bytes:
    """A sound GGUF of about `size` bytes; `entries` are keys of numbers, "__" for "."."""
    data = hashlib.shake_256(bytes([seed])).digest(size // 4 * 4)
    keys = {"general.architecture": text("llama")} | {
        name.replace("__", "."): u32(value) for name, value in entries.items()
    }
    file = GgufFile(keys, [Tensor("weights", (len(data) // 4,), 0, data)])
    padding = -len(data) % 32
    return file.header_bytes() + data + bytes(padding)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def plan_of(server: FileServer, path: str, *, knows: bytes | None = None, model_id: str = "m") -> PullPlan:
    """A plan for one file; `knows`: the content whose size and sha256 are known beforehand."""
    known = (None, None) if knows is None else (len(knows), sha256(knows))
    origin = HttpFile(server.url(path), server.url(path), *known)
    return PullPlan(model_id, server.url(path), (PlannedFile(path.rpartition("/")[2], "weights", origin),))


def pulled(
    plan: PullPlan, store: ModelStore, options: PullOptions = QUICK, listener: PullListener | None = None
) -> StoredModel:
    """The one model of a plan. Raises what the pull failed with."""
    (result,) = asyncio.run(pull_all([plan], store, listener or PullListener(), options))
    if isinstance(result, DownloadError):
        raise result
    return result
