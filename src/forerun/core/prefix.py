"""What a sequence holds that a later prompt can reuse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from forerun.core.prompt import PromptBoundary, PromptLayout


class _StateKind(Enum):
    TARGET = "Target"
    SPECULATIVE = "Speculative"


@dataclass(frozen=True, slots=True)
class PromptCheckpointState:
    """Opaque memory state at one boundary: `target` alone, or `speculative`: target, draft and drafter as one value.

    A speculative engine takes and restores only the second kind, so neither side can be restored alone.
    """

    kind: _StateKind
    state: bytes | memoryview
    """Read-only. A memoryview (of bytes) where the state was written to a buffer of its own."""

    @classmethod
    def target(cls, state: bytes | memoryview) -> PromptCheckpointState:
        return cls(_StateKind.TARGET, state)

    @classmethod
    def speculative(cls, state: bytes | memoryview) -> PromptCheckpointState:
        return cls(_StateKind.SPECULATIVE, state)

    @property
    def is_speculative(self) -> bool:
        return self.kind is _StateKind.SPECULATIVE

    def __repr__(self) -> str:
        return f"{self.kind.value}({len(self.state)} bytes)"


@dataclass(frozen=True, slots=True)
class PromptCheckpoint:
    """A state and the boundary at which it was taken."""

    state: PromptCheckpointState
    boundary: PromptBoundary


@dataclass(frozen=True, slots=True, init=False)
class ReusablePrefix:
    """Everything a sequence holds, prompt and generated tokens, and the checkpoints along it (in order of boundary).

    `scope` is whose it is (tenant and adapters): it is found under the same scope only. Raises ValueError where a
    checkpoint lies inside a media span or beyond the layout.
    """

    layout: PromptLayout
    checkpoints: tuple[PromptCheckpoint, ...]
    scope: str

    def __init__(self, layout: PromptLayout, checkpoints: Iterable[PromptCheckpoint] = (), *, scope: str = "") -> None:
        ordered = tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.boundary.logical_tokens))
        for checkpoint in ordered:
            if layout.boundary_at(checkpoint.boundary.logical_tokens) != checkpoint.boundary:
                raise ValueError(f"checkpoint at {checkpoint.boundary} is no boundary of {layout!r}")
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "checkpoints", ordered)
        object.__setattr__(self, "scope", scope)

    def checkpoint_at_or_before(self, boundary: PromptBoundary) -> PromptCheckpoint | None:
        """The deepest checkpoint that a prompt sharing `boundary` with this prefix can start from."""
        usable = [c for c in self.checkpoints if c.boundary.logical_tokens <= boundary.logical_tokens]
        return usable[-1] if usable else None

    def reusable_by(self, prompt: PromptLayout) -> PromptBoundary:
        """How far `prompt` can start from this prefix."""
        return leave_one_to_evaluate(prompt, self.layout.common_prefix(prompt))

    def __repr__(self) -> str:
        return f"ReusablePrefix({self.layout.logical_tokens} tokens, {len(self.checkpoints)} checkpoints)"


def leave_one_to_evaluate(prompt: PromptLayout, shared: PromptBoundary) -> PromptBoundary:
    """A full hit steps back one token, whose logits are needed; where media ends the prompt, to before the media."""
    if shared.logical_tokens < prompt.logical_tokens or not shared.logical_tokens:
        return shared
    before = prompt.boundary_at_or_before(shared.logical_tokens - 1)
    return before if before is not None else PromptBoundary.START
