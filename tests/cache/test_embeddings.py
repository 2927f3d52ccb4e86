"""What media were encoded to is kept within hard budgets, in memory and in files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forerun.cache.directory import CacheDirectory
from forerun.cache.embeddings import EmbeddingCache, EmbeddingFiles


def files_in(path: Path, budget: int = 10_000) -> EmbeddingFiles:
    return EmbeddingFiles(CacheDirectory(path / "cache"), budget)


def written(path: Path) -> list[Path]:
    return sorted((path / "cache" / "media").glob("*"))


def test_the_budgets_hold_over_500_pictures(tmp_path: Path) -> None:
    dice = random.Random(0)
    cache = EmbeddingCache(5_000, files_in(tmp_path, 20_000))
    for number in range(500):
        cache.put(f"picture {dice.randrange(300)}", bytes(dice.randrange(1, 900)))
        cache.get(f"picture {dice.randrange(300)}")
        cache.check_integrity()
        if number % 50 == 0:
            assert sum(file.stat().st_size for file in written(tmp_path)) <= 20_000
    assert cache.used > 4_000
    assert sum(file.stat().st_size for file in written(tmp_path)) > 19_000


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = EmbeddingCache(10)
    for name in "abc":
        cache.put(name, name.encode() * 3)
    assert cache.get("a") == b"aaa"
    cache.put("d", b"ddd")
    assert [cache.get(name) for name in "abcd"] == [b"aaa", None, b"ccc", b"ddd"]


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    cache = EmbeddingCache(10)
    cache.put("a", b"a")
    cache.put("b", bytes(11))
    assert (cache.get("a"), cache.get("b"), cache.used) == (b"a", None, 1)


def test_a_budget_of_nothing_keeps_nothing() -> None:
    cache = EmbeddingCache(0)
    cache.put("a", b"a")
    assert cache.get("a") is None


def test_files_outlive_the_cache(tmp_path: Path) -> None:
    EmbeddingCache(100, files_in(tmp_path)).put("a", b"what it was")
    again = EmbeddingCache(100, files_in(tmp_path))
    assert again.get("a") == b"what it was"
    assert again.used == len(b"what it was")


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"x" + content[1:], lambda _: b""])
def test_a_file_that_is_torn_or_tampered_with_is_as_good_as_none(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    EmbeddingCache(0, files_in(tmp_path)).put("a", b"what it was")
    (file,) = written(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert EmbeddingCache(0, files_in(tmp_path)).get("a") is None
    assert written(tmp_path) == []


def test_a_file_under_another_s_name_is_as_good_as_none(tmp_path: Path) -> None:
    cache = EmbeddingCache(0, files_in(tmp_path))
    cache.put("a", b"what it was")
    (first,) = written(tmp_path)
    cache.put("b", b"another")
    (second,) = set(written(tmp_path)) - {first}
    first.rename(second)
    assert cache.get("b") is None


def test_a_directory_that_cannot_be_written_costs_the_files_alone(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    (tmp_path / "cache" / "media").write_text("a file where the folder should be")
    cache = EmbeddingCache(100, files)
    cache.put("a", b"held")
    assert cache.get("a") == b"held"
    assert cache.get("b") is None


def test_files_are_for_nobody_else(tmp_path: Path) -> None:
    EmbeddingCache(0, files_in(tmp_path)).put("a", b"private")
    (file,) = written(tmp_path)
    assert file.stat().st_mode & 0o077 == 0
