"""Pulls from servers that cut, lie, stall and are slow: the right bytes, or one clear line and nothing placed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from forerun.errors import DownloadError
from forerun.fetch.limits import Patience
from forerun.fetch.pull import PullListener, PullOptions, pull_all
from forerun.models.store import ModelStore
from tests.fetch.conftest import QUICK, gguf, plan_of, pulled
from tests.support.file_server import Conduct, FileServer

PATH = "/m.gguf"
CONTENT = gguf()


@pytest.fixture(autouse=True)
def serves_a_model(server: FileServer) -> None:
    server.files[PATH] = CONTENT


def part_of(store: ModelStore) -> Path:
    return store.folder / ".partial/m/m.gguf.part"


def kept(store: ModelStore) -> int:
    """Bytes of an unfinished file."""
    part = part_of(store)
    return part.stat().st_size if part.exists() else 0


def test_a_file_is_placed_under_its_name_with_nothing_beside_it_but_the_manifest(
    server: FileServer, store: ModelStore
) -> None:
    model = pulled(plan_of(server, PATH, knows=CONTENT), store)
    assert model.path.read_bytes() == CONTENT
    assert sorted(os.listdir(model.folder)) == ["m.gguf", "model.json"]
    assert store.find("m") == model
    assert store.partials() == []


def test_a_cut_connection_is_taken_up_where_it_was_cut(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(cut_after=30_000), Conduct(cut_after=20_000)]
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == [None, "bytes=30000-", "bytes=50000-"]


def test_a_pull_that_failed_leaves_what_came_and_the_next_one_goes_on_from_there(
    server: FileServer, store: ModelStore
) -> None:
    server.conduct[PATH] = [Conduct(cut_after=40_000), *[Conduct(status=503)] * 3]
    plan = plan_of(server, PATH, knows=CONTENT)
    with pytest.raises(DownloadError, match=r"m\.gguf: the server answered 503 .*the next pull goes on from there"):
        pulled(plan, store)
    assert store.models() == []
    assert kept(store) == 40_000
    assert pulled(plan, store).path.read_bytes() == CONTENT
    assert server.ranges(PATH)[-1] == "bytes=40000-"


def test_a_server_that_always_cuts_at_once_is_given_up(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(cut_after=0)] * 50
    with pytest.raises(DownloadError, match="the connection"):
        pulled(plan_of(server, PATH, knows=CONTENT), store)
    assert len(server.asked) == QUICK.patience.attempts


def test_a_connection_that_brings_much_before_it_is_cut_does_not_count_as_a_failure_in_a_row(
    server: FileServer, store: ModelStore
) -> None:
    server.conduct[PATH] = [Conduct(cut_after=17_000)] * 5  # more than `attempts`, each with more than `progress` bytes
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT


def test_wrong_bytes_of_the_right_length_are_deleted_and_named(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(content=gguf(seed=1))] * 2
    with pytest.raises(DownloadError, match=r"its sha256 is [0-9a-f]{64}, [0-9a-f]{64} is expected"):
        pulled(plan_of(server, PATH, knows=CONTENT), store)
    assert store.models() == []
    assert kept(store) == 0


def test_wrong_bytes_that_were_joined_from_two_connections_are_fetched_once_more_from_the_beginning(
    server: FileServer, store: ModelStore
) -> None:
    server.conduct[PATH] = [Conduct(cut_after=50_000, content=gguf(seed=1))]
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == [None, "bytes=50000-", None]


def test_a_server_that_cuts_and_lies_each_time_is_believed_no_longer_than_twice(
    server: FileServer, store: ModelStore
) -> None:
    server.files[PATH] = gguf(seed=1)
    server.conduct[PATH] = [Conduct(cut_after=50_000), Conduct()] * 9
    with pytest.raises(DownloadError, match="the bytes are wrong and were deleted"):
        pulled(plan_of(server, PATH, knows=CONTENT), store)
    assert server.ranges(PATH) == [None, "bytes=50000-"] * 2


def test_a_part_that_was_tampered_with_meanwhile_is_not_gone_on_with(server: FileServer, store: ModelStore) -> None:
    part = part_of(store)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"GGUF" + bytes(5_000))
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == ["bytes=5004-", None]


def test_a_whole_part_with_wrong_bytes_is_fetched_once_more(server: FileServer, store: ModelStore) -> None:
    part = part_of(store)
    part.parent.mkdir(parents=True)
    part.write_bytes(gguf(seed=1))
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(server: FileServer, store: ModelStore) -> None:
    part = part_of(store)
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT + b"more")
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT


def test_a_whole_part_is_placed_without_asking_the_server_again(server: FileServer, store: ModelStore) -> None:
    part = part_of(store)
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT
    assert server.asked == []


def test_a_server_without_ranges_sends_it_all_again(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(cut_after=30_000), Conduct(ignores_ranges=True)]
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT


def test_a_range_other_than_the_one_asked_for_is_not_joined(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(cut_after=30_000), Conduct(shifts_range=1)]
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == [None, "bytes=30000-", None]


@pytest.mark.parametrize("length", [len(CONTENT) - 32, len(CONTENT) + 32])
def test_a_file_of_another_length_is_refused_before_it_is_fetched(
    server: FileServer, store: ModelStore, length: int
) -> None:
    server.files[PATH] = (CONTENT + bytes(32))[:length]
    with pytest.raises(DownloadError, match=f"has {length} bytes, {len(CONTENT)} are expected"):
        pulled(plan_of(server, PATH, knows=CONTENT), store)
    assert kept(store) == 0


def test_a_web_page_in_place_of_a_model_is_refused_at_its_first_bytes(server: FileServer, store: ModelStore) -> None:
    server.files[PATH] = b"<!DOCTYPE html><title>Log in</title>" + bytes(10**6)
    with pytest.raises(DownloadError, match="sends no GGUF: it looks like a web page"):
        pulled(plan_of(server, PATH), store)
    assert kept(store) == 0


def test_a_stalled_connection_counts_as_cut(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(stall_after=60_000)]
    options = PullOptions(patience=Patience(stall=0.2, first_wait=0.01))
    assert pulled(plan_of(server, PATH, knows=CONTENT), store, options).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == [None, "bytes=60000-"]


def test_a_server_that_stays_silent_is_given_up_with_the_time_it_was_given(
    server: FileServer, store: ModelStore
) -> None:
    server.conduct[PATH] = [Conduct(stall_after=0)] * 3
    options = PullOptions(patience=Patience(stall=0.05, attempts=2, first_wait=0.01))
    with pytest.raises(DownloadError, match=r"no byte came for 0\.05 s"):
        pulled(plan_of(server, PATH, knows=CONTENT), store, options)


def test_slow_bytes_are_waited_for_as_long_as_they_come(server: FileServer, store: ModelStore) -> None:
    content = gguf(2_000)
    server.files[PATH] = content
    server.conduct[PATH] = [Conduct(piece=150, wait=0.06)]  # longer than `stall` altogether
    options = PullOptions(patience=Patience(stall=0.6))
    assert pulled(plan_of(server, PATH, knows=content), store, options).path.read_bytes() == content
    assert server.ranges(PATH) == [None]


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(status=429, headers={"Retry-After": "0"}), Conduct(status=502)]
    assert pulled(plan_of(server, PATH, knows=CONTENT), store).path.read_bytes() == CONTENT
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1 answered 404 \(Not Found\): there is no such file"):
        pulled(plan_of(server, "/gone.gguf", model_id="gone"), store)
    assert len(server.ranges("/gone.gguf")) == 1


@pytest.mark.parametrize(("status", "told"), [(401, "HF_TOKEN"), (403, "terms"), (418, "gives no file")])
def test_refusals_say_what_can_be_done(server: FileServer, store: ModelStore, status: int, told: str) -> None:
    server.conduct[PATH] = [Conduct(status=status)]
    with pytest.raises(DownloadError, match=told):
        pulled(plan_of(server, PATH, knows=CONTENT), store)


def test_a_host_that_cannot_be_reached_ends_in_one_line(server: FileServer, store: ModelStore) -> None:
    server.port = 1  # nobody listens there
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1 cannot be reached") as refused:
        pulled(plan_of(server, PATH, knows=CONTENT), store)
    assert "\n" not in str(refused.value)
    assert store.partials() == []


def test_redirects_are_followed_and_a_circle_is_not(server: FileServer, store: ModelStore) -> None:
    server.conduct["/a.gguf"] = [Conduct(status=302, headers={"Location": PATH})]
    assert pulled(plan_of(server, "/a.gguf", knows=CONTENT), store).path.read_bytes() == CONTENT
    server.conduct["/b.gguf"] = [Conduct(status=302, headers={"Location": "/b.gguf"})] * 20
    with pytest.raises(DownloadError, match="leads nowhere"):
        pulled(plan_of(server, "/b.gguf", model_id="b"), store)
    server.conduct["/c.gguf"] = [Conduct(status=302, headers={"Location": "file:///etc/passwd"})]
    with pytest.raises(DownloadError, match="leads nowhere"):
        pulled(plan_of(server, "/c.gguf", model_id="c"), store)


# --- nobody said a sha256 ---


def test_without_a_sha256_bytes_are_joined_under_the_same_etag(server: FileServer, store: ModelStore) -> None:
    server.headers[PATH] = {"ETag": '"one"'}
    server.conduct[PATH] = [Conduct(cut_after=30_000)]
    assert pulled(plan_of(server, PATH), store).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == [None, "bytes=30000-"]
    assert server.asked[1].headers["If-Range"] == '"one"'


def test_without_a_sha256_a_file_that_changed_meanwhile_is_fetched_from_the_beginning(
    server: FileServer, store: ModelStore
) -> None:
    server.headers[PATH] = {"ETag": '"one"'}
    server.conduct[PATH] = [Conduct(cut_after=30_000), *[Conduct(status=503)] * 3]
    with pytest.raises(DownloadError):
        pulled(plan_of(server, PATH), store)
    server.files[PATH], server.headers[PATH] = gguf(seed=2), {"ETag": '"two"'}
    assert pulled(plan_of(server, PATH), store).path.read_bytes() == gguf(seed=2)


def test_without_a_sha256_a_server_that_joins_what_does_not_belong_together_is_not_believed(
    server: FileServer, store: ModelStore
) -> None:
    other = {"ETag": '"two"', "Content-Range": f"bytes 30000-{len(CONTENT) - 1}/{len(CONTENT)}"}
    server.headers[PATH] = {"ETag": '"one"'}
    server.conduct[PATH] = [
        Conduct(cut_after=30_000),
        Conduct(status=206, headers=other, content=gguf(seed=1)[30_000:]),
    ]
    assert pulled(plan_of(server, PATH), store).path.read_bytes() == CONTENT


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_sha256_and_a_strong_validator_nothing_is_joined(
    server: FileServer, store: ModelStore, headers: dict[str, str]
) -> None:
    server.headers[PATH] = headers
    server.conduct[PATH] = [Conduct(cut_after=30_000)]
    assert pulled(plan_of(server, PATH), store).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == [None, None]


def test_without_a_sha256_and_a_validator_an_earlier_pulls_bytes_are_not_gone_on_with(
    server: FileServer, store: ModelStore
) -> None:
    part = part_of(store)
    part.parent.mkdir(parents=True)
    part.write_bytes(gguf(seed=1)[:30_000])
    note = {"told": server.url(PATH), "total": len(CONTENT), "validator": None}
    part.with_name("m.gguf.part.json").write_text(json.dumps(note))
    assert pulled(plan_of(server, PATH), store).path.read_bytes() == CONTENT
    assert server.ranges(PATH) == [None]


def test_without_a_length_and_without_a_sha256_nothing_is_fetched(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(says_no_length=True)] * 2
    with pytest.raises(DownloadError, match="does not say how long the file is"):
        pulled(plan_of(server, PATH), store)


def test_a_length_nobody_has_room_for_is_refused_before_a_byte_is_written(
    server: FileServer, store: ModelStore
) -> None:
    server.conduct[PATH] = [Conduct(cut_after=10_000, headers={"Content-Length": str(2**41)}, says_no_length=True)]
    with pytest.raises(DownloadError, match="make room, or name another folder in FORERUN_MODELS"):
        pulled(plan_of(server, PATH), store)
    assert kept(store) == 0


def test_what_claims_to_be_a_model_and_is_cut_is_deleted(server: FileServer, store: ModelStore) -> None:
    server.files[PATH] = CONTENT[:-20_000]
    with pytest.raises(DownloadError, match="what came is cut and was deleted"):
        pulled(plan_of(server, PATH), store)
    assert store.models() == []
    assert kept(store) == 0


# --- the machine ---


def test_a_pull_that_needs_more_than_the_disk_has_is_refused_with_both_numbers(
    server: FileServer, store: ModelStore
) -> None:
    with pytest.raises(DownloadError, match=r"98 KiB|0\.1 MiB are still to be written, and the disk of .* 0\.0 MiB"):
        pulled(plan_of(server, PATH, knows=CONTENT), store, PullOptions(reserve=2**60))
    assert server.asked == []


def test_a_cancelled_pull_keeps_what_came_and_frees_the_lock(server: FileServer, store: ModelStore) -> None:
    server.conduct[PATH] = [Conduct(stall_after=50_000)]
    plan = plan_of(server, PATH, knows=CONTENT)

    async def cancelled() -> None:
        came = asyncio.Event()

        class Listener(PullListener):
            def progress(self, name: str, done: int, total: int) -> None:
                del name, total
                if done >= 50_000:
                    came.set()

        task = asyncio.create_task(pull_all([plan], store, Listener(), PullOptions()))
        await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert kept(store) == 50_000
    assert pulled(plan, store).path.read_bytes() == CONTENT
    assert server.ranges(PATH)[-1] == "bytes=50000-"


def test_secrets_in_an_address_or_a_header_stand_in_no_message_and_no_manifest(
    server: FileServer, store: ModelStore
) -> None:
    from forerun.fetch.planning import plan_source
    from forerun.fetch.sources import parse_source

    plan = plan_source(parse_source(server.url(PATH) + "?signature=secret"))
    model = pulled(plan, store)
    assert "secret" not in (model.folder / "model.json").read_text() + repr(plan.advice) + model.folder.name
    assert server.asked[0].path == PATH
