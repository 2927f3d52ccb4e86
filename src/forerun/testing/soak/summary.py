"""What a soak came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSummary:
    """Figures of a soak that has ended."""

    subject: str
    seed: int
    seconds: float
    steps: int
    finished: Mapping[str, int]
    """Requests, by how they ended."""
    faults: Mapping[str, int]
    """Steps struck, by fault."""
    culprits: int
    """Requests whose own fault it was."""
    lost: tuple[str, ...]
    """Requests that ended with an error without being culprits: there must be none."""
    ties: int
    output_tokens: int
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int
    quarantines: int
    evicted_prefixes: int
    most_steps: int
    """Steps from arrival to end of the request that took most of them."""

    @property
    def is_good(self) -> bool:
        return not self.lost

    def figures(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        requests = sum(self.finished.values())
        return [
            f"{self.subject}, seed {self.seed}: {self.steps:,} steps in {self.seconds:,.0f} s",
            f"{requests:,} requests: {_counts(self.finished)}; the longest took {self.most_steps:,} steps",
            f"{self.output_tokens:,} tokens out, {self.cached_tokens:,} of prompts reused, "
            f"{self.accepted_tokens:,} of {self.drafted_tokens:,} drafted accepted, {self.ties} near ties",
            f"{self.preemptions:,} gave their cells back, {self.evicted_prefixes:,} prefixes evicted, "
            f"{self.quarantines:,} sequences quarantined",
            f"{sum(self.faults.values()):,} faults: {_counts(self.faults)}",
            f"{self.culprits} culprits; lost without being one: {', '.join(self.lost) or 'none'}",
        ]


def _counts(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {name}" for name, count in most) or "none"
