"""`forerun cache`: what a directory holds, what would hit, and what is deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from forerun.cache.contents import stored_models
from forerun.cache.directory import CacheDirectory
from forerun.cache.disk import SegmentFiles
from forerun.cache.embeddings import EmbeddingCache, EmbeddingFiles
from forerun.cache.file_format import encode_head
from forerun.cli.sizes import parse_age, parse_size
from forerun.core.adapters import AdapterSet
from forerun.core.cache_report import CacheLookup
from forerun.core.segment import SegmentHeader, segment_key
from forerun.engine.intake import Intake
from forerun.engine.tokenizer import Tokenizer
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError
from forerun.offline import PromptReader
from tests.cache.support import MODEL_KEY, OTHER_MODEL, header_of, state_of, text_header
from tests.cli.conftest import Forerun
from tests.engine.support import SpellingVocabulary

DAY = 86400.0


def store(directory: Path, model_key: str, headers: Sequence[SegmentHeader], age: float) -> None:
    files = SegmentFiles(CacheDirectory(directory), model_key)
    for header in headers:
        state = state_of(header, 2**20)
        files.write(encode_head(model_key, header, state), state)
        files.touch(header.key, time.time() - age)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """Two conversations with one beginning of one model, and an old one of another."""
    directory = tmp_path / "kv"
    first = text_header([0, 1, 0])
    store(directory, MODEL_KEY, [first, text_header([1, 1], first), text_header([0, 0, 0], first)], 3 * 3600)
    store(directory, OTHER_MODEL, [header_of(text_header([5]).content, model_key=OTHER_MODEL)], 40 * DAY)
    cache = CacheDirectory(directory)
    cache.describe(MODEL_KEY, {"target": "small.gguf", "draft": "tiny.gguf"})
    cache.describe(OTHER_MODEL, {"target": "[bold]large.gguf"})
    return directory


def remaining(directory: Path) -> dict[str, int]:
    return {model.key: len(model.segments) for model in stored_models(CacheDirectory(directory))}


def test_stats_has_a_line_for_each_model(forerun: Forerun, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = forerun("cache", "stats", "--cache-dir", str(cache_dir))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    small, large = (next(line for line in lines if name in line) for name in ("small.gguf", "[bold]large.gguf"))
    assert "small.gguf + tiny.gguf" in small
    assert all(word in small for word in ("01234567", "3", "2", "3.0 MiB", "3 h ago"))
    assert all(word in large for word in ("fedcba98", "1.0 MiB", "40 d ago"))
    assert lines[-1] == f"4.0 MiB in {cache_dir}"


def test_stats_as_json(forerun: Forerun, cache_dir: Path) -> None:
    report = json.loads(forerun("cache", "stats", "--cache-dir", str(cache_dir), "--json").stdout)
    first = report["models"][0]
    assert (first["key"], first["segments"], first["conversations"]) == (MODEL_KEY, 3, 2)
    assert first["bytes"] > 3 * 2**20
    assert first["description"]["draft"] == "tiny.gguf"


def test_ls_lists_conversations_the_last_used_first(forerun: Forerun, cache_dir: Path) -> None:
    result = forerun("cache", "ls", "--cache-dir", str(cache_dir))
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if ".gguf" in line]
    assert [line.replace("│", " ").split()[0] for line in rows] in (["5", "6", "1"], ["6", "5", "1"])
    assert "first words" not in result.stdout
    result = forerun("cache", "ls", "--cache-dir", str(cache_dir), "--limit", "1", "--model", "0123")
    assert "1 of 2 conversations: --limit shows more" in result.stdout


def test_ls_shows_the_first_words_that_tell_conversations_apart(
    forerun: Forerun, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def reader(_name: str) -> Iterator[PromptReader]:
        vocabulary = SpellingVocabulary()
        tokenizer = Tokenizer(vocabulary)
        yield PromptReader(Intake(tokenizer, None, time.monotonic), tokenizer, vocabulary)

    monkeypatch.setattr("forerun.cli.cache.prompt_reader", reader)
    model = tmp_path / "small.gguf"
    model.touch()
    result = forerun("cache", "ls", "--cache-dir", str(cache_dir), "--model", str(model))
    assert result.exit_code == 0, result.output
    assert {line.split("│")[-2].strip() for line in result.stdout.splitlines() if "small" in line} == {"bb", "aaa"}
    assert "large" not in result.stdout
    listed = json.loads(forerun("cache", "ls", "--cache-dir", str(cache_dir), "--model", str(model), "--json").stdout)
    assert {one["first_words"] for one in listed["conversations"]} == {"bb", "aaa"}
    assert listed["total"] == 2


def test_clear_asks_first(forerun: Forerun, cache_dir: Path) -> None:
    result = forerun("cache", "clear", "--cache-dir", str(cache_dir), stdin="n\n")
    assert result.exit_code == 1
    assert f"Delete 4 segments, 4.0 MiB in {cache_dir}?" in result.output
    assert remaining(cache_dir) == {MODEL_KEY: 3, OTHER_MODEL: 1}
    result = forerun("cache", "clear", "--cache-dir", str(cache_dir), stdin="y\n")
    assert result.exit_code == 0
    assert remaining(cache_dir) == {}
    assert "nothing to delete" in forerun("cache", "clear", "--cache-dir", str(cache_dir)).stdout


def test_clear_deletes_what_is_old_or_of_one_model(forerun: Forerun, cache_dir: Path) -> None:
    arguments = ("cache", "clear", "--cache-dir", str(cache_dir), "--yes")
    assert "deleted: 1 segments" in forerun(*arguments, "--older-than", "30d").stdout
    assert remaining(cache_dir) == {MODEL_KEY: 3}
    assert "deleted: 3 segments" in forerun(*arguments, "--model", "small.gguf").stdout
    assert remaining(cache_dir) == {}


def test_clear_deletes_files_that_are_of_no_use_too(forerun: Forerun, cache_dir: Path) -> None:
    for file in cache_dir.rglob("*.kv"):
        file.write_bytes(b"of a version to come")
    assert "deleted: 4 segments" in forerun("cache", "clear", "--cache-dir", str(cache_dir), "--yes").stdout
    assert not list(cache_dir.rglob("*.kv"))


def test_encoded_pictures_are_counted_and_deleted_with_all_models(forerun: Forerun, cache_dir: Path) -> None:
    EmbeddingCache(0, EmbeddingFiles(CacheDirectory(cache_dir), 2**22)).put("picture", bytes(2**20 - 32))
    stats = json.loads(forerun("cache", "stats", "--cache-dir", str(cache_dir), "--json").stdout)
    assert stats["encoded_media"] == {"files": 1, "bytes": 2**20}
    assert "1.0 MiB of encoded media" in forerun("cache", "stats", "--cache-dir", str(cache_dir)).stdout
    arguments = ("cache", "clear", "--cache-dir", str(cache_dir), "--yes")
    forerun(*arguments, "--model", "small.gguf")
    forerun(*arguments, "--older-than", "1h")
    assert len(list(cache_dir.rglob("*.emb"))) == 1
    assert "1 encoded spans of media, 1.0 MiB" in forerun(*arguments).stdout
    assert not list(cache_dir.rglob("*.emb"))


def test_lookup_needs_a_directory(forerun: Forerun) -> None:
    result = forerun("cache", "lookup", "smollm2", "text")
    assert result.exit_code == 2
    assert result.stderr == "forerun: cache_dir: is not given: name the directory that keeps the prefixes\n"


def test_an_unknown_model_is_told_what_there_is(forerun: Forerun, cache_dir: Path) -> None:
    result = forerun("cache", "clear", "--cache-dir", str(cache_dir), "--model", "other.gguf", "--yes")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        "forerun: model: nothing is stored of 'other.gguf'; there is small.gguf + tiny.gguf (01234567)"
    )


@pytest.mark.parametrize("command", ["stats", "ls", "clear"])
def test_a_directory_that_is_no_cache_is_one_clear_line(forerun: Forerun, tmp_path: Path, command: str) -> None:
    result = forerun("cache", command, "--cache-dir", str(tmp_path / "missing"))
    assert result.exit_code == 2
    assert (
        result.stderr
        == f"forerun: cache_dir: {tmp_path}/missing: cannot be used as a cache: No such file or directory\n"
    )


def test_looking_deletes_nothing(forerun: Forerun, cache_dir: Path) -> None:
    stray = cache_dir / MODEL_KEY / "notes.txt"
    stray.write_text("mine")
    for command in ("stats", "ls"):
        forerun("cache", command, "--cache-dir", str(cache_dir))
    assert stray.exists()


def test_lookup_tells_what_would_be_found(forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineConfig] = []

    def look_up(config: EngineConfig, _prompt: object, adapters: AdapterSet) -> CacheLookup:
        asked.append(config)
        assert adapters == (("sql", 0.5),)
        return CacheLookup(prompt_tokens=830, disk_tokens=812)

    monkeypatch.setattr("forerun.cli.cache.look_up_on_disk", look_up)
    arguments = (
        "cache",
        "lookup",
        "m.gguf",
        "text",
        "--cache-dir",
        "kv",
        "--draft",
        "d.gguf",
        "--use-adapter",
        "sql=0.5",
    )
    result = forerun(*arguments)
    assert result.stdout == "812 of 830 tokens are on disk, 18 would be computed\n"
    assert json.loads(forerun(*arguments, "--json").stdout)["disk_tokens"] == 812
    assert (asked[0].model, asked[0].draft, asked[0].cache_dir) == ("m.gguf", "d.gguf", "kv")


@pytest.mark.model
def test_lookup_finds_what_an_engine_of_these_options_would(
    forerun: Forerun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.compose import model_identity, preflight
    from forerun.offline import prompt_reader

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    directory = tmp_path / "kv"
    config = EngineConfig(model="smollm2", n_ctx=512, cache_dir=str(directory))
    identity = model_identity(config, preflight(config))
    with prompt_reader("smollm2") as reader:
        prompt = reader.intake.layout("Why is the sky blue? " * 20)
    content = tuple(prompt.slice_segments(0, 100))
    start = header_of(content, model_key=identity.key)
    assert start.key == segment_key(identity.key, "", "", start.start, content)
    store(directory, identity.key, [start], 0.0)
    options = ("--cache-dir", str(directory), "--n-ctx", "512")
    result = forerun("cache", "lookup", "smollm2", "Why is the sky blue? " * 20, *options)
    assert result.exit_code == 0, result.output
    total = prompt.logical_tokens
    assert result.stdout == f"100 of {total} tokens are on disk, {total - 100} would be computed\n"
    assert "0 of" in forerun("cache", "lookup", "smollm2", "Something else", "--raw", *options).stdout
    assert (
        "0 of"
        in forerun("cache", "lookup", "smollm2", "Why is the sky blue? " * 20, *options, "--draft", "smollm2").stdout
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1024", 1024),
        ("2GiB", 2 * 2**30),
        ("2 gib", 2 * 2**30),
        ("2G", 2 * 2**30),
        ("500MB", 500 * 10**6),
        ("1.5k", 1536),
        ("1TiB", 2**40),
        ("7b", 7),
        (" 3 MiB ", 3 * 2**20),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, number: int) -> None:
    assert parse_size("cache_ram", text) == number


@pytest.mark.parametrize("text", ["", "two", "-1", "1e9", "nan", "inf", "2PiB", "1.GiB", "GiB", "1 2", "٣", "9" * 40])
def test_a_size_that_is_none_is_refused_by_field_and_value(text: str) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        parse_size("cache_ram", text)
    expected = f"cache_ram: must be a size such as 2GiB, 500MB or a number of bytes, got {text!r}"
    assert str(refusal.value) == expected


def test_ages_are_read_as_people_write_them() -> None:
    assert [parse_age("older_than", text) for text in ("30d", "12 h", "2w", "45min", "1.5m", "10s")] == [
        30 * DAY,
        12 * 3600,
        14 * DAY,
        2700,
        90,
        10,
    ]
    for text in ("5", "1y", "-1d"):
        with pytest.raises(InvalidConfigError, match="older_than: must be a time such as 30d"):
            parse_age("older_than", text)
