"""Files of pictures, made here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from PIL import Image

Colour = tuple[int, ...]
RED, GREEN, BLUE, YELLOW = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def plain(colour: Colour = RED, size: tuple[int, int] = (56, 28), form: str = "PNG", **options: Any) -> bytes:
    """A picture of one colour."""
    return encoded(Image.new("RGB" if len(colour) == 3 else "RGBA", size, colour), form, **options)


def quarters(size: int = 16) -> Image.Image:
    """Red and green above, blue and white below."""
    image = Image.new("RGB", (size, size), (255, 255, 255))
    half = size // 2
    image.paste(RED, (0, 0, half, half))
    image.paste(GREEN, (half, 0, size, half))
    image.paste(BLUE, (0, half, half, size))
    return image


def animation(colours: Sequence[Colour], form: str) -> bytes:
    first, *others = [Image.new("RGB", (20, 10), colour) for colour in colours]
    return encoded(first, form, save_all=True, append_images=others, duration=100, loop=0, lossless=True)


def huge_png(width: int, height: int) -> bytes:
    """A well-formed picture of one colour, of a few hundred kilobytes at most: one bit a pixel, packed."""
    row = b"\0" + b"\xff" * (-(-width // 8))
    packer = zlib.compressobj(9)
    block = row * 64
    body = b"".join([packer.compress(block) for _ in range(height // 64)])
    body += packer.compress(row * (height % 64)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
