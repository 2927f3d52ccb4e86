"""Forerun: an inference engine for llama.cpp models that computes no prompt prefix twice and drafts losslessly."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.compose import AsyncEngine, Engine
    from forerun.core.planner import BatchPlanner
    from forerun.core.pool import SequencePool
    from forerun.core.prefix import PromptCheckpoint, PromptCheckpointState, ReusablePrefix
    from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment, SpeculativePosition
    from forerun.core.request import FinishReason, ForcedTokens, SamplingParams, TokenLogprobs, Usage
    from forerun.core.step import Drafter, DraftRequest, Proposal
    from forerun.engine.health import EngineHealth, EngineState
    from forerun.engine.output import Output
    from forerun.engine_config import EngineConfig
    from forerun.errors import (
        EngineClosedError,
        EngineDiedError,
        EngineError,
        ForerunError,
        IncompatibleDraftError,
        InvalidConfigError,
        InvalidRequestError,
        ModelError,
        ModelFileError,
        ModelLoadError,
        ModelNotFoundError,
        StepFailedError,
    )
    from forerun.media.picture import Picture
    from forerun.media.reading import read_picture, read_sound
    from forerun.media.sound import Sound
    from forerun.plugins import DrafterContext

__version__ = "0.1.0"

__all__ = [
    "AsyncEngine",
    "BatchPlanner",
    "DraftRequest",
    "Drafter",
    "DrafterContext",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "EngineDiedError",
    "EngineError",
    "EngineHealth",
    "EngineState",
    "FinishReason",
    "ForcedTokens",
    "ForerunError",
    "IncompatibleDraftError",
    "InvalidConfigError",
    "InvalidRequestError",
    "ModelError",
    "ModelFileError",
    "ModelLoadError",
    "ModelNotFoundError",
    "Output",
    "Picture",
    "PromptBoundary",
    "PromptCheckpoint",
    "PromptCheckpointState",
    "PromptLayout",
    "PromptSegment",
    "Proposal",
    "ReusablePrefix",
    "SamplingParams",
    "SequencePool",
    "Sound",
    "SpeculativePosition",
    "StepFailedError",
    "TokenLogprobs",
    "Usage",
    "read_picture",
    "read_sound",
]

_HOMES = {
    "forerun.compose": ("AsyncEngine", "Engine"),
    "forerun.core.planner": ("BatchPlanner",),
    "forerun.core.pool": ("SequencePool",),
    "forerun.core.prefix": ("PromptCheckpoint", "PromptCheckpointState", "ReusablePrefix"),
    "forerun.core.prompt": ("PromptBoundary", "PromptLayout", "PromptSegment", "SpeculativePosition"),
    "forerun.core.request": ("FinishReason", "ForcedTokens", "SamplingParams", "TokenLogprobs", "Usage"),
    "forerun.core.step": ("Drafter", "DraftRequest", "Proposal"),
    "forerun.engine.health": ("EngineHealth", "EngineState"),
    "forerun.engine.output": ("Output",),
    "forerun.engine_config": ("EngineConfig",),
    "forerun.errors": (
        "EngineClosedError",
        "EngineDiedError",
        "EngineError",
        "ForerunError",
        "IncompatibleDraftError",
        "InvalidConfigError",
        "InvalidRequestError",
        "ModelError",
        "ModelFileError",
        "ModelLoadError",
        "ModelNotFoundError",
        "StepFailedError",
    ),
    "forerun.media.picture": ("Picture",),
    "forerun.media.reading": ("read_picture", "read_sound"),
    "forerun.media.sound": ("Sound",),
    "forerun.plugins": ("DrafterContext",),
}
"""What is imported from where, when it is first used: a program loads no more than it uses."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
