"""Pulls from Hugging Face's hub: a local server that speaks as much of its API as is used."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from forerun.errors import DownloadError, InvalidConfigError
from forerun.fetch.planning import plan_source
from forerun.fetch.sources import parse_source
from forerun.models.store import ModelStore
from tests.fetch.conftest import gguf, pulled, sha256
from tests.support.file_server import Conduct, FileServer

REPOSITORY = "owner/model-GGUF"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = gguf()


@pytest.fixture(autouse=True)
def hub(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    monkeypatch.setenv("HF_ENDPOINT", server.url(""))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return server


def offers(server: FileServer, files: dict[str, bytes], *, revision: str = "", sizes: bool = True) -> None:
    """Let the repository have these files."""
    siblings: list[dict[str, Any]] = []
    for path, content in files.items():
        server.files[f"/{REPOSITORY}/resolve/{COMMIT}/{path}"] = content
        about: dict[str, Any] = {"rfilename": path}
        if sizes:
            lfs = {"size": len(content), "sha256": sha256(content), "pointerSize": 130}
            about |= {"size": len(content), "blobId": "0" * 40, "lfs": lfs}
        siblings.append(about)
    answer = {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}
    server.files[f"/api/models/{REPOSITORY}{revision}"] = json.dumps(answer).encode()


def test_a_file_is_fetched_as_of_the_commit_that_was_looked_at(server: FileServer, store: ModelStore) -> None:
    offers(server, {"m.gguf": CONTENT, "README.md": b"read me"})
    model = pulled(plan_source(parse_source(f"hf:{REPOSITORY}/m.gguf")), store)
    assert model.path.read_bytes() == CONTENT
    assert model.id == f"hf:{REPOSITORY}/m.gguf"
    assert model.origin == f"hf:{REPOSITORY}@{COMMIT}/m.gguf"
    assert server.asked[-1].path == f"/{REPOSITORY}/resolve/{COMMIT}/m.gguf"


def test_a_revision_is_asked_for_by_its_name(server: FileServer, store: ModelStore) -> None:
    offers(server, {"m.gguf": CONTENT}, revision="/revision/v1")
    assert pulled(plan_source(parse_source(f"hf:{REPOSITORY}@v1/m.gguf")), store).path.read_bytes() == CONTENT


def test_the_hubs_sha256_is_believed_and_the_bytes_are_not(server: FileServer, store: ModelStore) -> None:
    offers(server, {"m.gguf": CONTENT})
    server.files[f"/{REPOSITORY}/resolve/{COMMIT}/m.gguf"] = gguf(seed=3)
    with pytest.raises(DownloadError, match=f"{sha256(CONTENT)} is expected"):
        pulled(plan_source(parse_source(f"hf:{REPOSITORY}/m.gguf")), store)


def test_all_parts_of_a_model_come_whichever_was_named(server: FileServer, store: ModelStore) -> None:
    parts = {f"Q8/m-0000{part}-of-00003.gguf": gguf(50_000, seed=part, split__count=3) for part in (1, 2, 3)}
    offers(server, {**parts, "Q8/m.gguf": CONTENT})
    model = pulled(plan_source(parse_source(f"hf:{REPOSITORY}/Q8/m-00002-of-00003.gguf")), store)
    assert [file.name for file in model.files] == [path.removeprefix("Q8/") for path in parts]
    assert [file.role for file in model.files] == ["weights", "split part", "split part"]
    assert model.path.name == "m-00001-of-00003.gguf"
    assert [(model.folder / file.name).read_bytes() for file in model.files] == list(parts.values())


def test_a_repository_that_lacks_a_part_is_refused_before_anything_is_fetched(server: FileServer) -> None:
    offers(server, {"m-00001-of-00002.gguf": CONTENT})
    with pytest.raises(InvalidConfigError, match=r"m-00002-of-00002\.gguf: there is no such file"):
        plan_source(parse_source(f"hf:{REPOSITORY}/m-00001-of-00002.gguf"))


@pytest.mark.parametrize("named", ["", "/other.gguf"])
def test_a_file_that_is_not_there_is_answered_with_those_that_are(server: FileServer, named: str) -> None:
    offers(server, {f"m{index:02}.gguf": CONTENT for index in range(14)})
    with pytest.raises(InvalidConfigError, match=r"the repository has m00\.gguf, .*m11\.gguf and 2 more$"):
        plan_source(parse_source(f"hf:{REPOSITORY}{named}"))


def test_a_repository_without_models_says_so(server: FileServer) -> None:
    offers(server, {"model.safetensors": b"x"})
    with pytest.raises(InvalidConfigError, match="there is no GGUF file in this repository"):
        plan_source(parse_source(f"hf:{REPOSITORY}"))


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (404, {"X-Error-Code": "RepoNotFound"}, "there is no such repository, or it is private"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "the repository has no revision 'v9'"),
        (
            403,
            {"X-Error-Code": "GatedRepo"},
            "accept the terms at http://127.0.0.1:.*/owner/model-GGUF, then set HF_TOK",
        ),
        (500, {}, "answered 500: try again later"),
    ],
)
def test_what_the_hub_refuses_is_one_line_that_says_what_to_do(
    server: FileServer, status: int, headers: dict[str, str], told: str
) -> None:
    server.conduct[f"/api/models/{REPOSITORY}/revision/v9"] = [Conduct(status=status, headers=headers)] * 9
    with pytest.raises(DownloadError, match=told) as refused:
        plan_source(parse_source(f"hf:{REPOSITORY}@v9/m.gguf"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b'{"id": "a/b", "siblings": [{"size": 3}]}', b'{"sha": "x"}']
)
def test_an_answer_that_makes_no_sense_is_told_as_such(server: FileServer, answer: bytes) -> None:
    server.files[f"/api/models/{REPOSITORY}"] = answer
    with pytest.raises(DownloadError, match="gave an answer that makes no sense"):
        plan_source(parse_source(f"hf:{REPOSITORY}/m.gguf"))


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1 cannot be reached .*is this machine online\?") as refused:
        plan_source(parse_source(f"hf:{REPOSITORY}/m.gguf"))
    assert "\n" not in str(refused.value)


def test_offline_mode_asks_nobody(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        plan_source(parse_source(f"hf:{REPOSITORY}/m.gguf"))
    assert server.asked == []


def test_the_token_goes_to_the_hub_and_not_where_it_redirects_to(server: FileServer, store: ModelStore) -> None:
    offers(server, {"m.gguf": CONTENT})
    elsewhere = server.url("/cdn/m.gguf").replace("127.0.0.1", "localhost")
    server.files["/cdn/m.gguf"] = CONTENT
    server.conduct[f"/{REPOSITORY}/resolve/{COMMIT}/m.gguf"] = [Conduct(status=302, headers={"Location": elsewhere})]
    model = pulled(plan_source(parse_source(f"hf:{REPOSITORY}/m.gguf")), store)
    sent = {asked.path: asked.headers.get("authorization") for asked in server.asked}
    assert sent.pop("/cdn/m.gguf") is None
    assert set(sent.values()) == {"Bearer hf_secret"}
    assert "hf_secret" not in (model.folder / "model.json").read_text() + repr(plan_source)


def test_a_file_that_is_kept_in_git_itself_has_no_sha256_and_is_fetched_all_the_same(
    server: FileServer, store: ModelStore
) -> None:
    offers(server, {"m.gguf": CONTENT}, sizes=False)
    assert pulled(plan_source(parse_source(f"hf:{REPOSITORY}/m.gguf")), store).files[0].sha256 == sha256(CONTENT)


def test_a_sha256_that_contradicts_the_hubs_is_refused(server: FileServer) -> None:
    offers(server, {"m.gguf": CONTENT})
    source = parse_source(f"hf:{REPOSITORY}/m.gguf")
    assert plan_source(source, sha256(CONTENT).upper()).files[0].origin.sha256 == sha256(CONTENT)
    with pytest.raises(InvalidConfigError, match=re.escape(sha256(CONTENT))):
        plan_source(source, "0" * 64)
    with pytest.raises(InvalidConfigError, match="64 hexadecimal digits"):
        plan_source(source, "xyz")


def test_what_is_no_gguf_by_its_name_is_refused_before_the_hub_is_asked(server: FileServer) -> None:
    with pytest.raises(InvalidConfigError, match="not a GGUF file by its name"):
        plan_source(parse_source(f"hf:{REPOSITORY}/model.safetensors"))
    assert server.asked == []
