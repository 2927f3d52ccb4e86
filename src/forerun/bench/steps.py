"""Where the time of an engine's steps goes, from what it recorded of them.

schedule │ the runner: drafting, target decode, copies, the rest │ update │ between: deltas, commands, recording
─────────┴────────────────────── elapsed ───────────────────────┴────────┴── until the next step is decided
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TextIO

PARTS: Final = ("schedule", "draft", "target", "storing", "restoring", "runner", "update", "between")
"""In the order in which they are drawn. `runner`: of its time what is none of the four before it."""
_MICROSECONDS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step evaluated."""

    decode: int
    drafts: int
    prefill: int

    @property
    def kind(self) -> str:
        """Steps of a kind cost alike."""
        if not (self.decode or self.prefill):
            return "copies only"
        drafting = " + drafts" if self.drafts else ""
        prompts = "prompts" if self.prefill else ""
        streams = f"{_about(self.decode)}{drafting}" if self.decode else ""
        return " + ".join(filter(None, (streams, prompts)))


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Seconds; `at` on the engine's clock."""

    at: float
    rows: Rows
    schedule: float
    elapsed: float
    """Of the runner."""
    target: float = 0.0
    draft: float = 0.0
    storing: float = 0.0
    restoring: float = 0.0
    update: float = 0.0
    between: float = 0.0
    """From then until the next step was decided; 0 where nobody was waiting for one."""

    @property
    def runner(self) -> float:
        return max(self.elapsed - self.target - self.draft - self.storing - self.restoring, 0.0)

    @property
    def seconds(self) -> float:
        return self.schedule + self.elapsed + self.update + self.between

    def part(self, name: str) -> float:
        """Seconds of one of PARTS."""
        return float(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Share:
    """All steps of a kind."""

    kind: str
    steps: int
    median_ms: float
    seconds: float
    parts: dict[str, float]
    """Of `seconds`, by PARTS; together 1."""


def shares(steps: Sequence[Step]) -> list[Share]:
    """By kind, the one that took most first; the last one is all together. Empty without steps."""
    kinds: dict[str, list[Step]] = {}
    for step in steps:
        kinds.setdefault(step.rows.kind, []).append(step)
    found = [_share(kind, own) for kind, own in kinds.items()]
    found.sort(key=lambda share: -share.seconds)
    return [*found, _share("all", steps)] if steps else []


def _share(kind: str, steps: Sequence[Step]) -> Share:
    seconds = sum(step.seconds for step in steps)
    parts = {name: sum(step.part(name) for step in steps) / seconds if seconds else 0.0 for name in PARTS}
    return Share(kind, len(steps), statistics.median(step.seconds for step in steps) * 1e3, seconds, parts)


def _about(streams: int) -> str:
    """Rows of streams in steps of powers of two: 1, 2, 3-4, 5-8, ..."""
    top = 1
    while top < streams:
        top *= 2
    rows = str(top) if top <= 2 else f"{top // 2 + 1}-{top}"
    return f"{rows} stream{'s' if top > 1 else ''}"


# --- Chrome's trace format ----------------------------------------------------------


def write_chrome_trace(steps: Iterable[Step], file: TextIO) -> None:
    """For chrome://tracing, or https://ui.perfetto.dev.

    The format is described in "Trace Event Format" (Google, 2016): complete events (X) and counters (C), microseconds.
    """
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    lines = [{"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "engine"}}]
    file.write(",\n".join(json.dumps(line) for line in (*lines, *_trace_events(steps))))
    file.write("\n]}\n")


def _trace_events(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    for number, step in enumerate(steps, start=1):
        rows = {one.name: getattr(step.rows, one.name) for one in fields(step.rows)}
        whole = step.seconds - step.between
        yield _event("step", step.at, whole, {"number": number, "kind": step.rows.kind, **rows})
        yield {"ph": "C", "pid": 1, "name": "rows", "ts": step.at * _MICROSECONDS, "args": rows}
        at = step.at
        for name in PARTS[:-1]:
            seconds = step.part(name)
            if seconds > 0:
                yield _event(name, at, seconds, {})
            at += seconds


def _event(name: str, at: float, seconds: float, arguments: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": round(at * _MICROSECONDS, 1), "dur": round(seconds * _MICROSECONDS, 1)}
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, **times, "args": arguments}
