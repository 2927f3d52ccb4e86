"""What a model is by its content: the same everywhere for the same files, another one for any other byte."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.models.catalog_format import FileRole, Method
from forerun.models.gguf_header import read_header
from forerun.models.package import EMBEDDED, Bundle, Package, PackageFile, bundle_of, package_of, part_paths
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor

CLONES = 2
WEIGHT = Tensor("token_embd.weight", (8, 3), 0, bytes(range(96)))


def write(path: Path, **entries: bytes) -> Path:
    keys = {
        "general.architecture": gguf.text("llama"),
        "llama.block_count": gguf.u32(1),
        "llama.context_length": gguf.u32(128),
        "llama.embedding_length": gguf.u32(8),
        "tokenizer.ggml.model": gguf.text("gpt2"),
    }
    GgufFile(keys | entries, [WEIGHT]).write(path)
    return path


@pytest.fixture(autouse=True)
def digests_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def key(target: Path, draft: Path | None = None, *, has_mtp: bool = False) -> str:
    return bundle_of(read_header(target), None if draft is None else read_header(draft), has_mtp=has_mtp).key


def test_a_bundle_s_key_is_the_digest_of_canonical_json() -> None:
    bundle = Bundle("package_1", Method.DRAFT, "package_2")
    text = '{"draft":{"package":"package_2","source":"package"},"method":"draft","target":"package_1","version":1}'
    assert bundle.key == f"bundle_{hashlib.sha256(text.encode()).hexdigest()}"
    assert json.loads(text)["method"] == bundle.method


def test_ids_and_keys_stay_what_they_are() -> None:
    package = Package((PackageFile(FileRole.WEIGHTS, "ab" * 32), PackageFile(FileRole.PROJECTOR, "cd" * 32)))
    assert package.id == "package_8a3544f60c2e8ba0a5e6901f890ca61d8ebe9dbe4f5518bc2acb36a5856177f2"
    assert Bundle(package.id).key == "bundle_3fcdd0cdabdb0bb76a4654d4631ef9dc946477b521d494ee03cc260dbf34ba45"


def test_the_order_in_which_files_are_named_does_not_matter_and_their_roles_do() -> None:
    files = [PackageFile(FileRole.WEIGHTS, "ab" * 32), PackageFile(FileRole.ADAPTER, "cd" * 32)]
    assert Package(tuple(files)).id == Package(tuple(reversed(files))).id
    swapped = [PackageFile(FileRole.ADAPTER, "ab" * 32), PackageFile(FileRole.WEIGHTS, "cd" * 32)]
    assert Package(tuple(files)).id != Package(tuple(swapped)).id


def test_the_ways_of_drafting_are_bundles_of_their_own() -> None:
    ways = [
        Bundle("package_1"),
        Bundle("package_1", Method.MTP, EMBEDDED),
        Bundle("package_1", Method.DRAFT, "package_2"),
        Bundle("package_2", Method.DRAFT, "package_1"),
        Bundle("package_1", Method.DRAFT, "package_1"),
    ]
    assert len({bundle.key for bundle in ways}) == len(ways)


@pytest.mark.parametrize(
    ("method", "draft"),
    [
        (Method.NGRAM, EMBEDDED),
        (Method.NGRAM, "package_2"),
        (Method.MTP, None),
        (Method.MTP, "package_2"),
        (Method.DRAFT, None),
        (Method.DRAFT, EMBEDDED),
    ],
)
def test_a_bundle_whose_draft_is_not_of_its_method_cannot_be_made(method: Method, draft: str | None) -> None:
    with pytest.raises(ValueError, match="no source for method"):
        Bundle("package_1", method, draft)


def test_the_same_files_have_the_same_key_wherever_they_lie_and_whatever_they_are_called(tmp_path: Path) -> None:
    keys = set()
    for folder, names in (("a", ("t.gguf", "d.gguf")), ("b/c", ("target.gguf", "draft.gguf"))):
        (tmp_path / folder).mkdir(parents=True)
        target, draft = (tmp_path / folder / name for name in names)
        write(target)
        write(draft, **{"general.name": gguf.text("draft")})
        keys.add(key(target, draft))
    assert len(keys) == 1


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_of_target_or_draft_changes_the_key(tmp_path: Path, data: st.DataObject) -> None:
    target, draft = write(tmp_path / "t.gguf"), write(tmp_path / "d.gguf", **{"general.name": gguf.text("draft")})
    before, headers = key(target, draft), (read_header(target), read_header(draft))
    changed = data.draw(st.sampled_from([target, draft]))
    content = bytearray(changed.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    changed.write_bytes(content)
    assert bundle_of(*headers).key != before
    assert (
        key(*(write(tmp_path / "t.gguf"), write(tmp_path / "d.gguf", **{"general.name": gguf.text("draft")}))) == before
    )


def test_target_and_draft_swapped_are_another_bundle(tmp_path: Path) -> None:
    target, draft = write(tmp_path / "t.gguf"), write(tmp_path / "d.gguf", **{"general.name": gguf.text("draft")})
    keys = [key(target), key(target, draft), key(draft, target), key(target, target), key(target, has_mtp=True)]
    assert len(set(keys)) == len(keys)


def split(folder: Path, prefix: str, last: bytes = b"\1") -> Path:
    """A model of two parts; the path of the first."""
    for part, data in enumerate((b"\0", last), start=1):
        entries = {
            "general.architecture": gguf.text("llama"),
            "split.count": gguf.u32(2),
            "split.no": gguf.u32(part - 1),
        }
        GgufFile(entries, [Tensor(f"blk.{part}.x", (32,), 24, data * 32)]).write(
            folder / f"{prefix}-{part:05}-of-00002.gguf"
        )
    return folder / f"{prefix}-00001-of-00002.gguf"


def test_all_parts_of_a_split_model_count_and_their_names_do_not(tmp_path: Path) -> None:
    one, other = split(tmp_path, "one"), split(tmp_path, "other")
    assert [path.name for path in part_paths(read_header(one))] == [
        "one-00001-of-00002.gguf",
        "one-00002-of-00002.gguf",
    ]
    assert key(one) == key(other) != key(split(tmp_path, "third", last=b"\2"))


def test_a_projector_belongs_to_the_package_and_so_do_adapters_that_are_named(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "m.gguf"))
    other = write(tmp_path / "o.gguf", **{"general.name": gguf.text("other")})
    ids = {
        package_of(header).id,
        package_of(header, projector=other).id,
        package_of(header, adapters=[other]).id,
    }
    assert len(ids) == 3
    assert all(re.fullmatch(r"package_[0-9a-f]{64}", one) for one in ids)


def test_two_machines_print_the_same_key_for_the_same_files(tmp_path: Path) -> None:
    """Two clones of Forerun, at other paths, with other homes, and the files under other names."""
    source = Path(__file__).resolve().parents[2] / "src"
    printed = set()
    for number in range(CLONES):
        machine = tmp_path / f"machine{number}"
        shutil.copytree(source, machine / "clone", ignore=shutil.ignore_patterns("__pycache__"))
        models = machine / f"models{number}"
        models.mkdir()
        target = write(models / f"target{number}.gguf")
        draft = write(models / f"draft{number}.gguf", **{"general.name": gguf.text("draft")})
        environment = os.environ | {
            "PYTHONPATH": str(machine / "clone"),
            "HOME": str(machine),
            "XDG_CACHE_HOME": str(machine / "cache"),
        }
        command = [sys.executable, "-m", "forerun", "models", "key", str(target), "--draft", str(draft)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
        printed.add(done.stdout)
    (text,) = printed
    assert re.fullmatch(r"bundle_[0-9a-f]{64}\n", text)
