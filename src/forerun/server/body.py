"""Reads request bodies: JSON of bounded size, depth and number of values, checked against a wire type.

Errors name the field.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from fastapi import Depends
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from forerun.server.json_shape import json_shape, lone_surrogate
from forerun.server.problems import Problem, ProblemError
from forerun.server.settings import ServerSettings

T = TypeVar("T", bound=BaseModel)

_LONG_BODY: Final = 64 * 2**10
"""Bytes from which on a body is read on another thread: about a millisecond."""
_SHOWN_PROBLEMS: Final = 3
_MANY_PROBLEMS: Final = 200
"""More are not looked at one by one."""
_LOOKED_AT: Final = 20
"""For words about them; some say the same."""
_LONGEST_NAME: Final = 50
_SHORT: Final = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxdict = 20
_SHORT.maxstring = 100
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
        settings: ServerSettings = request.app.state.settings
        if len(content) < _LONG_BODY:
            return self._read(content, settings)
        return await asyncio.to_thread(self._read, content, settings)

    def _read(self, content: bytes, settings: ServerSettings) -> T:
        value = parse_json(content, max_depth=settings.max_json_depth, max_values=settings.max_json_values)
        return validated(self.model, value)


def json_body(model: type[BaseModel]) -> Any:
    """`Annotated[ChatRequest, json_body(ChatRequest)]` in a route's signature."""
    return Depends(JsonBody(model))


def parse_json(content: bytes, *, max_depth: int, max_values: int) -> Any:
    """A JSON text. Raises ProblemError for what is none, is no UTF-8, is nested deeper than `max_depth` or has more
    than `max_values` objects, arrays and strings."""
    if not content.strip():
        raise _bad_json("the body is empty; send a JSON object")
    shape = json_shape(content)
    if shape.depth > max_depth:
        raise _bad_json(f"the JSON is nested deeper than {max_depth} levels")
    if shape.values > max_values:
        found = f"the JSON has {shape.values} objects, arrays and strings (names of fields count)"
        raise _bad_json(f"{found}; this server reads {max_values}: send fewer")
    try:
        content.decode()
        return msgspec.json.decode(content)
    except UnicodeDecodeError as error:
        raise _bad_json(f"the body is not UTF-8 at byte {error.start}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        if half := lone_surrogate(content):
            raise _bad_json(f"{half} is a lone surrogate, half a character: send it with its other half") from None
        raise _bad_json(f"the body is no JSON: {error}") from None


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
        raise _invalid(error, known=model.model_fields) from None
    except RecursionError:
        raise _bad_json("the JSON is nested too deeply") from None


def _invalid(error: ValidationError, known: Iterable[str]) -> ProblemError:
    if (count := error.error_count()) > _MANY_PROBLEMS:
        many = f"the body has {count} fields that are wrong or not known here; GET /docs shows what is"
        return ProblemError(Problem(status=400, message=many, code="invalid_value"))
    found = _deepest(error.errors(include_url=False, include_context=False))
    params = [_param(one) for one in found]
    said = [
        f"{param}: {_said(one, known)}" if param else _said(one, known)
        for param, one in zip(params[:_LOOKED_AT], found[:_LOOKED_AT], strict=True)
    ]
    message = "; ".join(list(dict.fromkeys(said))[:_SHOWN_PROBLEMS])
    code = "unknown_parameter" if found[0]["type"] == "extra_forbidden" else "invalid_value"
    return ProblemError(Problem(status=400, message=message, param=params[0] or None, code=code))


def _deepest(found: list[Any]) -> list[Any]:
    """Without those that lie around others: a value that may be text or a list, and is a list with something wrong in
    it, is not to be told that it is no text."""
    paths = [_param(one) for one in found]
    around = {path[: mark.start()] for path in paths for mark in _STEP.finditer(path)}
    return [one for one, path in zip(found, paths, strict=True) if path not in around]


def _said(one: Any, known: Iterable[str]) -> str:
    match one["type"]:
        case "extra_forbidden":
            return f"is not known here{_meant(one['loc'], known)}; GET /docs shows what is"
        case "missing":
            return "is required"
        case "value_error":
            return str(one["msg"]).removeprefix("Value error, ")
    shown = _shown(one["input"])
    text = str(one["msg"])
    return f"{text[:1].lower()}{text[1:]}, got {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _meant(path: Sequence[int | str], known: Iterable[str]) -> str:
    """What a field of the request itself, misspelt, was probably to be."""
    name = str(path[0])
    alike = difflib.get_close_matches(name, known, 1) if len(path) == 1 and len(name) <= _LONGEST_NAME else []
    return f" (did you mean {alike[0]}?)" if alike else ""


def _shown(value: Any) -> str:
    """Its beginning: the whole may be as large as the body."""
    return repr(value[:100]) if isinstance(value, str) else _SHORT.repr(value)


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
