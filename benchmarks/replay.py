"""Recorded answers again, without a model: real drafters and control, steps that take what the measured curve says.

No noise, and seconds instead of minutes; and what drafters that copy could reach on an answer that is known.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import RESULTS, Figures, spread
from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.prompt import PromptLayout
from forerun.core.request import Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.engine_config import MAX_AUTO_DRAFT_TOKENS
from forerun.testing import FakeRunner, FakeVocabulary

RECORDINGS = Path(__file__).parent / "recordings"
_N_CTX = 4096
_FIXED = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Recording:
    """A prompt and what the target said, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def cells(self) -> int:
        """Used cells half-way through the answer."""
        return len(self.prompt) + len(self.answer) // 2


def plain_ms(recording: Recording, curve: CostCurve) -> float:
    """Milliseconds of plain decoding, from the first token of the answer to the last."""
    return curve.predict(1, recording.cells) * (len(recording.answer) - 1)


def best_copy_ms(recording: Recording, curve: CostCurve, longest: int = MAX_AUTO_DRAFT_TOKENS) -> float:
    """The same for the best of all drafters that copy what stands in the text before, in hindsight.

    It knows where to copy from, and where the target will say something else, so that no drafted token is refused.
    """
    text, start = (*recording.prompt, *recording.answer), len(recording.prompt)
    costs = [curve.predict(1 + drafted, recording.cells) for drafted in range(longest + 1)]
    left = [0.0] * (len(text) + longest + 2)
    for at in range(len(text) - 1, start, -1):
        left[at] = min(
            costs[drafted] + left[at + drafted + 1] for drafted in range(_longest_copy(text, at, longest) + 1)
        )
    return left[start + 1]


def _longest_copy(text: Sequence[int], at: int, longest: int) -> int:
    """How much of what follows `at` stands somewhere before it in one piece."""
    most = min(longest, len(text) - at)
    return max((_same(text, source, at, most) for source in range(at) if text[source] == text[at]), default=0)


def _same(text: Sequence[int], source: int, at: int, most: int) -> int:
    return next((length for length in range(most) if text[source + length] != text[at + length]), most)


def recorded(workload: str, target: str) -> list[Recording]:
    """Plain greedy answers of a target, one after another; ids are renamed to count from 0."""
    known = json.loads((RECORDINGS / f"{workload}-{target}.json").read_text())
    names = {
        token: name for name, token in enumerate(sorted({t for one in known for own in one.values() for t in own}))
    }
    return [Recording(*(tuple(names[token] for token in one[part]) for part in ("prompt", "answer"))) for one in known]


class RecordedRunner(FakeRunner):
    """A model that answers what was recorded, in the time that the curve says."""

    def __init__(self, recording: Recording, curve: CostCurve, vocabulary_size: int) -> None:
        super().__init__(_N_CTX, vocabulary_size, costs=StepCosts(LiveCosts(curve)))
        self._recording = recording

    def _logits(self, sequence_id: int) -> NDArray[np.float32]:
        answer = self._recording.answer
        at = self.memory.next_position(sequence_id) - len(self._recording.prompt)
        logits = np.zeros(self._size, np.float32)
        logits[answer[min(at, len(answer) - 1)]] = 1
        return logits


def replayed_answers_ms(recordings: Sequence[Recording], curve: CostCurve, fixed: int | None = None) -> list[float]:
    """Milliseconds that each answer takes behind its first token, by one scheduler, one after another.

    `fixed`: that draft length; None: auto.
    """
    size = 1 + max(max(*one.prompt, *one.answer) for one in recordings)
    vocabulary = FakeVocabulary([b"x"] * size, end_tokens=())
    length = MAX_AUTO_DRAFT_TOKENS if fixed is None else fixed
    config = SchedulerConfig(n_ctx=_N_CTX, max_num_seqs=1, speculation=length, reuse_prefixes=False)
    scheduler = Scheduler(config, vocabulary, costs=StepCosts(LiveCosts(curve)) if fixed is None else None)
    return [_answer_ms(scheduler, RecordedRunner(one, curve, size), one) for one in recordings]


def _answer_ms(scheduler: Scheduler, runner: FakeRunner, recording: Recording) -> float:
    params = SamplingParams(max_tokens=len(recording.answer))
    scheduler.add(Request(id="replayed", prompt=PromptLayout.of_text(recording.prompt), params=params))
    spent = 0.0
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        result = runner.execute(plan)
        spent += result.elapsed * 1e3 if plan.decode else 0.0
        scheduler.update(plan, result)
    return spent


def run() -> Figures:
    """Auto, fixed lengths and copying in hindsight against plain decoding, with the curves of the `full` benchmark."""
    settings: dict[str, Figures] = {}
    for target in ("smollm2", "qwen-1.5b"):
        curve = _measured_curve(target)
        for workload in ("edits", "prose"):
            settings[f"{target} {workload}"] = _against_plain(recorded(workload, target), curve)
    return {"settings": settings}


def _against_plain(recordings: Sequence[Recording], curve: CostCurve) -> Figures:
    plain = replayed_answers_ms(recordings, curve, fixed=0)
    spent = {"auto": replayed_answers_ms(recordings, curve)}
    spent |= {f"fixed {length}": replayed_answers_ms(recordings, curve, length) for length in _FIXED}
    spent["copying in hindsight"] = [best_copy_ms(one, curve) for one in recordings]
    figures: Figures = {
        name: spread([one / other for one, other in zip(plain, own, strict=True)]) for name, own in spent.items()
    }
    figures["auto_together"] = sum(plain) / sum(spent["auto"])
    return figures


def _measured_curve(target: str) -> CostCurve:
    return CostCurve.from_json(json.loads((RESULTS / f"full-{target}.json").read_text())["figures"]["measured_costs"])
