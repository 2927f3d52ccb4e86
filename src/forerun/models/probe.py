"""Crash-proof checking of model files: a child process loads them first.

llama.cpp may abort or fault on bad metadata (case O1: ggml-org/llama.cpp#24884). After our own check of the header
the file's metadata is loaded in a child (`forerun/native/probe.py`, 0.2 s); only a file that passed there is loaded in
this process. A file that passed is remembered, so that the child runs once for each version of it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

import forerun.models
from forerun.errors import ModelFileError, ModelLoadError
from forerun.models.gguf_header import GgufHeader
from forerun.models.probe_cache import ProbeCache
from forerun.models.validate import read_model_header

_CHILD: Final = Path(forerun.models.__file__).parents[1] / "native" / "probe.py"
_NO_LIBRARY: Final = 5  # forerun.native.probe's exit code; that package is not to be imported from here
_ADVICE: Final = "fetch or convert the model again, or upgrade llama-cpp-python if the model is newer than it"
_MAX_OUTPUT: Final = 64 * 1024
# Lines that only repeat that something failed; what failed stands before them.
_REPETITION: Final = re.compile(r"failed to (load model|read tensor|read key|initialize the context)|load_from_file")
_TELLING: Final = re.compile(r"error loading model|GGML_ASSERT|GGML_ABORT|fatal error")
# "llama_model_load: error loading model: " and the folders of "/build/src/llama-model.cpp:12: GGML_ASSERT(...)"
_PREFIX: Final = re.compile(r"^(\w+: )*error loading model: |^\w+: |^/\S*/")


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
    key = _identity(path)
    if not cache.holds(key):
        _run_child(path, timeout)
        cache.add(key)


def _identity(path: Path) -> str:
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


def _run_child(path: Path, timeout: float) -> None:
    command = [sys.executable, "-P", os.fspath(_CHILD), os.fspath(path.resolve())]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise ModelFileError(
            f"{path}: the native library did not read the file's metadata within {timeout:g} s; {_ADVICE}"
        ) from error
    if ended.returncode:
        raise _verdict(path, ended.returncode, _reason(ended.stderr[-_MAX_OUTPUT:]))


def _environment() -> dict[str, str]:
    """Ours, less the GPUs (their start-up is slow and metadata needs none) and the native stack traces."""
    return os.environ | {"GGML_NO_BACKTRACE": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def _verdict(path: Path, code: int, reason: str) -> ModelFileError | ModelLoadError:
    if code == _NO_LIBRARY:
        return ModelLoadError(f"{path}: llama-cpp-python cannot be imported: {reason}; install it again")
    verdict = f"the native library died of it ({_signal_name(-code)})" if code < 0 else "the native library refused it"
    return ModelFileError(f"{path}: {verdict}: {reason or 'it gave no reason'}; {_ADVICE}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reason(output: bytes) -> str:
    """The last line of the native log that says what is wrong."""
    lines = [" ".join(line.split()) for line in output.decode(errors="replace").splitlines() if line.strip(" .")]
    lines = [line for line in lines if not _REPETITION.search(line)]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return _PREFIX.sub("", telling[-1])[:400] if telling else ""
