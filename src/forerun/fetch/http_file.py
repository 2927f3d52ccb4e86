"""A file on a server, and what is known of it before it is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpFile:
    """Where a file's bytes are, and what they are known to be. `headers` may hold secrets and are told nobody."""

    url: str
    told: str
    """What messages call it; no secrets."""
    size: int | None = None
    """Bytes, where somebody said before it is asked for."""
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    barred: str | None = None
    """Why it must not be fetched now; it may be here already."""
