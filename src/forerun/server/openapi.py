"""Completes the OpenAPI document with the bodies that `JsonBody` reads: FastAPI does not know of them."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF: Final = "#/components/schemas/{model}"
_BODIES: Final[dict[str, type[BaseModel]]] = {}


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every error looks like."""

    error: ErrorDetails


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorBody, "description": "The request cannot be served as asked; `param` names the field."},
    401: {"model": ErrorBody, "description": "An API key is needed."},
    404: {"model": ErrorBody, "description": "There is no such model."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    503: {"model": ErrorBody, "description": "Overloaded, loading or stopping; Retry-After says when to come again."},
}


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`: it reads this body (through `json_body`)."""
    _BODIES[model.__name__] = model
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def with_bodies(document: dict[str, Any], app: FastAPI) -> dict[str, Any]:
    """The document with the schemas of all bodies that its routes take."""
    del app
    _, definitions = models_json_schema(
        [(model, "validation") for model in _BODIES.values()], ref_template=_REF, by_alias=True
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions.get("$defs", {}))
    return document
