"""A conversation about a picture: encoding it once, or for every question."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

from forerun.bench.client import Client
from forerun.bench.texts import assistant, dice, user
from forerun.bench.workloads.workload import Workload

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_RGB, _DEPTH = 2, 8


@dataclass(frozen=True, slots=True)
class Images(Workload):
    name = "images"
    about = "Two questions about a picture of noise: the time to the first token of the first. Needs a vision model."
    primary = "first ttft_ms"
    shown = ("second ttft_ms", "evaluated_tokens", "prompt_tokens")
    tokens = frozenset({"output"})
    feeds_back = True

    pixels: int = 448
    """Of each side."""
    output: int = 16

    async def run(self, client: Client, seed: int) -> None:
        picture = noise(seed, self.pixels)
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(picture).decode()}"}},
            {"type": "text", "text": "What is in this picture?"},
        ]
        messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
        async with client.measured():
            first = await client.ask(messages, self.output, "first")
            messages += [assistant(first.text), user("Which colours are there?")]
            await client.ask(messages, self.output, "second")


def noise(seed: int, pixels: int) -> bytes:
    """A PNG of random pixels: https://www.w3.org/TR/png-3/."""
    chances = dice(seed, "pixels")
    rows = b"".join(b"\0" + chances.randbytes(3 * pixels) for _ in range(pixels))
    header = struct.pack(">IIBBBBB", pixels, pixels, _DEPTH, _RGB, 0, 0, 0)
    return _PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 1)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
