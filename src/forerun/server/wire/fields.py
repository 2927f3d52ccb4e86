"""What becomes of a field, said where it is declared: honoured, taken without effect, or refused.

docs/openai-compat.md is written from these marks (`python -m forerun.server.compat`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema


def _fail_fast(schema: Any) -> None:
    """Have lists end at their first error: a million wrong elements are one."""
    if isinstance(schema, list | tuple):
        for one in schema:
            _fail_fast(one)
    elif isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for name, one in schema.items():
            if name != "metadata":
                _fail_fast(one)


class Wire(BaseModel):
    """Unknown fields are refused, and nothing is converted: a number in quotes is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True, defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler, /) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema


@dataclass(frozen=True, slots=True)
class Mark:
    """Why a field is not honoured as OpenAI describes it."""

    status: str
    why: str


def refused(why: str) -> Any:
    """The type of a field that may only be null. Its error says why."""

    def check(value: object) -> None:
        if value is not None:
            raise ValueError(f"is not supported: {why}")

    schema = {"type": "null", "description": f"Not supported: {why}"}
    return Annotated[None, BeforeValidator(check), WithJsonSchema(schema), Mark("refused", why)]


def only(allowed: Callable[[Any], bool], why: str) -> tuple[AfterValidator, Mark]:
    """For `Annotated[type, *only(...)]`: some values are honoured, the error says why others are refused."""

    def check(value: Any) -> Any:
        if value is not None and not allowed(value):
            raise ValueError(why)
        return value

    return AfterValidator(check), Mark("honoured in part", why)


def no_effect(why: str) -> Mark:
    """For `Annotated[type, no_effect(...)]`: taken, and changes nothing here."""
    return Mark("accepted without effect", why)
