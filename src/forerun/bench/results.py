"""What a comparison found, as a file: everything that was measured, round by round; what follows from it is computed
anew when it is shown.

    {"format": "forerun-bench-1", "machine": {...}, "systems": [...], "workloads": [{"rounds": [...]}, ...]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from forerun.bench.measuring import MORE_IS_BETTER, Figures, Work
from forerun.bench.ratios import Ratio, ratio
from forerun.errors import BenchmarkError

FORMAT: Final = "forerun-bench-1"
FILE: Final = "results.json"
_TOLERANCE: Final = 0.01
"""Where answers are fed back: they may be read as some tokens more or fewer than they were written as."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a workload on one server."""

    figures: Figures
    work: Work


@dataclass(frozen=True, slots=True)
class SystemResult:
    """A server that was measured."""

    name: str
    command: tuple[str, ...] = ()
    """What started it; empty where it ran already."""
    version: str = ""
    start_to_first_token_s: float | None = None
    """From its start, the model in the page cache, to the first token of its first answer."""
    resident_mb: float | None = None
    """After that answer."""


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    name: str
    sizes: Mapping[str, Any]
    about: str
    primary: str
    shown: tuple[str, ...] = ()
    feeds_back: bool = False
    rounds: tuple[Mapping[str, Round], ...] = ()
    """By system; one that failed in a round is missing in it."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """By system: why it did not answer."""

    @property
    def title(self) -> str:
        """Its name, with the size that tells it from others of the name."""
        return f"{self.name} {self.sizes['streams']}" if self.name == "concurrent" else self.name

    def values(self, system: str, figure: str) -> list[float]:
        """Of the rounds in which it was measured."""
        found = (one[system].figures.get(figure) for one in self.rounds if system in one)
        return [value for value in found if value is not None]

    def ratio(self, subject: str, other: str, figure: str | None = None) -> Ratio | str:
        """How many times as good `subject` is, or why that cannot be said."""
        name = figure or self.primary
        for system in (subject, other):
            if system in self.errors:
                return f"{system} did not answer"
        both = [(one[subject], one[other]) for one in self.rounds if subject in one and other in one]
        for mine, theirs in both:
            if (reason := not_the_same(mine.work, theirs.work, feeds_back=self.feeds_back)) is not None:
                return reason
        pairs = [(mine.figures.get(name, 0.0), theirs.figures.get(name, 0.0)) for mine, theirs in both]
        pairs = [(mine, theirs) for mine, theirs in pairs if mine > 0 and theirs > 0]
        if not pairs:
            return "not measured"
        more = name.rpartition(" ")[2] in MORE_IS_BETTER
        return ratio([mine for mine, _ in pairs], [theirs for _, theirs in pairs], more_is_better=more)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that one run measured."""

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    systems: tuple[SystemResult, ...] = ()
    workloads: tuple[WorkloadResult, ...] = ()
    format: str = FORMAT

    @property
    def subject(self) -> str:
        """Whom all others are compared with: the last one named."""
        return self.systems[-1].name


def not_the_same(mine: Work, theirs: Work, *, feeds_back: bool) -> str | None:
    """Why two rounds were not the same work; None where they were."""
    if mine.prompt_tokens is None or theirs.prompt_tokens is None:
        return "a server does not say how many tokens its prompts had"
    room = _TOLERANCE * mine.prompt_tokens if feeds_back else 0
    if abs(mine.prompt_tokens - theirs.prompt_tokens) > room:
        return f"prompts were not the same: {mine.prompt_tokens} and {theirs.prompt_tokens} tokens"
    if mine.output_tokens != theirs.output_tokens:
        return f"answers were not the same: {mine.output_tokens} and {theirs.output_tokens} tokens"
    return None


def write_results(folder: Path, found: Comparison) -> Path:
    """Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return path


def read_results(folder: Path) -> Comparison:
    """Raises BenchmarkError for a folder without results."""
    path = folder / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Comparison)
    except OSError as error:
        raise BenchmarkError(f"{path} cannot be read: {error.strerror}: name the folder of a comparison") from error
    except msgspec.MsgspecError as error:
        raise BenchmarkError(f"{path} holds no results: {error}") from error
    if found.format != FORMAT:
        raise BenchmarkError(f"{path}: its format is {found.format!r}, not {FORMAT!r}")
    return found
