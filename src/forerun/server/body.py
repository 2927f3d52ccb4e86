"""Reads request bodies: JSON of bounded size and depth, checked against a wire type; errors name the field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
from fastapi import Depends
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from forerun.server.problems import Problem, ProblemError

T = TypeVar("T", bound=BaseModel)

# Possessive, and an unfinished string reaches to the end: no input makes it look at a byte twice.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SHOWN_PROBLEMS: Final = 3
_STEP: Final = re.compile(r"[.\[]")
_ALTERNATIVE: Final = re.compile(
    r"(?:[A-Z]\w*|str|int|float|bool|none|is-instance.*|(?:list|dict|literal|tuple|nullable)\[.*|(?:function|tagged|constrained|lax|json)-.*)\Z"
)
"""How pydantic names an alternative of a union in the place of an error."""


class JsonBody(Generic[T]):
    """A dependency: the body as a wire type. Raises ProblemError (400)."""

    def __init__(self, model: type[T]) -> None:
        self.model = model

    async def __call__(self, request: Request) -> T:
        try:
            content = await request.body()
        except ClientDisconnect:
            raise ProblemError(Problem(status=400, message="the client left before the body had come")) from None
        value = parse_json(content, request.app.state.settings.max_json_depth)
        return validated(self.model, value)


def json_body(model: type[BaseModel]) -> Any:
    """`Annotated[ChatRequest, json_body(ChatRequest)]` in a route's signature."""
    return Depends(JsonBody(model))


def parse_json(content: bytes, max_depth: int) -> Any:
    """A JSON text. Raises ProblemError for what is none, is no UTF-8, or is nested deeper than `max_depth`."""
    if not content.strip():
        raise _bad_json("the body is empty; send a JSON object")
    if json_depth(content) > max_depth:
        raise _bad_json(f"the JSON is nested deeper than {max_depth} levels")
    try:
        content.decode()
        return msgspec.json.decode(content)
    except UnicodeDecodeError as error:
        raise _bad_json(f"the body is not UTF-8 at byte {error.start}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _bad_json(f"the body is no JSON: {error}") from None


def json_depth(content: bytes) -> int:
    """How deeply arrays and objects are nested; linear, without recursion. Of a text that is no JSON, as deep
    as a parser gets before it notices."""
    brackets = np.frombuffer(_STRING.sub(b"", content).translate(None, _NO_BRACKETS), np.uint8)
    if not brackets.size:
        return 0
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1)).max())


def _bad_json(message: str) -> ProblemError:
    return ProblemError(Problem(status=400, message=message, code="invalid_json"))


def validated(model: type[T], value: Any) -> T:
    """Raises ProblemError (400), naming the first wrong fields."""
    if not isinstance(value, dict):
        kind = "an array" if isinstance(value, list) else "a single value"
        raise ProblemError(Problem(status=400, message=f"the body is {kind}; send a JSON object", code="invalid_type"))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _invalid(error) from None
    except RecursionError:
        raise _bad_json("the JSON is nested too deeply") from None


def _invalid(error: ValidationError) -> ProblemError:
    found = _deepest(error.errors(include_url=False, include_context=False))
    params = [_param(one) for one in found]
    said = [f"{param}: {_said(one)}" if param else _said(one) for param, one in zip(params, found, strict=True)]
    message = "; ".join(list(dict.fromkeys(said))[:_SHOWN_PROBLEMS])
    code = "unknown_parameter" if found[0]["type"] == "extra_forbidden" else "invalid_value"
    return ProblemError(Problem(status=400, message=message, param=params[0] or None, code=code))


def _deepest(found: list[Any]) -> list[Any]:
    """Without those that lie around others: a value that may be text or a list, and is a list with something wrong in
    it, is not to be told that it is no text."""
    paths = [_param(one) for one in found]
    around = {path[: mark.start()] for path in paths for mark in _STEP.finditer(path)}
    return [one for one, path in zip(found, paths, strict=True) if path not in around]


def _said(one: Any) -> str:
    match one["type"]:
        case "extra_forbidden":
            return "is not known here; docs/openai-compat.md lists what is"
        case "missing":
            return "is required"
        case "value_error":
            return str(one["msg"]).removeprefix("Value error, ")
    shown = repr(one["input"])
    text = str(one["msg"])
    return f"{text[:1].lower()}{text[1:]}, got {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _param(one: Any) -> str:
    """`messages[0].content`: where it is in the body; which alternative of a union was tried is left out."""
    parts: Sequence[int | str] = one["loc"]
    ends_in_name = one["type"] in ("extra_forbidden", "missing")
    path = ""
    for index, part in enumerate(parts):
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _ALTERNATIVE.match(part) or (ends_in_name and index == len(parts) - 1):
            path += f".{part}" if path else part
    return path
