"""What the speculation benchmarks run on, from the environment.

FORERUN_TARGET and FORERUN_DRAFT name a model pair; without them SmolLM2 drafts by lookup alone. FORERUN_TOKENS,
FORERUN_PROMPTS and FORERUN_ROUNDS make runs shorter or longer, FORERUN_FIXED (2,4,8,16; or empty) names the fixed draft
lengths of a sweep; the defaults keep each benchmark below six minutes on
two cores, with SmolLM2 and with a model of ten times its size.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_THREADS = 2
_TARGET_ITL_MS = (250, 500)
"""One for all that are compared: an engine that drafts nothing would measure no costs, and give prompts other rows
beside decodes. Larger models have the larger one: eight streams of the 1.5B take 300 ms on two cores without drafts."""


@dataclass(frozen=True, slots=True)
class Settings:
    target: str
    draft: str | None
    tokens: int
    """Of an answer at most."""
    prompts: int
    """Of a workload at most."""
    rounds: int
    """Of what is repeated with the same prompts."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of Engine.load for all settings that are compared."""
        return {
            "model": self.target,
            "n_ctx": 4096,
            "n_threads": _THREADS,
            "reuse_prefixes": False,
            "target_itl_ms": _TARGET_ITL_MS[self.target != "smollm2"],
        }

    @property
    def names(self) -> dict[str, object]:
        """What was measured, for result files."""
        draft = Path(self.draft).stem if self.draft else ""
        return {"target": Path(self.target).stem, "draft": draft, "tokens": self.tokens, "threads": _THREADS}


Sizes = tuple[int, int]
"""A default for SmolLM2, and one for larger models."""


def settings(tokens: Sizes, *, prompts: Sizes = (99, 12), rounds: Sizes = (3, 2)) -> Settings:
    """The settings of one benchmark, which knows how much it can do in its time."""
    target = os.environ.get("FORERUN_TARGET", "smollm2")
    is_large = target != "smollm2"
    return Settings(
        target=target,
        draft=os.environ.get("FORERUN_DRAFT") or None,
        tokens=_number("FORERUN_TOKENS", tokens[is_large]),
        prompts=_number("FORERUN_PROMPTS", prompts[is_large]),
        rounds=_number("FORERUN_ROUNDS", rounds[is_large]),
    )


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
