"""Control and overhead without a good draft: synthetic acceptance against what the cost curve predicts.

Which drafts come true is a function of seed and token index (core/synthetic.py), so the prediction is no expectation:
it replays the very steps. Speed is taken against plain decoding, measured and predicted; the ratio of the two should
lie within 10% of 1. Automatic lengths are compared with the best fixed length of the replay, which they cannot know.
"""

from __future__ import annotations

from benchmarks.engine_process import Answer, engines, interleaved
from benchmarks.report import Figures, spread
from benchmarks.settings import Settings, settings
from benchmarks.speculation import SPECULATION
from forerun.core.costs import CostCurve
from forerun.core.request import SamplingParams
from forerun.core.synthetic import SyntheticAcceptance
from forerun.engine_config import MAX_AUTO_DRAFT_TOKENS

_RATES = (0.0, 0.5, 0.9)
_PROMPT = "Tell me about the sea."
WITHIN = 0.10


def run() -> Figures:
    """Speed at each acceptance and length, measured over predicted. The draft is a dummy that costs nothing."""
    use = settings((160, 64))
    figures: Figures = {**use.names, "draft": "", "within": WITHIN, "settings": {}}
    for rate in _RATES:
        figures["settings"] |= _at(rate, use)
    return figures


def _at(rate: float, use: Settings) -> Figures:
    """One acceptance rate, all lengths."""
    chosen = {
        name: {"speculation": value, "recalibrate": value == "auto", "synthetic_acceptance": rate}
        for name, value in SPECULATION.items()
    }
    answers: dict[str, list[Answer]] = {name: [] for name in chosen}
    with engines(use.options, chosen) as processes:
        curves = processes["auto"].curves
        assert curves is not None
        for seed, name in interleaved(list(processes), use.rounds):
            params = SamplingParams(max_tokens=use.tokens, ignore_eos=True, seed=seed)
            answers[name].append(processes[name].answer(_PROMPT, params))
    figures: Figures = {}
    for name in SPECULATION:
        lengths = range(MAX_AUTO_DRAFT_TOKENS + 1) if name == "auto" else (SPECULATION[name],)
        measured = [own.rate / off.rate for own, off in zip(answers[name], answers["off"], strict=True)]
        predicted = [
            max(predicted_speed(curves.target, rate, length, own, seed) for length in lengths)
            for seed, own in enumerate(answers[name])
        ]
        ratio = spread([one / other for one, other in zip(measured, predicted, strict=True)])
        figures[f"acceptance {rate:g}, {name}"] = {
            "measured": spread(measured),
            "predicted": spread(predicted),
            "measured_over_predicted": ratio,
            "is_within": abs(ratio.median - 1) <= WITHIN,
        }
    del figures[f"acceptance {rate:g}, off"]
    return figures


def predicted_speed(curve: CostCurve, rate: float, length: int, answer: Answer, seed: int) -> float:
    """Speed against plain decoding of drafting `length` tokens a step, by the curve alone."""
    tokens, prompt = len(answer.timing.tokens), answer.usage.prompt_tokens
    return replayed_ms(curve, rate, 0, tokens, prompt, seed) / replayed_ms(curve, rate, length, tokens, prompt, seed)


def replayed_ms(curve: CostCurve, rate: float, length: int, tokens: int, prompt: int, seed: int) -> float:
    """Milliseconds of the steps that give tokens 2 to `tokens` behind a prompt: the first comes with the prompt."""
    judge = SyntheticAcceptance(rate)
    done, spent = 1, 0.0
    while done < tokens:
        drafts = min(length, tokens - done - 1)
        spent += curve.predict(1 + drafts, prompt + done)
        accepted = next((at for at in range(drafts) if not judge.accepts(seed, done + at)), drafts)
        done += accepted + 1
    return spent
