"""Which Forerun this is."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("forerun")
FINGERPRINT: Final = f"forerun-{VERSION}"
"""OpenAI's `system_fingerprint`."""
