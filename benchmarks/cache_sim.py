"""Recorded agent sessions on the prefix cache alone: how much of what could be reused is, by policy and budget.

Several orders of arrival, since a few conversations that come back late decide what a run loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.agent_sessions import Arrivals, Session, agent_trace, recorded_sessions
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.bench.cache_sim import EVERYTHING, Hits, ideal_lengths, simulate
from forerun.bench.trace import Trace
from forerun.core.prompt import shared_length
from forerun.core.recompute import RecomputeCost
from forerun.core.value import POLICIES

_SHARES = (1.0, 0.75, 0.5, 0.25)
"""Budgets, of what holds everything."""
_AGENTS = 8
_COST = RecomputeCost()


def run() -> Figures:
    """Share of the ideal, in tokens hit and in seconds of prefill saved, and what is lost against LRU."""
    use = settings((0, 0), rounds=(8, 8))
    sessions = recorded_sessions(use.target)
    traces = [agent_trace(sessions, Arrivals(agents=_AGENTS, seed=seed), use.target) for seed in range(use.rounds)]
    ideals = [Hits.of(ideal_lengths(trace.requests), _COST) for trace in traces]
    everything = simulate(traces[0], "lru", EVERYTHING, _COST).most_used
    return {
        "target": Path(use.target).stem,
        "sessions": len(sessions),
        "requests": len(traces[0].requests),
        "agents": _AGENTS,
        "orders_of_arrival": use.rounds,
        "prompt_tokens": sum(request.prompt.size for request in traces[0].requests),
        "everything_tokens": everything // traces[0].bytes_per_token,
        "ideal_share_of_prompts": ideals[0].tokens / sum(request.prompt.size for request in traces[0].requests),
        "answers_read_as_written": _read_as_written(sessions),
        "settings": {
            f"{share:.0%} {policy}": _setting(traces, ideals, policy, round(share * everything))
            for share in _SHARES
            for policy in POLICIES
        },
    }


def _setting(traces: Sequence[Trace], ideals: Sequence[Hits], policy: str, budget: int) -> Figures:
    ours = [simulate(trace, policy, budget, _COST) for trace in traces]
    lru = ours if policy == "lru" else [simulate(trace, "lru", budget, _COST) for trace in traces]
    pairs = [(own.hits, other.hits, ideal) for own, other, ideal in zip(ours, lru, ideals, strict=True)]
    lost = sum(ideal.tokens - own.tokens for own, _, ideal in pairs)
    lost_by_lru = sum(ideal.tokens - other.tokens for _, other, ideal in pairs)
    lost_s = sum(ideal.saved_seconds - own.saved_seconds for own, _, ideal in pairs)
    lost_s_by_lru = sum(ideal.saved_seconds - other.saved_seconds for _, other, ideal in pairs)
    return {
        "hit_share": spread([own.tokens / ideal.tokens for own, _, ideal in pairs]),
        "saved_share": spread([own.saved_seconds / ideal.saved_seconds for own, _, ideal in pairs]),
        "lost_tokens": lost / len(pairs),
        "lost_against_lru": lost / lost_by_lru if lost_by_lru else 1.0,
        "lost_s_against_lru": lost_s / lost_s_by_lru if lost_s_by_lru > 1e-6 else 1.0,
        "better_than_lru": sum(own.tokens > other.tokens for own, other, _ in pairs),
        "worse_than_lru": sum(own.tokens < other.tokens for own, other, _ in pairs),
    }


def _read_as_written(sessions: Sequence[Session]) -> float:
    """Share of the tokens that a turn leaves behind which the next prompt of its session reads as the same tokens."""
    shared = held = 0
    for session in sessions:
        for turn, following in zip(session.turns, session.turns[1:], strict=False):
            content = np.concatenate([turn.prompt, turn.answer])
            shared += shared_length(content, following.prompt)
            held += content.size
    return shared / held
