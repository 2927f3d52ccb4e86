"""Chat templates that users give: a Jinja file, as Hugging Face's `chat_template.jinja`."""

from __future__ import annotations

import json
from pathlib import Path

from forerun.chat.templates import MAX_TEMPLATE_BYTES, ChatTemplate
from forerun.errors import InvalidConfigError


def read_template(file: str) -> str:
    """What a file holds, if it is a template that compiles. Raises InvalidConfigError("chat_template")."""
    source = _text(file)
    if _is_json(source):
        raise InvalidConfigError(
            "chat_template", f"{file} is JSON: give the template itself, in a file of its own (chat_template.jinja)"
        )
    problem = ChatTemplate(source, "", "").problem()
    if problem is not None:
        raise InvalidConfigError("chat_template", f"{file} is no Jinja template: {problem}")
    return source


def _text(file: str) -> str:
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MAX_TEMPLATE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidConfigError("chat_template", f"{file!r} cannot be read: {error}") from None
    if len(content) > MAX_TEMPLATE_BYTES:
        raise InvalidConfigError("chat_template", f"{file} has more than {MAX_TEMPLATE_BYTES} bytes: no template has")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidConfigError("chat_template", f"{file} is not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise InvalidConfigError("chat_template", f"{file} is empty")
    return text


def _is_json(text: str) -> bool:
    """Whether it is an object of JSON, such as tokenizer_config.json: as a template it would render as itself."""
    if text.lstrip()[:2].startswith("{{") or not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
