"""What stands between the texts of a prompt."""

from __future__ import annotations

from typing import TypeAlias

from forerun.media.picture import Picture
from forerun.media.sound import Sound

Media: TypeAlias = Picture | Sound
"""An item, decoded."""
