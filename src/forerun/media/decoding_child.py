"""Decodes pictures and recordings in a process that may die of it. Started by `decoding.py`; imports no Forerun.

Its argument: the limits, as JSON. Standard input, for each item: what it is (`p` or `s`), its size in bytes (8,
big-endian) and its bytes. Standard output: for each a line of JSON and what follows it,

    [width, height]    pixels: a byte for red, green and blue of each
    [rate, samples]    samples: two bytes each, little endian
    "what is wrong"
"""

from __future__ import annotations

import json
import os
import struct
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, Final

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:  # imported where the first recording comes
    import numpy as np
    from numpy.typing import NDArray
    from soundfile import SoundFile

HEADER: Final = struct.Struct(">cQ")
PICTURE, SOUND = b"p", b"s"
PICTURE_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF")
SOUND_FORMATS: Final = ("WAV", "WAVEX", "MP3", "FLAC")
_OWN_MEMORY: Final = 320 * 2**20
"""Bytes of address space of the interpreter, the libraries and an encoded file."""
_MEMORY_OF_PIXEL: Final = 28
"""Bytes of up to six copies of a pixel."""
_MEMORY_OF_SAMPLE: Final = 8
_POLITE: Final = 5
_LONGEST_REASON: Final = 200
_BLOCK: Final = 2**18
"""Numbers that are decoded at a time."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_pixels: int
    max_aspect: float
    min_seconds: float
    max_seconds: float
    min_rate: int
    max_rate: int


class Unreadable(Exception):  # noqa: N818 (a verdict, sent as text)
    """What is wrong with an item."""


def main() -> None:
    limits = Limits(**json.loads(sys.argv[1]))
    pixels, samples = limits.max_pixels, int(limits.max_seconds * limits.max_rate)
    _limit_self(_OWN_MEMORY + max(_MEMORY_OF_PIXEL * pixels, _MEMORY_OF_SAMPLE * samples))
    Image.MAX_IMAGE_PIXELS = None  # sizes are checked here, with an error and not a warning
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    warnings.simplefilter("ignore")
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    while header := incoming.read(HEADER.size):
        kind, size = HEADER.unpack(header)
        data = incoming.read(size)
        _answer(kind, data, outgoing, limits)
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


def _answer(kind: bytes, data: bytes, outgoing: BinaryIO, limits: Limits) -> None:
    try:
        facts, content = _picture(data, limits) if kind == PICTURE else _sound(data, limits)
    except Unreadable as error:
        outgoing.write(json.dumps(str(error)).encode() + b"\n")
    else:
        outgoing.write(json.dumps(facts).encode() + b"\n")
        outgoing.write(content)
    outgoing.flush()


# --- pictures ----------------------------------------------------------


def _picture(data: bytes, limits: Limits) -> tuple[tuple[int, int], bytes]:
    image = upright(data, limits)
    return image.size, image.tobytes()


def upright(data: bytes, limits: Limits) -> Image.Image:
    """The first frame of a picture as its file says it is to be looked at: RGB, what is transparent on white.

    Raises Unreadable.
    """
    try:
        image = Image.open(BytesIO(data), formats=PICTURE_FORMATS)
        _check_size(*image.size, limits)
        return _opaque(ImageOps.exif_transpose(image))
    except Unreadable:
        raise
    except UnidentifiedImageError:
        raise Unreadable("is no picture: JPEG, PNG, WebP and GIF files are read") from None
    except MemoryError:
        raise Unreadable("takes too much memory to decode; send it smaller") from None
    except Exception as error:  # noqa: BLE001 (decoders raise whatever a damaged file makes them raise)
        raise Unreadable(f"is damaged: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error)[:_LONGEST_REASON] or type(error).__name__


def _check_size(width: int, height: int, limits: Limits) -> None:
    if width < 1 or height < 1:
        raise Unreadable(f"has no pixels: {width} x {height}")
    if width * height > limits.max_pixels:
        said = f"has {width} x {height} = {width * height} pixels, at most {limits.max_pixels} are decoded"
        raise Unreadable(f"{said}; send it smaller")
    if max(width, height) > limits.max_aspect * min(width, height):
        said = f"is {width} x {height} pixels: one side may be {limits.max_aspect:g} times the other at most"
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


# --- recordings ----------------------------------------------------------


def _sound(data: bytes, limits: Limits) -> tuple[tuple[int, int], bytes]:
    """The rate and the number of samples of a recording whose channels are made one, and the samples.

    Raises Unreadable.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a thread takes address space, and there is nothing here for it to do
    import soundfile

    if not _looks_like_sound(data):
        raise Unreadable("is no recording that is read here: WAV, MP3 and FLAC files are")
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            _check_sound(file, limits)
            samples = b"".join(_blocks(file, int(limits.max_seconds * file.samplerate), limits))
            rate = file.samplerate
    except Unreadable:
        raise
    except MemoryError:
        raise Unreadable("takes too much memory to decode; send it shorter") from None
    except Exception as error:  # noqa: BLE001 (decoders raise whatever a damaged file makes them raise)
        said = getattr(error, "error_string", "") or _reason(error)  # without the address of what was read from
        raise Unreadable(f"is damaged: {said}") from None
    count = len(samples) // 2
    if count < limits.min_seconds * rate:
        raise Unreadable(f"lasts {count / rate:.3g} s, at least {limits.min_seconds:g} s are heard; send more of it")
    return (rate, count), samples


def _looks_like_sound(data: bytes) -> bool:
    """By its first bytes: libsndfile would try some 25 formats."""
    is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    is_mp3 = data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)
    return is_wav or is_mp3 or data[:4] == b"fLaC"


def _check_sound(file: SoundFile, limits: Limits) -> None:
    if file.format not in SOUND_FORMATS:
        raise Unreadable(f"is a {file.format} file: WAV, MP3 and FLAC files are read")
    if not limits.min_rate <= file.samplerate <= limits.max_rate:
        said = f"has {file.samplerate} samples a second, {limits.min_rate} to {limits.max_rate} are read"
        raise Unreadable(f"{said}; resample it")
    if file.frames > limits.max_seconds * file.samplerate:
        raise _too_long(f"{file.frames / file.samplerate:.4g}", limits)


def _too_long(seconds: str, limits: Limits) -> Unreadable:
    return Unreadable(f"lasts {seconds} s, at most {limits.max_seconds:g} s are decoded; send a part of it")


def _blocks(file: SoundFile, most: int, limits: Limits) -> Iterator[bytes]:
    """The samples, until there are too many of them: the header may not say so."""
    rows, count = max(1, _BLOCK // file.channels), 0
    while len(block := file.read(rows, dtype="float32", always_2d=True)):
        count += len(block)
        if count > most:
            raise _too_long("more", limits)
        yield _rounded(block.mean(axis=1))


def _rounded(wave: NDArray[np.float32]) -> bytes:
    """Numbers around 0, loudest at 1, as whole ones; what is none is silence."""
    import numpy as np

    whole = np.rint(np.nan_to_num(wave, posinf=1.0, neginf=-1.0) * 32768)
    return np.clip(whole, -32768, 32767).astype("<i2").tobytes()


if __name__ == "__main__":
    main()
