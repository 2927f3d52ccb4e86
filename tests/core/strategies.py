"""Random prompts, and the naive model they are compared with: a prompt as a row of indivisible units.

Two or three token ids and a few near-identical media spans make shared prefixes, and near misses, common.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from hypothesis import strategies as st

from forerun.core.prompt import MediaSpan, PromptBoundary, PromptLayout, PromptSegment

Unit: TypeAlias = int | MediaSpan
"""A text token or a whole media span."""

MEDIA = (
    PromptSegment.media("image-a", logical_tokens=3, native_positions=1),
    PromptSegment.media("image-b", logical_tokens=3, native_positions=1),
    PromptSegment.media("image-a", logical_tokens=4, native_positions=1),
    PromptSegment.media("image-a", logical_tokens=3, native_positions=2),
    PromptSegment.media("audio", logical_tokens=1, native_positions=1),
)
"""Each differs from the first in one thing: identity, logical tokens, native positions."""

token_ids = st.integers(0, 1)
texts = st.lists(token_ids, max_size=6).map(PromptSegment.text)
segment_lists = st.lists(st.one_of(texts, st.sampled_from(MEDIA)), max_size=6)
layouts = segment_lists.map(PromptLayout)
prompts = layouts.filter(lambda layout: layout.logical_tokens > 0)


def units_of(segments: Iterable[PromptSegment]) -> list[Unit]:
    """The naive model of a prompt."""
    units: list[Unit] = []
    for segment in segments:
        units += [segment.media_span] if segment.media_span else segment.tokens.tolist()
    return units


def end_of(units: Iterable[Unit]) -> PromptBoundary:
    """The boundary after a row of units, counted one by one."""
    logical = native = 0
    for unit in units:
        logical += unit.logical_tokens if isinstance(unit, MediaSpan) else 1
        native += unit.native_positions if isinstance(unit, MediaSpan) else 1
    return PromptBoundary(logical, native)


def boundaries_of(units: list[Unit]) -> list[PromptBoundary]:
    """Every legal boundary of a row of units, in order."""
    return [end_of(units[:count]) for count in range(len(units) + 1)]


def shared_units(a: list[Unit], b: list[Unit]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count
