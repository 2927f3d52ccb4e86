"""What all workloads are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

from forerun.bench.client import Client


@dataclass(frozen=True, slots=True)
class Workload(ABC):
    """One question to a server. Subclasses are frozen dataclasses whose fields are its sizes."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line: what it asks, and what its primary figure says."""
    primary: ClassVar[str]
    """The figure it is there for (bench/measuring.py)."""
    shown: ClassVar[tuple[str, ...]] = ()
    """Further figures that belong in its table."""
    tokens: ClassVar[frozenset[str]] = frozenset()
    """The fields that are lengths in tokens: what `scaled` scales."""
    feeds_back: ClassVar[bool] = False
    """Later requests hold what the server answered, so that their lengths may differ by some tokens."""

    @abstractmethod
    async def run(self, client: Client, seed: int) -> None:
        """Ask. What counts is asked within `client.measured()`. Raises BenchmarkError."""

    def scaled(self, factor: float) -> Self:
        """The same with other lengths."""
        return replace(self, **{name: max(round(getattr(self, name) * factor), 2) for name in self.tokens})

    @property
    def sizes(self) -> dict[str, int | float | str]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __str__(self) -> str:
        return f"{self.name}:{','.join(f'{name}={value}' for name, value in self.sizes.items())}"
