"""Opening what should be a model file, and saying what it is where it is something else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from forerun.errors import ModelFileError, ModelNotFoundError

# First bytes of what people hand over instead of a GGUF, and what to do about it.
_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, the model itself was not fetched: run `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint: convert it with llama.cpp's convert_hf_to_gguf.py"),
    (b"\x80\x02", "a Python pickle: convert it with llama.cpp's convert_hf_to_gguf.py"),
    (b"\x1f\x8b", "gzip-compressed: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed: unpack it first"),
    (b"\x7fELF", "a program"),
    (b"\x89HDF", "an HDF5 file"),
    (b"ggjt", "an old llama.cpp format from before GGUF: convert the model again"),
    (b"tjgg", "an old llama.cpp format from before GGUF: convert the model again"),
    (b"lmgg", "an old llama.cpp format from before GGUF: convert the model again"),
    (b"FUGG", "a byte-swapped GGUF: convert it for a little-endian machine"),
    (b"<!DOCTYPE", "a web page, probably a failed download"),
    (b"<html", "a web page, probably a failed download"),
)


@contextmanager
def open_model_file(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular, non-empty file for reading; yields it with its size in bytes.

    Raises ModelNotFoundError or ModelFileError naming the path. Failures to read inside the block are mapped too.
    """
    try:
        _check_kind(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelFileError(f"{path}: the file is empty (0 bytes); fetch it again")
            yield file, size
    except OSError as error:
        raise _mapped(path, error) from error


def _check_kind(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # a NUL byte in the name
        raise ModelNotFoundError(f"{str(path)!r}: no file can have this name ({error})") from error
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"{path}: this is a directory: give the GGUF file inside it{_candidates(path)}")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        raise ModelFileError(f"{path}: not a regular file (a pipe, socket or device)")


def _candidates(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.glob("*.gguf"))[:3]
    except OSError:
        return ""
    return f" ({', '.join(names)})" if names else ""


def _mapped(path: Path, error: OSError) -> ModelNotFoundError | ModelFileError:
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return ModelNotFoundError(f"{path}: a link to {os.readlink(path)}, which does not exist")
        return ModelNotFoundError(f"{path}: no such file")
    if isinstance(error, NotADirectoryError):
        return ModelNotFoundError(f"{path}: no such file: a part of the path is not a directory")
    return ModelFileError(f"{path}: the file cannot be read: {reason}")


def describe_foreign(head: bytes) -> str:
    """What a file that is no GGUF looks like, from its first bytes."""
    for start, description in _FOREIGN:
        if head.startswith(start):
            return f"it looks like {description}"
    if head[8:10] == b'{"':
        return "it looks like a safetensors file: convert it with llama.cpp's convert_hf_to_gguf.py"
    if not any(head):
        return "it begins with zero bytes, probably an unfinished download"
    text = head[:40].decode(errors="replace").removesuffix("\ufffd")  # a character cut by our 40 bytes
    if all(character.isprintable() or character in "\t\n\r" for character in text.replace("\ufffd", "\0")):
        return f"it begins with the text {text!r}"
    return f"it begins with the bytes {head[:8].hex(' ')}, a GGUF begins with 47 47 55 46"
