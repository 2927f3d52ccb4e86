"""Files of the server: only what really lies below the folder is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.errors import InvalidRequestError
from forerun.media.files import MediaFolder

MOST = 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "a b.png").write_bytes(b"spaced")
    (root / "inner" / "one.png").write_bytes(b"one")
    (root / "large.png").write_bytes(b"x" * (MOST + 1))
    (root / "link.png").symlink_to("inner/one.png")
    (root / "way").symlink_to("inner")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "secret.png").write_bytes(b"secret")
    (root / "out.png").symlink_to(tmp_path / "secret.png")
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.parametrize(
    ("url", "content"),
    [
        ("file:inner/one.png", b"one"),
        ("file:a%20b.png", b"spaced"),
        ("file://{root}/inner/one.png", b"one"),
        ("file://localhost{root}/inner/one.png", b"one"),
        ("file:inner/../a%20b.png", b"spaced"),
        ("file:link.png", b"one"),
        ("file:way/one.png", b"one"),
        ("file://{root}/up/root/inner/one.png", b"one"),
    ],
)
def test_a_file_below_the_folder_is_read_by_any_name(root: Path, url: str, content: bytes) -> None:
    assert MediaFolder(root).read(url.format(root=root), "it", MOST) == content


@pytest.mark.parametrize(
    "url",
    [
        "file:../secret.png",
        "file:%2e%2e/secret.png",
        "file:..%2fsecret.png",
        "file://{root}/../secret.png",
        "file://{root}2/secret.png",
        "file:///etc/passwd",
        "file:out.png",
        "file:up/secret.png",
        "file:loop",
        "file:missing.png",
        "file:inner",
        "file:",
        "file:pipe",
        "file:inner/one.png/x",
        "file:one%00.png",
        "file:%ff.png",
        "file://other.host{root}/inner/one.png",
        "file:inner/one.png?x",
        "file:" + "a" * 5000,
    ],
)
def test_what_leads_out_and_what_is_not_there_get_the_same_answer(root: Path, url: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        MediaFolder(root).read(url.format(root=root), "it", MOST)
    assert str(error.value) == "it: is no file under the server's --media-root"


def test_a_file_that_is_too_large_is_refused_by_its_size(root: Path) -> None:
    with pytest.raises(InvalidRequestError, match=f"it: has {MOST + 1} bytes, at most {MOST} are read"):
        MediaFolder(root).read("file:large.png", "it", MOST)


@pytest.mark.parametrize("name", ["inner", "inner/one.png"])
def test_a_link_that_takes_a_place_after_it_was_looked_at_is_not_followed(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = MediaFolder._inside

    def replaced(folder: MediaFolder, url: str) -> tuple[str, ...]:
        parts = look(folder, url)
        (root / name).rename(root.parent / "moved")
        (root / name).symlink_to(root.parent / ("root2" if name == "inner" else "secret.png"))
        if name == "inner":
            (root.parent / "root2" / "one.png").write_bytes(b"secret")
        return parts

    monkeypatch.setattr(MediaFolder, "_inside", replaced)
    with pytest.raises(InvalidRequestError, match="is no file under"):
        MediaFolder(root).read("file:inner/one.png", "it", MOST)


@pytest.mark.parametrize("of", [lambda path: path / "missing", lambda path: path / "file"])
def test_what_is_no_folder_is_told_when_the_server_is_set_up(tmp_path: Path, of: Callable[[Path], Path]) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):  # noqa: PT011 (of two kinds)
        MediaFolder(of(tmp_path))
