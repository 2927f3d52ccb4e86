"""Names of the files of a model that comes in parts: NAME-00001-of-00003.gguf and so on (llama.cpp's gguf-split)."""

from __future__ import annotations

import re
from typing import Final

MAX_PARTS: Final = 1_000
_PART: Final = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts where `name` is one of them, in order; `name` alone where it is no part.

    A name that says it is part 7 of 3, or of more than MAX_PARTS, is taken as a name like any other.
    """
    match = _PART.fullmatch(name)
    if match is None:
        return (name,)
    count = int(match["count"])
    if not 1 <= int(match["part"]) <= count <= MAX_PARTS:
        return (name,)
    return tuple(f"{match['stem']}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1))
