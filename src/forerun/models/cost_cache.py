"""Remembers what decodes of a model cost on this machine, so that it is measured once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forerun.core.costs import CostCurve
from forerun.models.probe_cache import digest
from forerun.models.user_cache import read_json, user_cache_file, write_json

_MAX_ENTRIES: Final = 64


@dataclass(frozen=True, slots=True)
class CostCache:
    """Curves by a key that says model, build, machine and settings."""

    file: Path | None

    @classmethod
    def of_user(cls) -> CostCache:
        return cls(user_cache_file("costs.json"))

    def get(self, key: str) -> CostCurve | None:
        """The curve measured under `key`; None where there is none, or it makes no sense."""
        try:
            return CostCurve.from_json(self._read()[digest(key)])
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def put(self, key: str, curve: CostCurve) -> None:
        entries = {name: value for name, value in self._read().items() if name != digest(key)}
        entries[digest(key)] = curve.as_json()
        write_json(self.file, dict(list(entries.items())[-_MAX_ENTRIES:]))

    def _read(self) -> dict[str, Any]:
        entries = read_json(self.file)
        return entries if isinstance(entries, dict) else {}
