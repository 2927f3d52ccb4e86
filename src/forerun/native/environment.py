"""What must be in the process environment before llama.cpp's libraries are loaded.

ggml computes with OpenMP, a barrier after every operation. GNU OpenMP (libgomp) spins at such a barrier before it
sleeps, by default for so long that one other busy process stops inference on a machine whose cores are all in use
(SmolLM2, 2 cores: 6 ms a step alone, 4,600 ms beside one busy process). A short spin costs nothing when the machine is
idle and keeps the engine going when it is not. libgomp reads the setting once, when it is loaded.

Where ggml aborts it calls a debugger for a backtrace first, which takes seconds and helps no user: that is turned off.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPIN_COUNT = "1500"
"""Measured with benchmarks of one row per decode, alone and beside a busy process: see docs/decisions/0004."""

_USER_SETTINGS = (SPIN_VARIABLE, "OMP_WAIT_POLICY")
_MAPPED_LIBRARIES = Path("/proc/self/maps")
_LOADED = re.compile(r"/(libgomp\.so|libggml-cpu)")

_log = logging.getLogger("forerun.native")


def prepare_environment() -> None:
    """Set how long libgomp spins, unless the user has; warns where libgomp is loaded already and will not see it.

    Child processes inherit the setting.
    """
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    if any(name in os.environ for name in _USER_SETTINGS):
        return
    if _openmp_is_loaded():
        _log.warning(
            "libgomp was loaded before forerun.native, so %s could not be set: another busy process may slow the "
            "engine down a hundredfold. Import forerun.native first, or start Python with %s=%s in its environment.",
            SPIN_VARIABLE,
            SPIN_VARIABLE,
            SPIN_COUNT,
        )
    os.environ[SPIN_VARIABLE] = SPIN_COUNT


def _openmp_is_loaded() -> bool:
    try:
        return _LOADED.search(_MAPPED_LIBRARIES.read_text()) is not None
    except OSError:  # no /proc: not Linux, so no libgomp as a rule
        return False
