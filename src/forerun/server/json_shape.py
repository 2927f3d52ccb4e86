"""How deep and how large a JSON text is, before anything is built of it: linear, without recursion, in bulk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


@dataclass(frozen=True, slots=True)
class JsonShape:
    """Of a text that is no JSON: at least what a parser meets before it notices."""

    depth: int
    """How deeply arrays and objects are nested."""
    values: int
    """Objects, arrays and strings, names of fields among them: what costs to check. Numbers hardly do, and a prompt may
    consist of as many token ids as the context holds."""


def json_shape(content: bytes) -> JsonShape:
    """Looks at each byte a fixed number of times."""
    text = np.frombuffer(_without_pairs(content).replace(b'\\"', b"  "), np.uint8)
    quotes = text == ord('"')
    outside = np.bitwise_xor.accumulate(quotes) == 0 if text.size else quotes
    letters = text | 0x20  # [ and {, ] and } differ by this bit alone
    opens = (letters == ord("{")) & outside
    closes = (letters == ord("}")) & outside
    steps = np.subtract(opens, closes, dtype=np.int8)
    levels = np.cumsum(steps[steps != 0], dtype=np.int32)
    depth = int(levels.max()) if levels.size else 0
    return JsonShape(max(depth, 0), int(np.count_nonzero(opens)) + int(np.count_nonzero(quotes)) // 2)


def lone_surrogate(content: bytes) -> str | None:
    r"""The first escape that is half of a character outside the BMP (`\ud83d` without `\ude00`), if there is one."""
    found = _LONE_SURROGATE.search(_without_pairs(content))
    return None if found is None else found[0].decode()


def _without_pairs(content: bytes) -> bytes:
    """Without escaped backslashes: each that is left begins the escape of what follows it."""
    return content.replace(b"\\\\", b"  ")
