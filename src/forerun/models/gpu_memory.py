"""What GPUs have free, as llama.cpp sees them; asked in a process that may die of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

from forerun.models.native_child import SCRIPTS

_CHILD: Final = SCRIPTS / "describe.py"
_TIMEOUT: Final = 60.0


def free_on_gpus() -> dict[str, int]:
    """Bytes by llama.cpp's names for the devices ("CUDA0"); without those that do not tell. Raises nothing."""
    command = [sys.executable, "-P", os.fspath(_CHILD)]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=True, env=os.environ
        )
        return _free(ended.stdout)
    except (OSError, subprocess.SubprocessError, IndexError, KeyError, TypeError, ValueError):
        return {}


def _free(output: bytes) -> dict[str, int]:
    devices = json.loads(output.splitlines()[-1])["devices"]
    return {str(one["name"]): int(one["free"]) for one in devices if one["kind"].endswith("gpu") and one["total"]}
