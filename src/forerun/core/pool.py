"""SequencePool: the owner of every sequence id, of what idle sequences hold, and of the cells of both memories.

    free ──acquire──► leased ──release(prefix)──► idle ──acquire_matching / evict──► leased / free
      ▲                 │ └──release(None)──► free
      └──retry_quarantined── quarantined ◄──quarantine

The pool decides and never acts: what native memory has to do is queued as operations, which the scheduler moves into
its next plan with `take_operations`. The cell ledgers describe the memory as it will be once those are done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from forerun.core.adapters import is_tenant_s
from forerun.core.cells import CellLedger
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.prefix import PromptCheckpoint, ReusablePrefix, leave_one_to_evaluate
from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment, SpeculativePosition, Tokens
from forerun.core.radix import Match, PrefixTree
from forerun.core.step import ClearSequence, ForkSequence, KvOperation, TruncateSequence
from forerun.core.stored import KvSegment, StoredPrefix
from forerun.core.tiers import PrefixTiers

DEFAULT_MIN_PREFIX_SIMILARITY = 0.1
DEFAULT_MIN_PREFIX_TOKENS = 64
_NONE = -1
"""Nothing of the draft's memory is restored."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """A leased sequence id. `reused` is what it already holds of the prompt it was acquired for."""

    id: int
    reused: PromptBoundary = PromptBoundary.START
    source_id: int | None = None
    """The sequence it was forked from; None where it was empty or taken over."""
    checkpoint: PromptCheckpoint | None = None
    """The deepest checkpoint at or before `reused`, for memories that need one."""
    restored_from: PromptBoundary | None = None
    """What lies between here and `reused` came from the tiers."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The best sources for a prompt: what is in memory, what is stored, and what a running sequence will get to."""

    source_id: int = -1
    """The sequence that holds most of it; -1 where none holds any."""
    resident: PromptBoundary = PromptBoundary.START
    """What can be taken from there now."""
    promised: PromptBoundary = PromptBoundary.START
    promised_by: int = -1
    stored: StoredPrefix = field(default_factory=StoredPrefix)
    """What the tiers hold, where that is more and worth restoring."""

    @property
    def boundary(self) -> PromptBoundary:
        """What can be reused now."""
        return max(self.resident, self.stored.boundary, key=lambda boundary: boundary.logical_tokens)


