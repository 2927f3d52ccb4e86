"""What a draft model costs that is loaded and of no use: time to the first token of a long prompt, and speed after it.

With SmolLM2 the draft is a tiny random model; a model pair (FORERUN_TARGET, FORERUN_DRAFT) writes prose, which its
draft can seldom guess. The bar: a prompt is not run through a draft that is not expected to pay.
"""

from __future__ import annotations

from typing import Any

from benchmarks.engine_process import Answer, engines, interleaved
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.bench.passages import long_prose
from forerun.core.request import SamplingParams
from forerun.models.resolve import resolve_model
from tests.support.tiny_models import TinyModel, build

_WORDS = 2300
"""About 3,000 tokens."""


def run() -> Figures:
    """Ratios of a loaded draft to none, paired: below 1 it is faster."""
    use = settings((32, 32), rounds=(5, 3))
    draft = use.draft or str(build(TinyModel(seed=1, vocabulary="smollm2"), resolve_model("smollm2")))
    chosen: dict[str, dict[str, Any]] = {"none": {"speculation": 0}, "loaded": {"draft": draft, "speculation": "auto"}}
    answers: dict[str, list[Answer]] = {name: [] for name in chosen}
    with engines(use.options, chosen) as processes:
        for index, name in interleaved(list(processes), use.rounds):
            params = SamplingParams(max_tokens=use.tokens, ignore_eos=True)
            answers[name].append(processes[name].answer(long_prose(_WORDS, index), params))
    pairs = list(zip(answers["loaded"], answers["none"], strict=True))
    return {
        **use.names,
        "draft": use.names["draft"] or "tiny-random",
        "prompt_tokens": [none.usage.prompt_tokens for none in answers["none"]],
        "ttft_ms_without": spread([none.timing.prefill * 1e3 for _, none in pairs]),
        "ttft_ms_with": spread([loaded.timing.prefill * 1e3 for loaded, _ in pairs]),
        "ttft_with_over_without": spread([loaded.timing.prefill / none.timing.prefill for loaded, none in pairs]),
        "decode_speed_with_over_without": spread([loaded.rate / none.rate for loaded, none in pairs]),
        "drafted": sum(loaded.usage.drafted_tokens for loaded, _ in pairs),
        "accepted": sum(loaded.usage.accepted_tokens for loaded, _ in pairs),
    }
