"""What decodes cost here: remembered from before, or measured once for each model, build, machine and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.engine_config import EngineConfig

if TYPE_CHECKING:
    from forerun.native.context import ContextParams, LlamaContext


def step_costs(
    config: EngineConfig, contexts: Sequence[LlamaContext], progress: Callable[[str, float], None] | None
) -> StepCosts:
    """What the target and, where there is one, the draft cost."""
    target, *draft = [LiveCosts(cost_curve(context, config, progress)) for context in contexts]
    return StepCosts(target, draft[0] if draft else None)


def target_pace(
    config: EngineConfig, context: LlamaContext, progress: Callable[[str, float], None] | None
) -> LiveCosts | None:
    """What the target costs where drafts do not need it: measured if steps are to keep to a latency, else as known from
    before, if it is."""
    if config.target_itl_ms is not None or config.recalibrate:
        return LiveCosts(cost_curve(context, config, progress))
    curve = known_curve(context.model.path, context.params, config)
    return None if curve is None else LiveCosts(curve)


def known_curve(path: Path, params: ContextParams, config: EngineConfig) -> CostCurve | None:
    """The cost curve of a model, or its head, where it was measured before; loads nothing."""
    from forerun.models.cost_cache import CostCache
    from forerun.native.calibration import calibration_key

    return CostCache.of_user().get(calibration_key(path, params, config.n_gpu_layers))


def cost_curve(
    context: LlamaContext, config: EngineConfig, progress: Callable[[str, float], None] | None = None
) -> CostCurve:
    """Milliseconds by rows of one context's decodes."""
    from forerun.models.cost_cache import CostCache
    from forerun.native.calibration import Calibration, calibration_key

    curve = None if config.recalibrate else known_curve(context.model.path, context.params, config)
    if curve is None:
        if progress is not None:
            progress(f"measuring {context.model.path.name}", 0.0)
        # On a thread that ends: what llama.cpp's OpenMP keeps for a thread that decoded once makes the engine's own
        # threads spin too little for as long as it is there (decision 4).
        with ThreadPoolExecutor(max_workers=1) as thread:
            curve = thread.submit(Calibration(context).measure).result()
        CostCache.of_user().put(calibration_key(context.model.path, context.params, config.n_gpu_layers), curve)
        if progress is not None:
            progress(f"measuring {context.model.path.name}", 1.0)
    return curve
