"""What `forerun check` says a model takes, against what the process that runs it has in memory.

FORERUN_TARGET and FORERUN_DRAFT name the models, as everywhere. The engine gets what it chooses itself, but for a
context that a prompt fills in a minute (without flash attention buffers are in memory as far as cells are used), and
the budget of cached prefixes, which is small enough to be full.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_process import EngineProcess
from benchmarks.report import Figures
from benchmarks.settings import settings
from forerun.compose import as_listed, preflight
from forerun.core.request import SamplingParams
from forerun.engine_config import EngineConfig

_MIB = 2**20
_CACHE = 16 * _MIB
_N_CTX = 4096
_PROMPTS, _TOKENS = 3, 300
"""Together more rows than a step has, and more KV than cached prefixes may take."""


def run() -> Figures:
    use = settings((24, 24))
    options: dict[str, Any] = {
        "model": use.target,
        "draft": use.draft,
        "n_ctx": _N_CTX,
        "n_threads": 2,
        "cache_ram": _CACHE,
        "target_itl_ms": "auto",  # as in `forerun serve`: costs are measured when the engine is loaded
        "recalibrate": True,
    }
    found = preflight(as_listed(EngineConfig(**options)))
    found.require_usable()
    limits, told = found.usable_limits, found.resident + _CACHE
    with EngineProcess(options) as process:
        params = SamplingParams(max_tokens=use.tokens, ignore_eos=True)
        drawn = np.random.default_rng(0).integers(1000, 30_000, (_PROMPTS, _TOKENS)).astype(np.int32)
        process.answers(list(drawn), params)
        process.answer(np.resize(drawn, limits.n_ctx - use.tokens - 1), params)
        held = resident(process.pid)
    surveys = [candidate.survey for candidate in found.candidates]
    return {
        **use.names,
        "n_ctx": limits.n_ctx,
        "told_mib": told / _MIB,
        "held_mib": held / _MIB,
        "told_of_held": told / held,
        "weights_mib": sum(survey.weights for survey in surveys) / _MIB,
        "copied_weights_mib": sum(survey.repacked for survey in surveys) / _MIB,
        "kv_mib": sum(survey.kv for survey in surveys) / _MIB,
        "buffers_mib": sum(survey.compute + survey.outputs + survey.other for survey in surveys) / _MIB,
        "beside_mib": sum(found.beside.values()) / _MIB,
    }


def resident(pid: int) -> int:
    """Bytes of memory that a process has, pages of files included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
