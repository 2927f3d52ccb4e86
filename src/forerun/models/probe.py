"""Crash-proof checking of model files: a child process loads them first.

llama.cpp may abort or fault on bad metadata (case O1: ggml-org/llama.cpp#24884). After our own check of the header
the file's metadata is loaded in a child (`forerun/native/probe.py`, 0.2 s); only a file that passed there is loaded in
this process. A file that passed is remembered, so that the child runs once for each version of it.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Final

from forerun.errors import ModelLoadError
from forerun.models.gguf_header import GgufHeader
from forerun.models.native_child import SCRIPTS, run_child
from forerun.models.probe_cache import ProbeCache
from forerun.models.validate import read_model_header

_CHILD: Final = SCRIPTS / "probe.py"


def probe_model(path: Path, *, timeout: float = 60.0) -> GgufHeader:
    """Make sure the file can be loaded without harm; returns its header.

    Raises ModelNotFoundError or ModelFileError, naming the path and the fault, also where the native library dies of
    the file or takes longer than `timeout` seconds; ModelLoadError where the library itself is missing, or nothing can
    be found out because the machine refuses a process or the file went away meanwhile.
    """
    header = read_model_header(path)
    try:
        _probe_once(path, timeout)
    except OSError as error:
        raise ModelLoadError(f"{path}: the model could not be checked: {error}") from error
    return header


def _probe_once(path: Path, timeout: float) -> None:
    cache = ProbeCache.of_user()
    key = identity(path)
    if not cache.holds(key):
        run_child(_CHILD, path, timeout=timeout)
        cache.add(key)


def identity(path: Path) -> str:
    """Changes whenever the file, its place or the library may be another one.

    The time of change is the kernel's own: `cp -p` and rsync set the time of modification back to what it was.
    """
    real = path.resolve()
    status = real.stat()
    try:
        library = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        library = "unknown"
    parts = (
        os.fspath(real),
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        library,
    )
    return repr(parts)
