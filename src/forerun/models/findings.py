"""Lines of a report: what was found out, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forerun.errors import ModelError


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `error`: what a refusal is raised as."""

    verdict: Verdict
    subject: str
    """What it is about: "target", "draft", "adapter", "vocabulary", "context", "memory", "fit", "speculation" or
    "speed"."""
    message: str
    error: ModelError | None = None

    @classmethod
    def refused(cls, subject: str, error: ModelError) -> Finding:
        return cls(Verdict.REFUSED, subject, str(error), error)


def size(number: int) -> str:
    """Bytes as people read them: "92 MiB", "1.04 GiB"."""
    mib = number / 2**20
    return f"{mib / 1024:.2f} GiB" if mib >= 1000 else f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"


def size_a_token(number: float) -> str:
    """Bytes of one token: "23 KiB", "0.5 KiB"."""
    kib = number / 2**10
    return f"{kib:.0f} KiB" if kib >= 10 else f"{kib:.1f} KiB"
