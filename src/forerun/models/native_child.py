"""Runs one of `forerun/native`'s scripts on a model file, in a process that may die of it.

llama.cpp checks much of a file with assertions and divides by some of its numbers: what would end our process ends the
child, and becomes one line here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import forerun.models
from forerun.errors import ModelFileError, ModelLoadError

SCRIPTS: Final = Path(forerun.models.__file__).parents[1] / "native"
NO_LIBRARY: Final = 5  # exit code of the scripts; that package is not to be imported from here
_ADVICE: Final = "fetch or convert the model again, or upgrade llama-cpp-python if the model is newer than it"
_MAX_OUTPUT: Final = 64 * 1024
# Lines that only repeat that something failed; what failed stands before them.
_REPETITION: Final = re.compile(r"failed to (load model|read tensor|read key|initialize the context)|load_from_file")
_TELLING: Final = re.compile(r"error loading model|GGML_ASSERT|GGML_ABORT|fatal error")
# "llama_model_load: error loading model: " and the folders of "/build/src/llama-model.cpp:12: GGML_ASSERT(...)"
_PREFIX: Final = re.compile(r"^(\w+: )*error loading model: |^\w+: |^/\S*/")


def run_child(script: Path, path: Path, *arguments: str, timeout: float, gpus: bool = False) -> bytes:
    """Standard output of `script` on the model at `path`.

    `gpus`: whether it sees them (their start-up is slow). Raises ModelFileError where the child dies, refuses the file
    or takes longer than `timeout` seconds; ModelLoadError where the library is missing; OSError where the machine
    refuses a process.
    """
    command = [sys.executable, "-P", os.fspath(script), os.fspath(path.resolve()), *arguments]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
            env=_environment(gpus=gpus),
        )
    except subprocess.TimeoutExpired as error:
        raise ModelFileError(
            f"{path}: the native library did not read the file's metadata within {timeout:g} s; {_ADVICE}"
        ) from error
    if ended.returncode:
        raise _verdict(path, ended.returncode, _reason(ended.stderr[-_MAX_OUTPUT:]))
    return ended.stdout


def _environment(*, gpus: bool) -> dict[str, str]:
    """Ours, less the native stack traces and, unless wanted, the GPUs."""
    hidden = {} if gpus else {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return os.environ | {"GGML_NO_BACKTRACE": "1"} | hidden


def _verdict(path: Path, code: int, reason: str) -> ModelFileError | ModelLoadError:
    if code == NO_LIBRARY:
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
