"""Writes docs/openai-compat.md from the wire types: `python -m forerun.server.compat [FILE]`."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from forerun.server.wire.chat import ChatRequest
from forerun.server.wire.completions import CompletionRequest
from forerun.server.wire.fields import Mark
from forerun.server.wire.messages import CountTokensRequest, MessagesRequest
from forerun.server.wire.responses import ResponsesRequest

ENDPOINTS: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("/v1/chat/completions", ChatRequest),
    ("/v1/completions", CompletionRequest),
    ("/v1/responses", ResponsesRequest),
    ("/v1/messages", MessagesRequest),
    ("/v1/messages/count_tokens", CountTokensRequest),
)
HONOURED: Final = "honoured"
_INTRODUCTION: Final = """# Fields of requests

Written by `python -m forerun.server.compat` from `src/forerun/server/wire`; a test fails when the two differ.

Every field is **honoured**, or **refused** with a 400 that names it. *Accepted without effect* are hints that could not
change an answer here; each says why. Fields that are not listed are refused. `null` is always the same as leaving out.
The table of an object follows below that of the request it is part of.

Differences in defaults: without `max_tokens` an answer ends with the model's turn or the context, also on
`/v1/completions` (OpenAI: 16); schemas are always enforced strictly, whatever `strict` says.
"""


def document() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for path, model in ENDPOINTS:
        parts.append(f"## `POST {path}`\n\n{_table(model)}")
        parts += [f"### {part.__name__}\n\n{_table(part)}" for part in parts_of(model) if part is not model]
    return "\n".join(parts)


def status_of(field: FieldInfo) -> tuple[str, str]:
    """What becomes of a field, and what is to be said of it."""
    mark = next((one for one in field.metadata if isinstance(one, Mark)), None)
    if mark is None:
        return HONOURED, field.description or ""
    return mark.status, ". ".join(filter(None, (mark.why, field.description)))


def parts_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The objects that a request consists of, itself first, in order of appearance."""
    found: dict[type[BaseModel], None] = {}

    def visit(one: type[BaseModel]) -> None:
        if one in found:
            return
        found[one] = None
        for field in one.model_fields.values():
            for inner in _models_in(field.annotation):
                visit(inner)

    visit(model)
    return list(found)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _table(model: type[BaseModel]) -> str:
    rows = ["| field | type | | |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        status, said = status_of(field)
        kind = "" if status == "refused" else f"`{_shown(field.annotation)}`"
        shown = field.alias or name
        rows.append(f"| `{shown}` | {kind} | {status} | {_escaped(said)} |")
    return "\n".join(rows) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _shown(annotation: Any) -> str:
    """A type as people write it; null is always taken and left out."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shown(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_shown(one) for one in arguments if one is not type(None)))
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin is list:
        return f"[{_shown(arguments[0])}]"
    if origin is dict:
        return "object" if arguments[1] is Any else f"{{{_shown(arguments[0])}: {_shown(arguments[1])}}}"
    return _NAMES.get(annotation, getattr(annotation, "__name__", "any"))


_NAMES: Final[dict[Any, str]] = {str: "text", int: "integer", float: "number", bool: "boolean", Any: "any"}


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/openai-compat.md").write_text(document(), "utf-8")
