"""Sizes and ages as people write them."""

from __future__ import annotations

import re
from typing import Final

from forerun.errors import InvalidConfigError

_NUMBER: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([a-z]*)", re.ASCII)
_BYTES: Final = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_size(field: str, text: str) -> int:
    """Bytes of "2GiB", "500 MB", "1.5g" (1024 to the step unless it ends in a B without an i) or a plain number.

    Raises InvalidConfigError naming `field`.
    """
    return int(_parsed(field, text, _BYTES, "a size such as 2GiB, 500MB or a number of bytes"))


def parse_age(field: str, text: str) -> float:
    """Seconds of "30d", "12h", "2w", "45min". Raises InvalidConfigError naming `field`."""
    return _parsed(field, text, _SECONDS, "a time such as 30d, 12h or 2w")


def _parsed(field: str, text: str, units: dict[str, int], wanted: str) -> float:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise InvalidConfigError(field, f"must be {wanted}, got {text!r}")
    number, unit = match[1], units[match[2]]
    return float(number) * unit if "." in number else int(number) * unit
