"""Files are there whole or not at all, are ours alone, and what is no segment is a miss."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from pathlib import Path

import pytest

from forerun.cache.directory import CacheDirectory
from forerun.cache.disk import SegmentFiles
from forerun.cache.file_format import BadSegmentError, encode_head
from forerun.cache.host import SEGMENT_OVERHEAD
from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import SegmentHeader
from forerun.errors import InvalidConfigError
from tests.cache.support import MODEL_KEY, OTHER_MODEL, file_of, header_of, state_of, text_header

HEADER = text_header(range(100))


@pytest.fixture
def files(tmp_path: Path) -> SegmentFiles:
    return SegmentFiles(CacheDirectory(tmp_path / "cache"), MODEL_KEY)


def write(files: SegmentFiles, header: SegmentHeader, state: PromptCheckpointState | None = None) -> Path:
    state = state or state_of(header)
    files.write(encode_head(files.model_key, header, state), state)
    return path_of(files, header)


def path_of(files: SegmentFiles, header: SegmentHeader) -> Path:
    return files.directory.path / files.model_key / header.key[:2] / f"{header.key}.kv"


def keys(files: SegmentFiles, *, removes: bool = True) -> set[str]:
    return {segment.header.key for segment in files.scan(removes=removes)}


def all_files(files: SegmentFiles) -> set[str]:
    root = files.directory.path
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_a_segment_is_read_as_it_was_written(files: SegmentFiles) -> None:
    path = write(files, HEADER)
    head, state = files.read(HEADER.key)
    assert (head.header, state) == (HEADER, state_of(HEADER))
    assert path.read_bytes() == file_of(HEADER, state_of(HEADER))


def test_files_and_directories_are_ours_alone(files: SegmentFiles) -> None:
    path = write(files, HEADER)
    assert path.stat().st_mode & 0o7777 == 0o600
    for folder in (path.parent, path.parent.parent, files.directory.path):
        assert folder.stat().st_mode & 0o7777 == 0o700


def test_a_scan_reports_what_is_there(files: SegmentFiles) -> None:
    path = write(files, HEADER)
    files.touch(HEADER.key, 1234.5)
    (stored,) = files.scan()
    assert stored.header == HEADER
    assert (stored.nbytes, stored.host_bytes) == (path.stat().st_size, 1000 + SEGMENT_OVERHEAD)
    assert stored.last_used == 1234.5
    (size,) = files.sizes()
    assert (size.key, size.nbytes, size.last_used) == (HEADER.key, stored.nbytes, 1234.5)


def test_there_is_nothing_in_a_new_directory(files: SegmentFiles) -> None:
    assert files.scan() == []
    assert files.sizes() == []
    assert not files.touch(HEADER.key, 1.0)
    files.remove(HEADER.key)
    with pytest.raises(FileNotFoundError):
        files.read(HEADER.key)


def test_writing_a_key_again_replaces_its_file(files: SegmentFiles) -> None:
    write(files, HEADER)
    write(files, HEADER, PromptCheckpointState.speculative(b"longer than before" * 100))
    assert files.read(HEADER.key)[1].is_speculative
    assert len(all_files(files)) == 1


def test_a_removed_file_is_gone(files: SegmentFiles) -> None:
    write(files, HEADER)
    files.remove(HEADER.key)
    assert all_files(files) == set()


@pytest.mark.parametrize("key", ["", "..", "../../../etc/passwd", "AB" * 16, "ab" * 16 + "\n", "a" * 31])
def test_only_our_own_hashes_are_names(files: SegmentFiles, key: str) -> None:
    for operation in (files.read, files.remove, lambda key: files.touch(key, 0.0)):
        with pytest.raises(ValueError, match="32 hexadecimal digits"):
            operation(key)
    with pytest.raises(ValueError, match="model key"):
        SegmentFiles(files.directory, key)


def test_flipped_bytes_are_found_when_the_file_is_read(files: SegmentFiles) -> None:
    path = write(files, HEADER)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert keys(files) == {HEADER.key}
    with pytest.raises(BadSegmentError, match="digest"):
        files.read(HEADER.key)


def test_cut_malformed_and_foreign_files_are_removed_by_a_scan(files: SegmentFiles) -> None:
    whole = write(files, text_header([1]))
    cut = write(files, text_header([2]))
    cut.write_bytes(cut.read_bytes()[:-1])
    empty = write(files, text_header([3]))
    empty.write_bytes(b"")
    flipped = write(files, text_header([4]))
    flipped.write_bytes(flipped.read_bytes().replace(b'"whole_from":0', b'"whole_from":1'))
    newer = write(files, text_header([5]))
    newer.write_bytes(newer.read_bytes().replace(b"FORERUN\n\1", b"FORERUN\n\2"))
    swapped = write(files, text_header([6]))
    swapped.write_bytes(whole.read_bytes())
    other = header_of(text_header([7]).content, model_key=OTHER_MODEL)
    foreign = path_of(files, other)
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(file_of(other, state_of(other), OTHER_MODEL))
    (whole.parent / "notes.txt").write_text("mine")
    (whole.parent / f"{text_header([1]).key}.0123456789abcdef.tmp").write_text("unfinished")
    (whole.parent.parent / "stray").write_text("")
    wrong_place = whole.parent.parent / ("00" if whole.parent.name != "00" else "01")
    wrong_place.mkdir(exist_ok=True)
    shutil.copy(whole, wrong_place)

    before = all_files(files)
    assert keys(files, removes=False) == {text_header([1]).key}
    assert all_files(files) == before
    assert keys(files) == {text_header([1]).key}
    assert all_files(files) == {str(whole.relative_to(files.directory.path))}


def test_links_pipes_and_sockets_are_removed_and_never_followed(
    files: SegmentFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(files, HEADER)
    outside = tmp_path / "outside"
    outside.mkdir()
    treasure = outside / "treasure.kv"
    shutil.copy(path, treasure)
    path.unlink()
    path.symlink_to(treasure)
    os.mkfifo(path.parent / "pipe")
    (path.parent.parent / "link").symlink_to(outside)
    shard = path.parent.parent / ("00" if path.parent.name != "00" else "01")
    shard.symlink_to(outside)
    monkeypatch.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path.parent.name}{'0' * 30}.kv")
    with pytest.raises(BadSegmentError):
        files.read(HEADER.key)
    assert keys(files) == set()
    assert all_files(files) == set()
    assert treasure.exists()


def test_a_link_in_the_place_of_a_directory_is_not_followed(files: SegmentFiles, tmp_path: Path) -> None:
    path = write(files, HEADER)
    moved = tmp_path / "moved"
    path.parent.rename(moved)
    path.parent.symlink_to(moved)
    with pytest.raises(OSError, match="directory"):
        files.read(HEADER.key)
    with pytest.raises(OSError, match="directory"):
        write(files, HEADER)
    assert keys(files) == set()
    assert (moved / path.name).exists()


def test_an_unfinished_file_is_left_alone_while_somebody_writes_it(files: SegmentFiles) -> None:
    folder = write(files, HEADER).parent
    temporary = folder / f"{HEADER.key}.{'0' * 16}.tmp"
    with temporary.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        files.scan()
        assert temporary.exists()
    files.scan()
    assert not temporary.exists()


def test_a_failed_write_leaves_nothing_behind(files: SegmentFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    write_folder = path_of(files, HEADER).parent
    write_folder.mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        write(files, HEADER)
    assert all_files(files) == set()


def test_a_directory_that_was_removed_is_made_again(files: SegmentFiles) -> None:
    write(files, HEADER)
    shutil.rmtree(files.directory.path / MODEL_KEY)
    write(files, HEADER)
    assert keys(files) == {HEADER.key}


def test_models_do_not_see_each_other(files: SegmentFiles) -> None:
    other = SegmentFiles(files.directory, OTHER_MODEL)
    write(files, HEADER)
    write(other, header_of(HEADER.content, model_key=OTHER_MODEL))
    (files.directory.path / "my folder").mkdir()
    assert keys(files) == {HEADER.key}
    assert len(keys(other)) == 1
    assert files.directory.model_keys() == [MODEL_KEY, OTHER_MODEL]


def test_a_description_is_for_people(files: SegmentFiles) -> None:
    directory = files.directory
    assert directory.description(MODEL_KEY) == {}
    directory.describe(MODEL_KEY, {"target": "smollm2"})
    directory.describe(MODEL_KEY, {"target": "smollm2", "draft": "none"})
    assert directory.description(MODEL_KEY) == {"target": "smollm2", "draft": "none"}
    assert files.scan() == []
    file = directory.path / MODEL_KEY / "model.json"
    assert file.stat().st_mode & 0o777 == 0o600
    for nonsense in ("[]", "{", "[" * 50000, '{"a": 1}'):
        file.write_text(nonsense)
        assert directory.description(MODEL_KEY) == {}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702, 0o777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(
        InvalidConfigError, match=rf"cache_dir: .*shared: others can write to it \(mode {mode:o}\): run"
    ):
        CacheDirectory(path)


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InvalidConfigError, match=r"belongs to user \d+, and you are \d+: choose"):
        CacheDirectory(tmp_path)


def test_a_link_of_somebody_else_is_refused_and_an_own_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    CacheDirectory(link)
    if os.geteuid():
        pytest.skip("only root can give a link away")
    os.lchown(link, 12345, 12345)
    with pytest.raises(InvalidConfigError, match="a link that belongs to user 12345"):
        CacheDirectory(link)


def test_a_tilde_is_the_user_s_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CacheDirectory(Path("~/kv")).path == tmp_path / "kv"


def test_what_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfigError, match=r"cache_dir: .*file: cannot be used as a cache: File exists"):
        CacheDirectory(tmp_path / "file")
    with pytest.raises(InvalidConfigError, match="Not a directory"):
        CacheDirectory(tmp_path / "file" / "below")
    with pytest.raises(InvalidConfigError, match="No such file"):
        CacheDirectory(tmp_path / "missing", creates=False)
