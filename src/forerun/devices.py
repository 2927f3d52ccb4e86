"""Which accelerators this process may see."""

from __future__ import annotations

import os
from typing import Final

_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")


def visible_devices() -> tuple[str | None, ...]:
    """What the user set to hide some: part of the key of everything that is remembered about a machine."""
    return tuple(os.environ.get(name) for name in _VARIABLES)
