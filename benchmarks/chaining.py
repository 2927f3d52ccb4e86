"""What a draft model that goes on behind a lookup, inside one block, would bring: arithmetic on costs like a GPU's.

Speed is expected tokens over milliseconds of a step, each way at its best lengths; nothing is run.
"""

from __future__ import annotations

from benchmarks.report import Figures
from forerun.core.costs import CostCurve

_FLAT = CostCurve((1, 8, 64, 128), (10, 10.5, 14, 20))
_MODEL_RATE = 0.8
_DEEPEST = 16
_LOOKUPS = {"copy, 32 tokens": (0.95, 32), "guess, 32 tokens": (0.8, 32), "short, 3": (0.9, 3), "forced, 3": (1.0, 3)}
"""How likely each token of a lookup is accepted, and how many it proposes."""


def run() -> Figures:
    """Speed of both in one block over the better of the two alone, by what a token of the draft model takes."""
    columns = {f"draft_{draft_ms:g}_of_10_ms": draft_ms for draft_ms in (2.0, 1.0, 0.5, 0.3)}
    return {
        "model_rate": _MODEL_RATE,
        "settings": {
            name: {column: gain(*lookup, draft_ms) for column, draft_ms in columns.items()}
            for name, lookup in _LOOKUPS.items()
        },
    }


def gain(rate: float, longest: int, draft_ms: float) -> float:
    """How much faster the chain is than the better of its parts."""
    alone = max(
        max(_speed(rate, length, 0, draft_ms) for length in range(longest + 1)),
        max(_speed(rate, 0, depth, draft_ms) for depth in range(1, _DEEPEST + 1)),
    )
    chained = max(
        _speed(rate, length, depth, draft_ms) for length in range(1, longest + 1) for depth in range(1, _DEEPEST + 1)
    )
    return chained / alone


def _speed(rate: float, length: int, depth: int, draft_ms: float) -> float:
    """Tokens a millisecond of `length` tokens looked up, then `depth` of the draft model."""
    expected = 1 + _accepted(rate, length) + rate**length * _accepted(_MODEL_RATE, depth)
    return expected / (_FLAT.predict(1 + length + depth) + draft_ms * depth)


def _accepted(rate: float, length: int) -> float:
    return sum(rate**position for position in range(1, length + 1))
