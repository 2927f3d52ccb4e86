"""Chat templates that users give in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.chat.template_file import read_template
from forerun.chat.templates import MAX_TEMPLATE_BYTES
from forerun.errors import InvalidConfigError

TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"


def written(folder: Path, content: str | bytes) -> str:
    file = folder / "chat_template.jinja"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def refusal(file: str) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        read_template(file)
    assert caught.value.field == "chat_template"
    return str(caught.value)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with a byte order mark"])
def test_a_template_is_read_as_it_stands(tmp_path: Path, mark: bytes) -> None:
    assert read_template(written(tmp_path, mark + TEMPLATE.encode())) == TEMPLATE


def test_a_template_may_begin_like_json(tmp_path: Path) -> None:
    for source in (
        "{{ bos_token }}",
        "{%- if tools %}{% endif %}",
        "{# comment #}{{ bos_token }}",
        "{ {{ bos_token }}",
    ):
        assert read_template(written(tmp_path, source)) == source


def test_a_template_that_does_not_compile_is_refused_with_the_line(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, "{{ bos_token }}\n{% if messages %}\n\nnever ended"))
    assert "chat_template.jinja is no Jinja template: line 3: Unexpected end of template" in said


def test_the_configuration_of_a_tokenizer_is_not_taken_for_a_template(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, json.dumps({"chat_template": TEMPLATE})))
    assert "is JSON: give the template itself" in said


def test_what_is_no_text_or_too_much_of_it_is_refused(tmp_path: Path) -> None:
    assert "is empty" in refusal(written(tmp_path, " \n"))
    assert "is not UTF-8 at byte 4" in refusal(written(tmp_path, b"GGUF\xff\xff"))
    assert f"more than {MAX_TEMPLATE_BYTES} bytes" in refusal(written(tmp_path, "a" * (MAX_TEMPLATE_BYTES + 1)))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for file in (str(tmp_path / "nothing.jinja"), str(tmp_path), "", "a\0b"):
        assert f"{file!r} cannot be read" in refusal(file)
