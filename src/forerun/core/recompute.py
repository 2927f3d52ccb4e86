"""What a stored prefix saves: the prefill of its tokens, which costs more the deeper they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from forerun.core.costs import CostCurve


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """Milliseconds of prefill: of a token, and what it costs more for every 1,000 tokens that lie before it.

    The defaults are SmolLM2-135M's on two CPU cores (benchmarks/results/full-smollm2.json, 64 rows).
    """

    ms_per_token: float = 2.3
    ms_per_token_kilocell: float = 1.1

    @classmethod
    def from_curve(cls, curve: CostCurve) -> Self:
        """As measured for the largest batch of a curve."""
        rows = curve.rows[-1]
        slope = curve.ms_per_kilocell[-1] if curve.ms_per_kilocell else 0.0
        return cls(curve.predict(rows, 0, logits=1) / rows, slope / rows)

    def ms(self, start: int, tokens: int) -> float:
        """Prefill of so many tokens after `start` others: each attends to all before it."""
        return tokens * (self.ms_per_token + self.ms_per_token_kilocell * (start + tokens / 2) / 1000)
