"""Which drafters look continuations up, and who allots drafted rows: what follows from a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.allocation import DraftAllocator, FixedDraftAllocator, GainAllocator
from forerun.core.config import MODEL_DRAFTER, SchedulerConfig
from forerun.core.costs import StepCosts
from forerun.core.drafting import GuardedDrafter, NgramDrafter
from forerun.core.origins import TARGET
from forerun.core.records import FORCED
from forerun.core.step import Drafter, Vocabulary
from forerun.core.suffix import SuffixIndex
from forerun.core.synthetic import RepeatingDrafter

RESERVED_NAMES = frozenset({MODEL_DRAFTER, "mtp", FORCED, TARGET})
"""Names that no drafter may take."""


def own_lookups(config: SchedulerConfig, *, passes_edits: bool = True) -> list[Drafter]:
    """Forerun's drafters that need no model: the request's own text, and past outputs."""
    own_text = NgramDrafter(passes_edits=passes_edits)
    if not config.speculation or not config.suffix_tokens:
        return [own_text]
    return [own_text, SuffixIndex(config.suffix_tokens)]


def guarded(lookups: Sequence[Drafter], vocabulary_size: int) -> list[Drafter]:
    """Drafters that are somebody else's kept from doing harm, names looked at."""
    names = [drafter.name for drafter in lookups]
    if len({*names, *RESERVED_NAMES}) < len(names) + len(RESERVED_NAMES):
        raise ValueError(f"drafters have names of their own, other than {sorted(RESERVED_NAMES)}; got {names}")
    own = (NgramDrafter, SuffixIndex)
    return [drafter if isinstance(drafter, own) else GuardedDrafter(drafter, vocabulary_size) for drafter in lookups]


def default_lookups(config: SchedulerConfig, vocabulary: Vocabulary, costs: StepCosts | None) -> list[Drafter]:
    """Forerun's own; under synthetic acceptance anything, as long as something is drafted."""
    if config.synthetic_acceptance is None or config.draft_n_ctx:
        return own_lookups(config, passes_edits=costs is not None)
    return [RepeatingDrafter(vocabulary.end_tokens)]


def allocator_for(config: SchedulerConfig, costs: StepCosts | None) -> DraftAllocator:
    """By measured gain where costs are known, else a fixed length."""
    if costs is None:
        return FixedDraftAllocator(config.speculation)
    return GainAllocator(costs.target, costs.draft, replays=config.memory.has_state)
