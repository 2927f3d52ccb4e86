"""What the native library says of itself, asked in a process that may die of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from forerun.models.native_child import SCRIPTS

_CHILD: Final = SCRIPTS / "describe.py"
_TIMEOUT: Final = 60.0
_FEATURE: Final = re.compile(r"(\w+) = 1")


@dataclass(frozen=True, slots=True)
class Device:
    """Something that computes. Memory in bytes; both 0 where it does not tell."""

    name: str
    description: str
    kind: str
    """ "cpu", "gpu", "integrated gpu", "accelerator" or "other"."""
    free: int
    total: int

    @property
    def is_gpu(self) -> bool:
        return self.kind.endswith("gpu")


@dataclass(frozen=True, slots=True)
class Library:
    """llama.cpp as it is installed. `error`: why it cannot be used; the rest is empty then."""

    version: str | None
    """llama-cpp-python's; None where it is not installed."""
    features: frozenset[str] = frozenset()
    """What it was compiled with, in its own words: "AVX2", "OPENMP"."""
    gpu_offload: bool = False
    devices: tuple[Device, ...] = ()
    error: str | None = None


def look_at_library() -> Library:
    """Raises nothing: what goes wrong is the answer."""
    version = _version()
    try:
        ended = subprocess.run(
            [sys.executable, "-P", os.fspath(_CHILD)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )
    except subprocess.TimeoutExpired:
        return Library(version, error=f"it did not start within {_TIMEOUT:g} s")
    except OSError as error:
        return Library(version, error=f"no process can be started to look at it: {error.strerror or error}")
    if ended.returncode:
        return Library(version, error=_reason(ended.returncode, ended.stderr))
    try:
        return library_of(version, json.loads(ended.stdout.splitlines()[-1]))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        return Library(version, error=f"its answer makes no sense: {error}")


def library_of(version: str | None, said: Any) -> Library:
    """The child's answer. Raises KeyError, TypeError or ValueError for anything else."""
    devices = tuple(
        Device(str(one["name"]), str(one["description"]), str(one["kind"]), int(one["free"]), int(one["total"]))
        for one in said["devices"]
    )
    return Library(version, frozenset(_FEATURE.findall(said["system_info"])), bool(said["gpu_offload"]), devices)


def _version() -> str | None:
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return None


def _reason(code: int, errors: bytes) -> str:
    if code == -signal.SIGILL:
        return "it died of an instruction that this processor lacks: it was compiled for another one"
    if code < 0:
        return f"it died of signal {-code}"
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else f"it ended with code {code}"
