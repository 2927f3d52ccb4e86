"""Where else a prefix can be: KV segments in host memory and on disk, their budgets, and what goes when they are full.

    pool ──store (a copy)──► host ──persist──► disk
      ▲                       │ ▲               │
      └───────restore─────────┘ └─────fetch─────┘

A segment that was dropped everywhere stays known for a while as a *lost* one, so that it can be said why a prompt was
not found. Pure bookkeeping: what has to be done is emitted as operations, in the order in which it must happen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from forerun.core.adapters import is_tenant_s
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.prompt import PromptBoundary, PromptLayout, SpeculativePosition
from forerun.core.radix import Match, PrefixTree
from forerun.core.rates import CopyRates
from forerun.core.retention import RetentionRecord
from forerun.core.segment import (
    SEGMENT_TOKENS,
    SegmentHeader,
    SegmentSizes,
    StoredSegment,
    StoreEvent,
    StoreEventKind,
    segment_key,
)
from forerun.core.step import (
    DropSegment,
    FetchSegment,
    KvOperation,
    PersistSegment,
    RemoveSegment,
    RestoreSegment,
    StepPlan,
    StepResult,
    StoreSegment,
)
from forerun.core.stored import KvSegment, Part, StoredPrefix, Tier

_LOST_TOKENS = 2**18
"""Tokens of lost segments that are remembered, 4 bytes each."""
_FILE_OVERHEAD = 2048
"""Bytes of a file beside its KV and 4 for each token, at most."""


_NO_SIZES = SegmentSizes()


class PrefixTiers:
    """The catalog of stored segments, and what is decided about them. Shares the pool's tree and its operations."""

    def __init__(
        self,
        tree: PrefixTree[KvSegment],
        emit: Callable[[KvOperation], None],
        host: Tier,
        disk: Tier,
        *,
        sizes: SegmentSizes = _NO_SIZES,
        model_key: str = "",
        memory: MemoryKind = DENSE,
        segment_tokens: int = SEGMENT_TOKENS,
        prefill_ms: float | None = None,
    ) -> None:
        self._tree = tree
        self._emit = emit
        self.host = host
        self.disk = disk
        self.rates = CopyRates(prefill_ms, sizes.per_token)
        self._sizes = sizes
        self._model_key = model_key
        self._memory = memory
        self._segment_tokens = segment_tokens
        self._segments: dict[str, KvSegment] = {}
        self._lost: OrderedDict[str, KvSegment] = OrderedDict()
        self._lost_tokens = 0
        self._pins: dict[KvSegment, float] = {}
        """Until when each pinned segment stays."""
        self._kept: dict[RetentionRecord, int] = {}
        """What is held for parked requests, and for how many of them."""
        self.now = 0.0
        self._cause = ""
        """The request for which room is being made."""

    # --- what disk holds at start ----------------------------------------------------------

    def adopt(self, found: Iterable[StoredSegment]) -> None:
        """Take in what an earlier engine left on disk; what has lost the segment it goes on from is removed."""
        waiting: dict[str, list[StoredSegment]] = {}
        for one in sorted(found, key=lambda one: one.last_used):
            waiting.setdefault(one.header.parent, []).append(one)
        ready = waiting.pop("", [])
        while ready:
            one = ready.pop()
            if self._adopt(one):
                ready.extend(waiting.pop(one.header.key, ()))
        for stranded in waiting.values():
            for one in stranded:
                self._emit(RemoveSegment(one.header.key))

    def _adopt(self, found: StoredSegment) -> bool:
        header = found.header
        parent = self._segments.get(header.parent)
        if header.key in self._segments:
            return True
        if self.disk.used + found.nbytes > self.disk.capacity:
            self._emit(RemoveSegment(header.key))
            return False
        segment = self._place(header, parent)
        segment.host_bytes = found.host_bytes
        segment.disk = self._record(segment, found.nbytes, parent.disk if parent else None)
        self.disk.insert(segment.disk, self.now)
        return True

    # --- looking up ----------------------------------------------------------

    def find(self, matches: Sequence[Match[KvSegment]], prompt: PromptLayout, limit: int) -> StoredPrefix:
        """The longest prefix of at most `limit` tokens of a prompt that stored segments hold."""
        for depth, _, runs in matches:
            for segment in runs:
                if not segment.is_kept:
                    continue
                found = self._chain(segment, prompt, min(depth, limit))
                if found is not None:
                    return found
        return StoredPrefix(())

    def _chain(self, segment: KvSegment, prompt: PromptLayout, tokens: int) -> StoredPrefix | None:
        """The first `tokens` tokens of a prompt from a segment and those before it; None where it cannot end there."""
        stop = segment.header.stop if self._memory.has_state else prompt.boundary_at_or_before(tokens)
        if stop is None or stop.logical_tokens > tokens:
            return None
        parts: list[Part] = []
        current: KvSegment | None = segment
        while current is not None:
            if not current.is_kept:
                return None
            if stop.logical_tokens > current.header.start.logical_tokens:
                parts.append(Part(current, current.header.start, stop))
                stop = current.header.start
            current = current.parent
        parts.reverse()
        return StoredPrefix(tuple(parts)) if parts and self._is_whole(parts) else None

    def _is_whole(self, parts: Sequence[Part]) -> bool:
        """Whether all cells are there that a sliding window will look at behind the last part."""
        if not self._memory.window:
            return True
        stop = parts[-1].stop.native_position
        return self._memory.can_cut(stop, held=stop + 1, held_from=max(part.whole_from for part in parts))

    def is_worth_restoring(self, stored: StoredPrefix, held: int) -> bool:
        """Whether restoring what lies beyond the `held` tokens saves time."""
        return self.rates.saving(*self.split(stored, held)) > 0

    def split(self, stored: StoredPrefix, held: int) -> tuple[int, int]:
        """How many tokens beyond the `held` ones are in host memory, and how many on disk alone."""
        at_hand = fetched = 0
        for part in stored.parts:
            tokens = part.tokens_beyond(held)
            if part.segment.host is None:
                fetched += tokens
            else:
                at_hand += tokens
        return at_hand, fetched

    def holds(self, layout: PromptLayout, scope: str) -> bool:
        """Whether all of a sequence's content is stored."""
        return self._covered(layout, scope).boundary == layout.end

    # --- the pool to host ----------------------------------------------------------

    def store(
        self,
        sequence_id: int,
        layout: PromptLayout,
        scope: str,
        *,
        draft_held: int = 0,
        held_from: int = 0,
        most: int | None = None,
        cause: str = "",
    ) -> bool:
        """Copy what of a sequence is not stored yet, `most` segments of it. False where some is left for later.

        With a state, the sequence must hold exactly `layout`. `cause`: the request it was computed for.
        """
        self._cause = cause
        covered = self._covered(layout, scope)
        parent = covered.parts[-1].segment if covered.parts else None
        held = [record for part in covered.parts if (record := part.segment.host) is not None]
        for record in held:  # what the new ones go on from must not make room for them
            self.host.retention.hold(record)
        start, count = covered.boundary, 0
        if parent is not None and start == layout.end:
            self._retraced(parent)
        while start.logical_tokens < layout.logical_tokens and count != most:
            count += 1
            stop = self._next_stop(layout, start)
            content = tuple(layout.slice_segments(start.logical_tokens, stop.logical_tokens))
            parent_key = parent.header.key if parent else ""
            header = SegmentHeader(
                key=segment_key(self._model_key, scope, parent_key, start, content),
                parent=parent_key,
                scope=scope,
                start=start,
                stop=stop,
                content=content,
                draft_stop=min(max(draft_held, start.text_tokens), stop.text_tokens),
                whole_from=held_from,
            )
            segment = self._store(sequence_id, header, parent)
            if segment is None:
                start = layout.end  # there is no room, and will not be soon
                break
            assert segment.host is not None
            held.append(segment.host)
            self.host.retention.hold(segment.host)
            parent, start = segment, stop
        for record in held:
            self.host.retention.release(record)
        return start == layout.end

    def _retraced(self, segment: KvSegment) -> None:
        for tier, record in ((self.host, segment.host), (self.disk, segment.disk)):
            if record is not None:
                tier.retention.retraced(record, self.now)

    def _covered(self, layout: PromptLayout, scope: str) -> StoredPrefix:
        return self.find(list(self._tree.match(layout, scope)), layout, layout.logical_tokens)

    def _next_stop(self, layout: PromptLayout, start: PromptBoundary) -> PromptBoundary:
        """Where the segment that starts here ends: media are not cut, and a state is known at the end alone."""
        if self._memory.has_state or layout.logical_tokens - start.logical_tokens <= self._segment_tokens:
            return layout.end
        stop = layout.boundary_at_or_before(start.logical_tokens + self._segment_tokens)
        if stop is None or stop.logical_tokens <= start.logical_tokens:
            stop = layout.boundary_at_or_after(start.logical_tokens + 1)
        assert stop is not None
        return stop

    def _store(self, sequence_id: int, header: SegmentHeader, parent: KvSegment | None) -> KvSegment | None:
        known = self._segments.get(header.key)
        if known is not None and known.is_kept:  # its window is not whole; neither is this one's
            return known if known.host is not None else None
        nbytes = self._sizes.predict(header.tokens, header.draft_stop - header.start.text_tokens)
        if not self._make_host_room(nbytes):
            return None
        segment = self._segments.get(header.key)  # a lost one may have been forgotten meanwhile
        if segment is None:
            segment = self._place(header, parent)
        else:
            self._find_again(segment)
            segment.header = header
        self._into_host(segment, nbytes)
        segment.is_storing = True
        self._emit(StoreSegment(sequence_id, header))
        return segment

    def _place(self, header: SegmentHeader, parent: KvSegment | None) -> KvSegment:
        segment = self._segments[header.key] = KvSegment(header, parent)
        if parent is not None:
            parent.children[segment] = None
        self._tree.place(segment, header.content, header.start.logical_tokens, parent, header.scope)
        return segment

    def _into_host(self, segment: KvSegment, nbytes: int) -> None:
        """Count a segment that is on its way to the host tier; it stays until it is there."""
        if segment.host is None:
            parent = segment.parent.host if segment.parent else None
            segment.host = self._record(segment, nbytes, parent)
            self.host.insert(segment.host, self.now)
        self.host.retention.hold(segment.host)
        segment.host_bytes = nbytes

    def _record(self, segment: KvSegment, nbytes: int, parent: RetentionRecord | None) -> RetentionRecord:
        header = segment.header
        start, tokens = header.start.logical_tokens, header.tokens
        return RetentionRecord(header.key, parent, start=start, tokens=tokens, nbytes=nbytes, now=self.now)

    # --- host to the pool ----------------------------------------------------------

    def restore(self, sequence_id: int, stored: StoredPrefix, held: PromptBoundary, draft_held: int) -> int:
        """Give a sequence that holds `held` the rest of a stored prefix. Returns what its draft's memory then holds."""
        for part in stored.parts:
            if part.stop.logical_tokens <= held.logical_tokens:
                continue
            start = part.start if part.start.logical_tokens >= held.logical_tokens else held
            drafted = min(part.segment.header.draft_stop, part.stop.text_tokens)
            draft_stop = drafted if draft_held == start.text_tokens < drafted else start.text_tokens
            draft_held = draft_stop if draft_stop > start.text_tokens else draft_held
            self._emit(
                RestoreSegment(
                    sequence_id,
                    part.segment.header.key,
                    start.text_position(),
                    SpeculativePosition(part.stop.native_position, draft_stop),
                )
            )
        return draft_held

    def use(self, stored: StoredPrefix, shared: int) -> None:
        """A prompt shares the first `shared` tokens of a stored prefix, wherever their KV comes from."""
        chain = [part.segment for part in stored.parts if part.start.logical_tokens < shared]
        for tier, records in (
            (self.host, [segment.host for segment in chain if segment.host is not None]),
            (self.disk, [segment.disk for segment in chain if segment.disk is not None]),
        ):
            tier.retention.used(records, self.now)
        for segment in chain:
            segment.was_fetched = False

    # --- disk to host ----------------------------------------------------------

    def fetch(self, stored: StoredPrefix, cause: str = "") -> bool:
        """Begin to fetch what of a stored prefix is on disk alone, for a request. False where there is no room."""
        self._cause = cause
        with self.keeping(stored):
            return all(self._fetch(segment) for segment in stored.missing if not segment.is_fetching)

    @contextmanager
    def keeping(self, stored: StoredPrefix) -> Iterator[None]:
        """While room is made for something else, what a stored prefix has in host memory stays there."""
        held = [part.segment.host for part in stored.parts if part.segment.host is not None]
        for record in held:
            self.host.retention.hold(record)
        try:
            yield
        finally:
            for record in held:
                self.host.retention.release(record)

    def _fetch(self, segment: KvSegment) -> bool:
        if not self._make_host_room(segment.host_bytes):
            return False
        self._into_host(segment, segment.host_bytes)
        segment.is_fetching = segment.was_fetched = True
        self._emit(FetchSegment(segment.header.key, segment.header.tokens))
        return True

    def at_hand(self, stored: StoredPrefix) -> StoredPrefix:
        """What of a stored prefix can be restored now."""
        count = next((i for i, part in enumerate(stored.parts) if not part.segment.is_at_hand), len(stored.parts))
        parts = stored.parts[:count]
        return StoredPrefix(parts) if parts and self._is_whole(parts) else StoredPrefix(())

    # --- making room ----------------------------------------------------------

    def _make_host_room(self, nbytes: int) -> bool:
        return self._make_room(self.host, nbytes, self._evict_from_host)

    def _make_room(self, tier: Tier, nbytes: int, evict: Callable[[KvSegment], None]) -> bool:
        if nbytes > tier.capacity:
            return False
        while tier.used + nbytes > tier.capacity:
            victim = tier.retention.victim(self.now)
            if victim is None:
                return False
            evict(self._segments[victim.key])
        return True

    def _evict_from_host(self, segment: KvSegment) -> None:
        self._leave_host(segment)
        if segment.disk is None:
            self._lose_all(segment)

    def _evict_from_disk(self, segment: KvSegment) -> None:
        self._leave_disk(segment)
        if segment.host is None:
            self._lose_all(segment)

    def _leave_host(self, segment: KvSegment) -> None:
        if segment.host is not None:
            self._kept.pop(segment.host, None)
            self.host.remove(segment.host, self.now)
            segment.host = None
            segment.is_storing = segment.is_fetching = False
            self._pins.pop(segment, None)
            self._emit(DropSegment(segment.header.key))

    def _leave_disk(self, segment: KvSegment) -> None:
        if segment.disk is not None:
            self.disk.remove(segment.disk, self.now)
            segment.disk = None
            segment.is_persisting = False
            self._emit(RemoveSegment(segment.header.key))

    def _lose_all(self, segment: KvSegment) -> None:
        """A segment is nowhere any more: what goes on from it is stranded and goes too."""
        for one in _deepest_first(segment):
            self._leave_host(one)
            self._leave_disk(one)
            if one.header.key not in self._lost:
                one.lost_to = self._cause
                self._lost[one.header.key] = one
                self._lost_tokens += one.header.tokens
        while self._lost_tokens > _LOST_TOKENS:
            self._forget(next(iter(self._lost.values())))

    def _find_again(self, segment: KvSegment) -> None:
        if self._lost.pop(segment.header.key, None) is not None:
            self._lost_tokens -= segment.header.tokens
            segment.lost_to = ""

    def _forget(self, segment: KvSegment) -> None:
        """Forget a lost segment, and the lost ones that go on from it."""
        for one in _deepest_first(segment):
            self._find_again(one)
            self._tree.displace(one)
            del self._segments[one.header.key]
            if one.parent is not None:
                one.parent.children.pop(one, None)

    # --- what came of it ----------------------------------------------------------

    def learn(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Count what was stored, restored and fetched, and what was not."""
        self.rates.learn(plan, result, now)
        for operation in plan.operations:
            if isinstance(operation, StoreSegment):
                key = operation.header.key
                self._settle_store(key, result.stored.get(key, 0), result.stored_from.get(key, 0))
        for key in result.unrestorable:
            self._distrust(key)
        for event in result.store_events:
            self._settle_event(event)

    def _settle_store(self, key: str, nbytes: int, whole_from: int) -> None:
        segment = self._segments.get(key)
        if segment is None or segment.host is None or not segment.is_storing:  # dropped meanwhile
            return
        self.host.retention.release(segment.host)
        segment.is_storing = False
        if not nbytes:
            self._distrust(key)
            return
        segment.header = replace(segment.header, whole_from=whole_from)
        self.host.resize(segment.host, nbytes)
        segment.host_bytes = nbytes
        if self.host.used > self.host.capacity:
            self._make_host_room(0)
        if self.disk.capacity:
            self._persist_all(segment)

    def _persist_all(self, segment: KvSegment) -> None:
        """Write a segment to disk, and before it those it goes on from that are not there."""
        way = [segment]
        while (parent := way[-1].parent) is not None and parent.disk is None:
            way.append(parent)
        for one in reversed(way):
            if not one.is_at_hand or one.is_storing or not self._persist(one):
                return

    def _persist(self, segment: KvSegment) -> bool:
        nbytes = segment.host_bytes + 4 * segment.header.tokens + _FILE_OVERHEAD
        above = segment.parent.disk if segment.parent else None
        if above is not None:
            self.disk.retention.hold(above)
        has_room = self._make_room(self.disk, nbytes, self._evict_from_disk)
        if above is not None:
            self.disk.retention.release(above)
        if has_room and segment.host is not None:
            segment.disk = self._record(segment, nbytes, above)
            self.disk.insert(segment.disk, self.now)
            self.disk.retention.hold(segment.disk)
            segment.is_persisting = True
            self._emit(PersistSegment(segment.header.key))
        return segment.disk is not None

    def _settle_event(self, event: StoreEvent) -> None:
        segment = self._segments.get(event.key)
        if segment is None:
            return
        match event.kind:
            case StoreEventKind.PERSISTED if segment.disk is not None and segment.is_persisting:
                self.disk.retention.release(segment.disk)
                self.disk.resize(segment.disk, event.nbytes)
                segment.is_persisting = False
            case StoreEventKind.PERSIST_FAILED if segment.is_persisting:
                self._unlink_disk(segment)
            case StoreEventKind.FETCHED if segment.host is not None and segment.is_fetching:
                self.host.retention.release(segment.host)
                self.host.resize(segment.host, event.nbytes)
                segment.host_bytes = event.nbytes
                segment.is_fetching = False
            case StoreEventKind.FETCH_REFUSED if segment.is_fetching:
                self._leave_host(segment)
            case StoreEventKind.FETCH_FAILED if segment.is_fetching:
                self._distrust(event.key)

    def _unlink_disk(self, segment: KvSegment) -> None:
        """A segment is not on disk after all; what follows it there cannot be reached after a restart."""
        for one in _deepest_first(segment):
            self._leave_disk(one)
            if one.host is None:
                self._lose_all(one)

    def _distrust(self, key: str) -> None:
        """Never use a segment again, nor what goes on from it: what of it there is goes everywhere."""
        self._cause = ""
        segment = self._segments.get(key)
        if segment is not None:
            self._lose_all(segment)

    # --- for parked requests ----------------------------------------------------------

    def may_keep(self, tokens: int) -> bool:
        """Whether there can be room to keep the KV of so many tokens for a parked request."""
        return self._sizes.predict(tokens, tokens) <= self.host.capacity // 2

    def keep(self, layout: PromptLayout, scope: str) -> tuple[RetentionRecord, ...]:
        """Hold what is stored of a prefix until `let_go`: for all together at most half of the host's budget."""
        room = self.host.capacity // 2 - sum(record.nbytes for record in self._kept)
        kept: list[RetentionRecord] = []
        for part in self._covered(layout, scope).parts:
            record = part.segment.host
            if record is None or (record not in self._kept and record.nbytes > room):
                break
            room -= 0 if record in self._kept else record.nbytes
            self._kept[record] = self._kept.get(record, 0) + 1
            self.host.retention.hold(record)
            kept.append(record)
        return tuple(kept)

    def let_go(self, kept: Iterable[RetentionRecord]) -> None:
        """What `keep` held may go, as far as it is still there."""
        for record in kept:
            if count := self._kept.pop(record, 0):
                self.host.retention.release(record)
                if count > 1:
                    self._kept[record] = count - 1

    # --- callers' wishes ----------------------------------------------------------

    def pin(self, stored: StoredPrefix, until: float) -> int:
        """Keep segments until then, wherever they are; how many tokens. Never more than half of the host's budget."""
        pinned = sum(segment.host_bytes for segment in self._pins)
        tokens = 0
        for part in stored.parts:
            segment = part.segment
            if segment.host is None:
                continue
            if segment not in self._pins:
                if pinned + segment.host_bytes > self.host.capacity // 2:
                    break
                pinned += segment.host_bytes
                self.host.retention.hold(segment.host)
            self._pins[segment] = max(until, self._pins.get(segment, until))
            tokens += part.tokens_beyond(0)
        return tokens

    def unpin_expired(self) -> None:
        """Let go of what was pinned long enough."""
        for segment in [segment for segment, until in self._pins.items() if until <= self.now]:
            del self._pins[segment]
            if segment.host is not None:
                self.host.retention.release(segment.host)

    def clear(self, scope: str | None = None) -> int:
        """Drop everything, or everything of a scope's tenant, everywhere; returns how many segments were dropped."""
        roots = [
            segment
            for segment in self._segments.values()
            if segment.parent is None and (scope is None or is_tenant_s(segment.header.scope, scope))
        ]
        count = 0
        for root in roots:
            count += sum(1 for one in _deepest_first(root) if one.is_kept)
            self._lose_all(root)
            self._forget(root)
        return count

    # --- looking in ----------------------------------------------------------

    def __len__(self) -> int:
        """Segments that are anywhere."""
        return len(self._segments) - len(self._lost)

    def segments(self) -> Iterator[KvSegment]:
        """All that are anywhere."""
        return (segment for segment in self._segments.values() if segment.is_kept)

    def check_integrity(self) -> None:
        """Raise AssertionError where budgets, chains and the tree contradict each other."""
        host = disk = 0
        for segment in self._segments.values():
            host += segment.host.nbytes if segment.host else 0
            disk += segment.disk.nbytes if segment.disk else 0
            assert segment.is_kept != (segment.header.key in self._lost), f"{segment!r} is kept and lost, or neither"
            parent = segment.parent
            if parent is not None:
                assert segment in parent.children
                assert parent.is_kept or not segment.is_kept, f"{segment!r} is stranded"
                assert segment.disk is None or parent.disk is not None, f"{segment!r} is stranded on disk"
        assert all(record.holds >= count for record, count in self._kept.items())
        assert (host, disk) == (self.host.used, self.disk.used)
        assert host <= self.host.capacity
        assert disk <= self.disk.capacity
        assert set(self._tree.runs()) == set(self._segments.values())

    def __repr__(self) -> str:
        return f"PrefixTiers({len(self)} segments, {self.host.used} bytes in host memory, {self.disk.used} on disk)"


def _deepest_first(segment: KvSegment) -> list[KvSegment]:
    """A segment and all that go on from it, children before parents."""
    order, pending = [], [segment]
    while pending:
        one = pending.pop()
        order.append(one)
        pending.extend(one.children)
    order.reverse()
    return order