class SequencePool:
    """Ids, prefixes and cells of up to `sequences` sequences. Not thread-safe: one thread owns it.

    A cached prefix is reused when it covers at least `min_prefix_similarity` of the incoming prompt, or at least
    `min_prefix_tokens` tokens of it. `cells` and `draft_cells` bound the two memories (None: without bound). `memory`
    and `draft_memory` say where they can be cut; of a draft's memory that cannot be cut nothing is kept.
    """

    def __init__(
        self,
        sequences: int,
        *,
        cells: int | None = None,
        draft_cells: int | None = None,
        memory: MemoryKind = DENSE,
        draft_memory: MemoryKind = DENSE,
        min_prefix_similarity: float = DEFAULT_MIN_PREFIX_SIMILARITY,
        min_prefix_tokens: int = DEFAULT_MIN_PREFIX_TOKENS,
        tiers: Callable[[PrefixTree[KvSegment], Callable[[KvOperation], None]], PrefixTiers] | None = None,
    ) -> None:
        if sequences < 1:
            raise ValueError(f"a pool has at least one sequence, got {sequences}")
        self.min_prefix_similarity = min_prefix_similarity
        self.min_prefix_tokens = min_prefix_tokens
        self.memory = memory
        self.draft_memory = draft_memory
        self.held_from: dict[int, int] = {}
        """First native position that is still there, of ids whose sliding window has lost some."""
        self.target_cells = CellLedger(sequences, cells)
        self.draft_cells = CellLedger(sequences, draft_cells)
        self._free = list(range(sequences))
        self._leased: dict[int, Sequence] = {}
        self._idle: dict[int, ReusablePrefix] = {}
        """In order of last use, the least recent first."""
        self._quarantined: set[int] = set()
        self.evictions = 0
        """Idle prefixes that left memory, so far."""
        self.quarantines = 0
        """Sequences that were set aside since their content was unknown, so far."""
        self._stale: set[int] = set()
        """Leased ids whose content must not be reused."""
        self._tree: PrefixTree[KvSegment] = PrefixTree()
        self._operations: list[KvOperation] = []
        self.tiers = None if tiers is None else tiers(self._tree, self._operations.append)
        """Where else prefixes can be; None where they are kept in memory alone."""
        self._rent = 0.0
        """Milliseconds that each idle cell has cost others so far."""
        self._to_store: dict[int, str] = {}
        """Idle ids whose content is not all stored yet, in order, and the request that each was computed for."""
        self._due: dict[int, float] = {}
        """The rent at which an idle prefix has cost others as much as restoring it would."""
        self._size = sequences

    # --- acquiring ----------------------------------------------------------

    def acquire(self) -> Sequence | None:
        """An empty sequence, evicting the least recently used prefix where no id is free. None: all ids are leased."""
        if not self._free and not self._evict_one():
            return None
        return self._lease(Sequence(heapq.heappop(self._free)))

    def acquire_matching(
        self, prompt: PromptLayout, scope: str = "", *, match: PrefixMatch | None = None
    ) -> Sequence | None:
        """A sequence for `prompt` that already holds what can be reused of it; None where all ids are leased.

        An idle source is taken over where nothing reusable is lost by that: where all it holds, but for a last token
        that would have to be evaluated again anyway, is part of the prompt. Otherwise the source is forked and stays.
        What the tiers hold beyond that is restored. `match` saves a second lookup: the result of `find` for the same
        prompt, with nothing done in between.
        """
        match = match or self.find(prompt, scope)
        if match is None or not self.is_worth_reusing(match.boundary, prompt):
            return self.acquire()
        if self.tiers is None:
            return self._acquire_resident(match)
        with self.tiers.keeping(match.stored):  # what has to go for the sequence is stored, and may push that out
            sequence = self._acquire_resident(match)
            return sequence and self._restore(sequence, match.stored)

    def _acquire_resident(self, match: PrefixMatch) -> Sequence | None:
        """A sequence with what is in memory of a match."""
        is_replaced = self.memory.has_state and match.stored.parts  # a state is restored whole
        if is_replaced or not match.resident.logical_tokens:
            return self.acquire()
        source = self._idle.get(match.source_id)
        if source is not None:
            self._touch(match.source_id)
            is_contained = source.layout.logical_tokens - match.resident.logical_tokens <= 1
            if is_contained and not (self.memory.has_state and self._free):  # a state can be forked nowhere else
                return self._take_over(match)
        if not self._free and not self._evict_one(keep=match.source_id):
            return self._take_over(match) if source is not None else None
        return self._fork(match)

    def _lease(self, sequence: Sequence) -> Sequence:
        self._leased[sequence.id] = sequence
        return sequence

    def _take_over(self, match: PrefixMatch) -> Sequence:
        self._store_rest(match.source_id)
        prefix = self._idle.pop(match.source_id)
        self._tree.remove(match.source_id)
        self._truncate(match.source_id, match.resident)
        checkpoint = prefix.checkpoint_at_or_before(match.resident)
        return self._lease(Sequence(match.source_id, match.resident, checkpoint=checkpoint))

    def _fork(self, match: PrefixMatch) -> Sequence:
        source, boundary, target = match.source_id, match.resident, heapq.heappop(self._free)
        self.target_cells.fork(source, target, boundary.logical_tokens)
        draft = self._draft_kept(source, boundary.text_tokens)
        self.draft_cells.fork(source, target, draft)
        self.held_from[target] = self.held_from.get(source, 0)
        self._operations.append(ForkSequence(source, target, self._position(boundary, draft)))
        prefix = self._idle.get(source)
        checkpoint = prefix.checkpoint_at_or_before(boundary) if prefix else None
        return self._lease(Sequence(target, boundary, source, checkpoint))

    def _restore(self, sequence: Sequence, stored: StoredPrefix) -> Sequence:
        """Give a leased sequence the rest of a stored prefix, where there is room for it."""
        held = sequence.reused
        missing = stored.boundary.logical_tokens - held.logical_tokens
        if self.tiers is None or missing <= 0 or not self.make_room(missing):
            return sequence
        has_draft_room = self.draft_memory.is_dense and self.make_draft_room(missing)
        draft_held = self.draft_cells.held(sequence.id)
        if has_draft_room:
            self.draft_cells.resize(sequence.id, self.tiers.restore(sequence.id, stored, held, draft_held))
        else:
            self.tiers.restore(sequence.id, stored, held, _NONE)
        self.target_cells.append(sequence.id, missing)
        if (whole_from := max(self.held_from.get(sequence.id, 0), stored.whole_from)) > 0:
            self.held_from[sequence.id] = whole_from
        return self._lease(replace(sequence, reused=stored.boundary, restored_from=held))

    # --- looking up ----------------------------------------------------------

    def find(self, prompt: PromptLayout, scope: str = "") -> PrefixMatch | None:
        """The best sources of a prefix of `prompt`, without taking any."""
        if self.tiers is None:
            return self._find_resident(prompt, self._tree.match(prompt, scope))
        matches = list(self._tree.match(prompt, scope))
        resident = self._find_resident(prompt, matches)
        stored = self.tiers.find(matches, prompt, prompt.logical_tokens - 1)
        held = resident.resident.logical_tokens if resident else 0
        if not self.tiers.is_worth_restoring(stored, held):
            return resident
        return replace(resident or PrefixMatch(), stored=stored)

    def _find_resident(self, prompt: PromptLayout, matches: Iterable[Match[KvSegment]]) -> PrefixMatch | None:
        best = best_id = promised_by = -1
        promised = 0
        for depth, owners, _ in matches:
            if depth <= best:
                break
            for owner in owners:
                is_idle = owner in self._idle
                held = depth if is_idle else min(depth, self.target_cells.held(owner))
                if (held > best or (held == best and is_idle)) and self._can_start(owner, prompt, held):
                    best, best_id = held, owner
            if depth > promised:
                running = owners - self._idle.keys()
                if running:
                    promised, promised_by = depth, max(running, key=self.target_cells.held)
        if best < 0 and promised_by < 0:
            return None
        if best < 0:  # nobody who shares anything can be cut there now
            best, best_id = 0, promised_by
        if promised <= best:
            promised, promised_by = best, best_id
        boundary, later = prompt.boundary_at_or_before(best), prompt.boundary_at(promised)
        assert boundary is not None
        assert later is not None
        return PrefixMatch(
            best_id,
            leave_one_to_evaluate(prompt, boundary),
            leave_one_to_evaluate(prompt, later),
            promised_by,
        )

    def _can_start(self, owner: int, prompt: PromptLayout, held: int) -> bool:
        """Whether a prompt can go on from the first `held` tokens that an owner holds."""
        if self.memory.is_dense:
            return True
        shared = prompt.boundary_at_or_before(held)
        assert shared is not None
        return self._can_cut(owner, leave_one_to_evaluate(prompt, shared))

    def _can_cut(self, owner: int, boundary: PromptBoundary) -> bool:
        """Whether the target's memory of an owner can be cut at a boundary of what it holds."""
        is_whole = boundary.logical_tokens == self.target_cells.held(owner)
        end = boundary.native_position if is_whole else -1
        return self.memory.can_cut(boundary.native_position, held=end, held_from=self.held_from.get(owner, 0))

    def _draft_kept(self, owner: int, tokens: int) -> int:
        """How much of an owner's draft memory is left by a cut at `tokens` of text."""
        held = self.draft_cells.held(owner)
        return held if held <= tokens else tokens if self.draft_memory.is_dense else 0

    def is_worth_reusing(self, boundary: PromptBoundary, prompt: PromptLayout) -> bool:
        """Whether a shared prefix is large enough, in itself or beside the prompt's length."""
        shared = boundary.logical_tokens
        return shared > 0 and (
            shared >= self.min_prefix_tokens or shared >= self.min_prefix_similarity * prompt.logical_tokens
        )

    def known(self, prompt: PromptLayout, scope: str, most: int = 0) -> tuple[int, tuple[int, ...]]:
        """How many tokens of a prompt others had as well, kept or not, and up to `most` with which they went on."""
        return self._tree.continuation(prompt, scope, most)

    def lost_for(self, prompt: PromptLayout, scope: str, tokens: int) -> str | None:
        """For whom what lies behind the first `tokens` of a prompt was dropped; None where it was not."""
        lost = [
            run for depth, _, runs in self._tree.match(prompt, scope) if depth > tokens for run in runs if run.is_lost
        ]
        return min(lost, key=lambda run: run.header.start.logical_tokens).lost_to if lost else None

    def note_use(self, prompt: PromptLayout, scope: str, tokens: int) -> None:
        """A request starts with the first `tokens` of its prompt reused: the tiers learn what is worth keeping."""
        if self.tiers is not None and tokens:
            matches = list(self._tree.match(prompt, scope))
            self.tiers.use(self.tiers.find(matches, prompt, prompt.logical_tokens - 1), tokens)

    # --- running ----------------------------------------------------------

    def promise(self, sequence: Sequence, layout: PromptLayout, scope: str = "") -> None:
        """Say what a leased sequence is going to hold, so that others can wait for it and fork it while it runs."""
        if sequence.id not in self._stale:
            self._tree.insert(sequence.id, layout, scope)

    def extend(self, sequence: Sequence, tokens: Tokens) -> None:
        """Add generated tokens to what was promised."""
        if tokens.size and sequence.id in self._tree:
            self._tree.extend(sequence.id, PromptSegment(tokens, None))

    # --- giving back ----------------------------------------------------------

    def release(self, sequence: Sequence, prefix: ReusablePrefix | None = None, cause: str = "") -> None:
        """End a lease. `prefix` is what the sequence holds and may be reused, and is stored; None clears it.

        `cause`: the request that held it.

        What the new prefix makes redundant goes: idle prefixes it contains, or itself where another one contains it.
        """
        is_stale = sequence.id in self._stale
        self._end_lease(sequence)
        if sequence.id in self._tree:
            self._tree.remove(sequence.id)
        if prefix is None or is_stale or not prefix.layout.logical_tokens or not self._can_keep(sequence.id, prefix):
            self._clear(sequence.id)
            return
        self.target_cells.append(sequence.id, prefix.layout.logical_tokens - self.target_cells.held(sequence.id))
        self._truncate(sequence.id, prefix.layout.end)
        self._tree.insert(sequence.id, prefix.layout, prefix.scope)
        self._idle[sequence.id] = prefix
        if self.tiers is not None:
            self._to_store[sequence.id] = cause
            self._set_due(sequence.id)
            if not self.memory.is_dense:  # a window may lose cells meanwhile
                self._store_rest(sequence.id)
        self._drop_redundant(sequence.id)

    def store(
        self, sequence_id: int, layout: PromptLayout, scope: str, cause: str = "", *, most: int | None = None
    ) -> bool:
        """Copy to the tiers what of a sequence, which holds `layout` at least, is not there yet, in `most` segments.

        False where some is left. `cause`: the request that it was computed for.
        """
        if self.tiers is None or sequence_id in self._stale:
            return True
        draft_held = self.draft_cells.held(sequence_id) if self.draft_memory.is_dense else 0
        held_from = self.held_from.get(sequence_id, 0)
        return self.tiers.store(
            sequence_id, layout, scope, draft_held=draft_held, held_from=held_from, most=most, cause=cause
        )

    def store_some(self, most: int) -> None:
        """Copy some more of what idle sequences hold: a little each step, since others wait for it."""
        if self._to_store:
            owner, cause = next(iter(self._to_store.items()))
            prefix = self._idle[owner]
            if self.store(owner, prefix.layout, prefix.scope, cause, most=most):
                del self._to_store[owner]

    def _store_rest(self, owner: int) -> None:
        """Copy the rest of what an idle sequence holds, which it is about to lose."""
        cause = self._to_store.pop(owner, None)
        if cause is not None:
            prefix = self._idle[owner]
            self.store(owner, prefix.layout, prefix.scope, cause)

    def _can_keep(self, sequence_id: int, prefix: ReusablePrefix) -> bool:
        """Whether what a sequence holds beyond a prefix of it can be cut off."""
        end = prefix.layout.end
        return end.logical_tokens >= self.target_cells.held(sequence_id) or self._can_cut(sequence_id, end)

    def _end_lease(self, sequence: Sequence) -> None:
        if self._leased.get(sequence.id) is not sequence:  # also a lease of the same id that ended before
            raise ValueError(f"sequence {sequence.id} is not leased")
        del self._leased[sequence.id]
        self._stale.discard(sequence.id)

    def _drop_redundant(self, fresh: int) -> None:
        if self.memory.has_state:  # a longer prefix cannot be cut back to a shorter one
            return
        for owner in [owner for owner in self._idle if owner != fresh]:
            if self._tree.is_contained(owner, (fresh,)):
                self._evict(owner)
        if self._tree.is_contained(fresh, self._idle):
            self._evict(fresh)

    def quarantine(self, sequence: Sequence) -> None:
        """End a lease whose native content is unknown. The id is cleared and usable again after `retry_quarantined`."""
        self._end_lease(sequence)
        self._set_aside(sequence.id)

    def quarantine_idle(self, sequence_id: int) -> None:
        """The same for an idle sequence, whose prefix is lost."""
        if self._idle.pop(sequence_id, None) is not None:
            self._set_aside(sequence_id)

    def _set_aside(self, sequence_id: int) -> None:
        self._to_store.pop(sequence_id, None)
        if sequence_id in self._tree:
            self._tree.remove(sequence_id)
        self._quarantined.add(sequence_id)
        self.quarantines += 1

    def retry_quarantined(self) -> None:
        """Clear all quarantined ids and make them free."""
        for sequence_id in sorted(self._quarantined):
            self._clear(sequence_id, always=True)
        self._quarantined.clear()

    # --- making room ----------------------------------------------------------

    def make_room(self, cells: int) -> bool:
        """Evict idle prefixes, least recently used first, until `cells` target cells are free.

        False, with nothing evicted, where even evicting all of them would not be enough.
        """
        if self.target_cells.free >= cells:
            return True
        if self.available_cells < cells:
            return False
        while self.target_cells.free < cells:
            self._evict(next(iter(self._idle)))
        return True

    def make_draft_room(self, cells: int) -> bool:
        """Forget the draft half of idle prefixes, least recently used first, until `cells` draft cells are free."""
        for owner, prefix in self._idle.items():
            if self.draft_cells.free >= cells:
                return True
            if self.draft_cells.held(owner):
                self._store_rest(owner)
                self.draft_cells.clear(owner)
                target = prefix.layout.native_positions
                self._operations.append(TruncateSequence(owner, SpeculativePosition(target, draft=0)))
        return self.draft_cells.free >= cells

    @property
    def available_cells(self) -> int:
        """Target cells that are free or would be without the idle prefixes."""
        busy = [*self._leased, *self._quarantined]
        return self.target_cells.free + self.target_cells.used - self.target_cells.held_together(busy)

    def own_cells(self, sequence_id: int) -> int:
        """Cells that would be free, or held by idle prefixes alone, without a leased sequence."""
        busy = [*self._leased, *self._quarantined]
        others = [one for one in busy if one != sequence_id]
        return self.target_cells.held_together(busy) - self.target_cells.held_together(others)

    def invalidate_reuse(self) -> None:
        """Nothing computed so far is to be reused: its KV is no longer what the model as it is now would compute.

        Idle prefixes go; what running sequences hold is not offered any more, and not kept when they are released.
        """
        self._to_store.clear()
        for owner in list(self._idle):
            self._evict(owner)
        if self.tiers is not None:
            self.tiers.clear()
        for sequence_id in self._leased:
            self._stale.add(sequence_id)
            if sequence_id in self._tree:
                self._tree.remove(sequence_id)

    def pin(self, prompt: PromptLayout, scope: str, until: float) -> int:
        """Keep what is stored of a prompt in host memory until then; how many tokens."""
        if self.tiers is None:
            return 0
        matches = list(self._tree.match(prompt, scope))
        return self.tiers.pin(self.tiers.find(matches, prompt, prompt.logical_tokens), until)

    def clear_idle(self, scope: str | None = None) -> int:
        """Forget idle prefixes and what is stored (of a scope's tenant); how many sequences and segments."""
        idle = [owner for owner, prefix in self._idle.items() if scope is None or is_tenant_s(prefix.scope, scope)]
        for owner in idle:
            self._to_store.pop(owner, None)
            self._evict(owner)
        return len(idle) + (self.tiers.clear(scope) if self.tiers else 0)

    def charge(self, ms_a_cell: float, *, is_waited_for: bool) -> None:
        """A step is about to walk over every idle cell.

        A prefix that will have cost others as much as restoring it would is dropped from memory: at worst the two
        together cost twice as much as knowing the future would have (the ski rental problem). What is not stored yet
        is stored for that, unless somebody waits for the step's tokens.
        """
        if self.tiers is None or not self._idle:
            return
        self._rent += ms_a_cell
        for owner in [owner for owner in self._idle if self._due[owner] <= self._rent]:
            if not is_waited_for:
                self._store_rest(owner)
            if self._is_stored(self._idle[owner]):
                self._evict(owner)
            else:
                self._set_due(owner)

    def _set_due(self, owner: int) -> None:
        if self.tiers is not None:
            self._due[owner] = self._rent + self.tiers.rates.restore_ms

    def _is_stored(self, prefix: ReusablePrefix) -> bool:
        return self.tiers is not None and self.tiers.holds(prefix.layout, prefix.scope)

    def _evict_one(self, keep: int | None = None) -> bool:
        victim = next((owner for owner in self._idle if owner != keep), None)
        if victim is not None:
            self._evict(victim)
        return victim is not None

    def _evict(self, sequence_id: int) -> None:
        self._store_rest(sequence_id)
        self.evictions += 1
        del self._idle[sequence_id]
        self._tree.remove(sequence_id)
        self._clear(sequence_id)

    def _clear(self, sequence_id: int, *, always: bool = False) -> None:
        if always or self.target_cells.held(sequence_id) or self.draft_cells.held(sequence_id):
            self._operations.append(ClearSequence(sequence_id))
        self.target_cells.clear(sequence_id)
        self.draft_cells.clear(sequence_id)
        self.held_from.pop(sequence_id, None)
        heapq.heappush(self._free, sequence_id)

    def _truncate(self, sequence_id: int, boundary: PromptBoundary) -> None:
        tokens = boundary.logical_tokens
        draft = self._draft_kept(sequence_id, boundary.text_tokens)
        if self.target_cells.held(sequence_id) > tokens or self.draft_cells.held(sequence_id) > draft:
            self._operations.append(TruncateSequence(sequence_id, self._position(boundary, draft)))
        self.target_cells.truncate(sequence_id, tokens)
        self.draft_cells.truncate(sequence_id, draft)

    def _position(self, boundary: PromptBoundary, draft: int) -> SpeculativePosition:
        """Where both memories are cut; a dense draft memory that holds less is left as it is."""
        position = boundary.text_position()
        return position if self.draft_memory.is_dense else SpeculativePosition(position.target, draft)

    def _touch(self, sequence_id: int) -> None:
        self._idle[sequence_id] = self._idle.pop(sequence_id)
        self._set_due(sequence_id)

    # --- looking in ----------------------------------------------------------

    def take_operations(self) -> tuple[KvOperation, ...]:
        """What native memory has to do, in order, to become what the pool says it is. Empties the queue."""
        operations = tuple(self._operations)
        self._operations.clear()
        return operations

    @property
    def pending_operations(self) -> tuple[KvOperation, ...]:
        """What `take_operations` would give."""
        return tuple(self._operations)

    @property
    def has_work(self) -> bool:
        """Whether native memory still has to change, or to be copied."""
        return bool(self._operations or self._quarantined or self._to_store)

    @property
    def quarantined(self) -> frozenset[int]:
        """Ids whose native content is unknown until they are cleared."""
        return frozenset(self._quarantined)

    @property
    def idle(self) -> dict[int, ReusablePrefix]:
        """Idle prefixes by sequence id, least recently used first (a copy)."""
        return dict(self._idle)

    @property
    def free_ids(self) -> int:
        return len(self._free)

    @property
    def idle_ids(self) -> int:
        return len(self._idle)

    def check_integrity(self) -> None:
        """Raise AssertionError where an id has two owners or none, or where counts contradict each other."""
        owned = [*self._free, *self._leased, *self._idle, *self._quarantined]
        assert sorted(owned) == list(range(self._size)), f"ids owned: {sorted(owned)}"
        for sequence_id in self._free:
            assert self.target_cells.held(sequence_id) == self.draft_cells.held(sequence_id) == 0
        assert self._to_store.keys() <= self._idle.keys()
        for sequence_id, prefix in self._idle.items():
            assert self.target_cells.held(sequence_id) == prefix.layout.logical_tokens
            assert self.draft_cells.held(sequence_id) <= prefix.layout.end.text_tokens
            assert self._tree.end_of(sequence_id) == prefix.layout.end
        self.target_cells.check_integrity()
        self.draft_cells.check_integrity()
        self._tree.check_integrity()
        if self.tiers is not None:
            self.tiers.check_integrity()

    def __repr__(self) -> str:
        return (
            f"SequencePool({self._size} ids: {len(self._free)} free, {len(self._leased)} leased, "
            f"{len(self._idle)} idle, {len(self._quarantined)} quarantined; {self.target_cells.used} cells)"
        )
