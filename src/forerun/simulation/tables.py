"""Tables of a TOML file, checked: unknown fields are refused, and nothing is converted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from forerun.errors import InvalidConfigError

_MAX_BYTES: Final = 2**20
_OWN_WORDS: Final = frozenset({"missing", "value_error", "extra_forbidden"})
"""Kinds of errors that say the value themselves, or have none."""


class Table(BaseModel):
    """What a table may hold."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def read_text(path: Path) -> str:
    """Of a file that is not too long. Raises InvalidConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise InvalidConfigError(str(path), f"is longer than {_MAX_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise InvalidConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfigError(str(path), "is no text in UTF-8") from None


def refusal(error: ValidationError) -> InvalidConfigError:
    """The first thing that is wrong, by the name it has in the file."""
    first = error.errors(include_url=False)[0]
    field = ""
    for part in first["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if first["type"] not in _OWN_WORDS:
        message += f", got {str(first['input'])[:80]}"
    return InvalidConfigError(field, message)
