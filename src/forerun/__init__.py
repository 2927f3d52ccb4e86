"""Forerun: an inference engine for llama.cpp models that computes no prompt prefix twice and drafts losslessly."""

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
from forerun.media.reading import read_picture
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
    "SpeculativePosition",
    "StepFailedError",
    "TokenLogprobs",
    "Usage",
    "read_picture",
]
