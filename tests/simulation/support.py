"""Small workloads."""

from __future__ import annotations

from typing import Any

from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve
from forerun.simulation.machine import Machine
from forerun.simulation.workload import UserGroup, Workload

CURVE = CostCurve((1, 8, 16, 32, 64, 128, 256, 512), (14.0, 15.0, 16.0, 18.0, 22.0, 32.0, 54.0, 98.0))
"""Milliseconds of a machine on which rows come cheaper together."""


def users(**changes: Any) -> UserGroup:
    """One user who asks about once a second: 100 tokens, answered by 10."""
    usual: dict[str, Any] = {
        "name": "users",
        "count": 1,
        "every_seconds": 1.0,
        "message_tokens": 100,
        "answer_tokens": 10,
    }
    return UserGroup.model_validate(usual | changes)


def workload(*groups: UserGroup, seconds: float = 10.0, machine: Machine | None = None, **limits: Any) -> Workload:
    """Everything is counted, from the beginning."""
    config = SchedulerConfig(**{"n_ctx": 4096, "max_num_seqs": 4} | limits)
    return Workload(groups or (users(),), config, machine or Machine(CURVE), seconds)
