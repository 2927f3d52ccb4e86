"""Errors name fields as the caller's API does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from forerun.errors import InvalidRequestError


@contextmanager
def named_as(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about our names of fields (`max_tokens`, `messages[2]`) name the request's (`max_output_tokens`)."""
    try:
        yield
    except InvalidRequestError as error:
        ours = next((name for name in names if _is_under(error.field, name)), None)
        if ours is None:
            raise
        said = str(error).removeprefix(f"{error.field}: ")
        raise type(error)(names[ours] + error.field[len(ours) :], said) from error


def _is_under(field: str, name: str) -> bool:
    return field == name or (field.startswith(name) and field[len(name)] in ".[")
