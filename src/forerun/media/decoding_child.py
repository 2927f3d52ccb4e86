"""Decodes pictures in a process that may die of it. Started by `decoding.py`; imports nothing of Forerun.

Standard input: for each picture its size in bytes (8, big-endian) and its bytes. Standard output: for each a line of
JSON, [width, height] and after it the pixels (red, green, blue), or a text that says what is wrong.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import warnings
from io import BytesIO
from typing import BinaryIO, Final

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

LENGTH: Final = struct.Struct(">Q")
FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF")
_OWN_MEMORY: Final = 320 * 2**20
"""Bytes of address space of the interpreter, the libraries and an encoded picture."""
_MEMORY_OF_PIXEL: Final = 28
"""Bytes of up to six copies of a pixel."""
_POLITE: Final = 5
_LONGEST_REASON: Final = 200


class Unreadable(Exception):  # noqa: N818 (a verdict, sent as text)
    """What is wrong with a picture."""


def main() -> None:
    """`max_pixels`, `max_aspect` as arguments."""
    max_pixels, max_aspect = int(sys.argv[1]), float(sys.argv[2])
    _limit_self(_OWN_MEMORY + _MEMORY_OF_PIXEL * max_pixels)
    Image.MAX_IMAGE_PIXELS = None  # sizes are checked here, with an error and not a warning
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    warnings.simplefilter("ignore")
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    while header := incoming.read(LENGTH.size):
        data = incoming.read(LENGTH.unpack(header)[0])
        _answer(data, outgoing, max_pixels, max_aspect)
        del data


def _limit_self(memory: int) -> None:
    """Less memory, no core dumps, no files, and after the engine where the processor is short."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.nice(_POLITE)


def _answer(data: bytes, outgoing: BinaryIO, max_pixels: int, max_aspect: float) -> None:
    try:
        image = upright(data, max_pixels, max_aspect)
        pixels = image.tobytes()
    except Unreadable as error:
        outgoing.write(json.dumps(str(error)).encode() + b"\n")
    else:
        outgoing.write(json.dumps(image.size).encode() + b"\n")
        outgoing.write(pixels)
    outgoing.flush()


def upright(data: bytes, max_pixels: int, max_aspect: float) -> Image.Image:
    """The first frame of a picture as its file says it is to be looked at: RGB, what is transparent on white.

    Raises Unreadable.
    """
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
        _check_size(*image.size, max_pixels, max_aspect)
        return _opaque(ImageOps.exif_transpose(image))
    except Unreadable:
        raise
    except UnidentifiedImageError:
        raise Unreadable("is no picture: JPEG, PNG, WebP and GIF files are read") from None
    except MemoryError:
        raise Unreadable("takes too much memory to decode; send it smaller") from None
    except Exception as error:  # noqa: BLE001 (decoders raise whatever a damaged file makes them raise)
        raise Unreadable(f"is damaged: {str(error)[:_LONGEST_REASON] or type(error).__name__}") from None


def _check_size(width: int, height: int, max_pixels: int, max_aspect: float) -> None:
    if width < 1 or height < 1:
        raise Unreadable(f"has no pixels: {width} x {height}")
    if width * height > max_pixels:
        said = f"has {width} x {height} = {width * height} pixels, at most {max_pixels} are decoded"
        raise Unreadable(f"{said}; send it smaller")
    if max(width, height) > max_aspect * min(width, height):
        said = f"is {width} x {height} pixels: one side may be {max_aspect:g} times the other at most"
        raise Unreadable(f"{said}; send a part of it")


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits a pixel, of which Pillow would keep the lower ones
        return image.convert("I").point(lambda value: value / 256).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    ground = Image.new("RGBA", clear.size, (255, 255, 255, 255))
    ground.alpha_composite(clear)
    return ground.convert("RGB")


if __name__ == "__main__":
    main()
