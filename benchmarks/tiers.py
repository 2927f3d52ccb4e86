"""Conversations that come back: what a second turn waits for, after others, after a restart; and what idle ones cost.

Prompts are tokens drawn at random: only their number matters for time. Each setting is an engine in a process of its
own, asleep while another runs; rounds are interleaved.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from benchmarks.engine_process import Answer, EngineProcess, engines, interleaved, take_luck_out
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams

_CONVERSATIONS = 6
_FIRST_TURN, _NEW_TOKENS, _ANSWER = 800, 60, 24
_POOL = 2048
"""Cells: two conversations fit."""
_IDLE = int(os.environ.get("FORERUN_IDLE", "100"))
_IDLE_TOKENS = 2000
_GIB = 2**30


def turns() -> Figures:
    """Six conversations in turn, three turns each, in a pool for two: what later turns wait for their first token."""
    use = settings((_ANSWER, _ANSWER))
    common = {"model": use.target, "n_ctx": _POOL, "n_threads": 2, "speculation": "off"}
    with tempfile.TemporaryDirectory() as folder:
        chosen: dict[str, dict[str, Any]] = {
            "computed anew": {"reuse_prefixes": False},
            "pool alone": {"cache_ram": 0},
            "host tier": {"cache_ram": 4 * _GIB, "cache_dir": os.path.join(folder, "cache")},
        }
        texts = {name: [_tokens(_FIRST_TURN, seed) for seed in range(_CONVERSATIONS)] for name in chosen}
        later: dict[str, list[Answer]] = {name: [] for name in chosen}
        with engines(common, chosen) as processes:
            for turn in range(3):
                for index, name in interleaved(list(processes), _CONVERSATIONS):
                    answer = _turn(processes[name], texts[name], index, turn)
                    if turn:
                        later[name].append(answer)
        restarted = [*_after_restart({**common, **chosen["host tier"]}, texts["host tier"])]
    later["disk, after a restart"] = restarted
    return {
        **use.names,
        "conversations": _CONVERSATIONS,
        "settings": {name: _waits(answers, later["computed anew"]) for name, answers in later.items()},
    }


def _turn(process: EngineProcess, texts: list[Tokens], index: int, turn: int) -> Answer:
    """One turn of a conversation, whose text then grows by the answer and by what is said next."""
    answer = process.answer(texts[index], SamplingParams(max_tokens=_ANSWER, ignore_eos=True))
    said = np.array(answer.timing.tokens, np.int32)
    texts[index] = np.concatenate((texts[index], said, _tokens(_NEW_TOKENS, 1000 * turn + index)))
    return answer


def _after_restart(options: dict[str, Any], texts: list[Tokens]) -> list[Answer]:
    take_luck_out()
    with EngineProcess(options) as process:
        process.answer(_tokens(20, 99), SamplingParams(max_tokens=4))
        return [_turn(process, texts, index, 3) for index in range(_CONVERSATIONS)]


def _waits(answers: list[Answer], anew: list[Answer]) -> dict[str, object]:
    usages = [answer.usage for answer in answers]
    pairs = zip(answers, anew, strict=False)
    return {
        "ttft_ms": spread([answer.timing.prefill * 1e3 for answer in answers]),
        "ttft_of_computing_anew": spread([answer.timing.prefill / other.timing.prefill for answer, other in pairs]),
        "computed_tokens": spread([float(usage.prompt_tokens - usage.cached_tokens) for usage in usages]),
        "from_host": sum(usage.cached_host_tokens for usage in usages),
        "from_disk": sum(usage.cached_disk_tokens for usage in usages),
    }


def idle() -> Figures:
    """One stream's speed beside idle conversations of 2,000 tokens: 100 with tiers, as many as fit without."""
    use = settings((200, 100), rounds=(5, 3))
    cells = 8 * _IDLE_TOKENS + 2048
    common = {"model": use.target, "n_ctx": cells, "n_threads": 2, "speculation": "off"}
    chosen: dict[str, dict[str, Any]] = {
        "alone": {"cache_ram": 12 * _GIB},
        "idle ones in the tiers": {"cache_ram": 12 * _GIB},
        "idle ones in the pool": {"cache_ram": 0},
    }
    idle_ones = {"alone": 0, "idle ones in the tiers": _IDLE, "idle ones in the pool": 8}
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    with engines(common, chosen) as processes:
        for name, count in idle_ones.items():
            for seed in range(count):
                processes[name].answer(_tokens(_IDLE_TOKENS, seed), SamplingParams(max_tokens=1))
        for index, name in interleaved(list(processes), use.rounds):
            params = SamplingParams(max_tokens=use.tokens, ignore_eos=True)
            rates[name].append(processes[name].answer(_tokens(100, 500 + index), params).rate)
    return {
        **use.names,
        "idle_conversations": idle_ones,
        "against_alone": {
            name: spread([rate / alone for rate, alone in zip(own, rates["alone"], strict=True)])
            for name, own in rates.items()
        },
        "ms_a_token": {name: spread([1e3 / rate for rate in own]) for name, own in rates.items()},
    }


def _tokens(count: int, seed: int) -> Tokens:
    drawn: Tokens = np.random.default_rng(seed).integers(1000, 30_000, count).astype(np.int32)
    return drawn
