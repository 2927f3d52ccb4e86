"""One step as values: what the scheduler decides (StepPlan), what the runner learned (StepResult), the Runner protocol.

Life of a step: operations first (in order), then draft fills, then drafting, then one target decode of all decode and
prefill rows, then verification, then rejected rows are taken back in both memories: cut off or, where a memory cannot
be cut, by going back to a copy made before the decode and evaluating the confirmed rows again. After a successful step
the target holds of each decode row's sequence its pending token and every token of its result but the last.

A failed step returns `failure`; the memory of every sequence in the plan's rows is then unknown, but for those in
`kept`, and the scheduler clears those sequences before it uses them again. Operations of a failed step count as
applied. A sequence that fails by itself, in a step that is done, is one of `faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from forerun.core.adapters import AdapterSet
from forerun.core.encoding import MediaEvent, MediaOperation
from forerun.core.origins import Origins, first
from forerun.core.prompt import PromptSegment, SpeculativePosition, Tokens
from forerun.core.request import Request, TokenLogprobs
from forerun.core.sampling import SamplingContext, TokenDistribution
from forerun.core.segment import SegmentHeader, StoreEvent

# --- memory operations ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClearSequence:
    """Forget all of a sequence, in both memories."""

    sequence_id: int


@dataclass(frozen=True, slots=True)
class TruncateSequence:
    """Keep what lies before `position`, in each memory; the draft's may already be shorter."""

    sequence_id: int
    position: SpeculativePosition


@dataclass(frozen=True, slots=True)
class ForkSequence:
    """Give the empty `target_id` what `source_id` holds before `position`, in each memory, sharing the cells."""

    source_id: int
    target_id: int
    position: SpeculativePosition


@dataclass(frozen=True, slots=True)
class StoreSegment:
    """Copy a run of what a sequence holds to the store; the sequence stays as it is.

    Where memory has a state the sequence holds exactly what lies before `header.stop`. Failing costs the copy only.
    """

    sequence_id: int
    header: SegmentHeader


@dataclass(frozen=True, slots=True)
class RestoreSegment:
    """Give a sequence that holds what lies before `start` (in each memory) a stored run's part up to `stop`.

    `start` is at or after the segment's own start, `stop` at or before its own stop; with a state both are the same.
    The draft's memory gets what the segment has of it up to `stop.draft`; it may have less than the target's.
    """

    sequence_id: int
    key: str
    start: SpeculativePosition
    stop: SpeculativePosition


@dataclass(frozen=True, slots=True)
class DropSegment:
    """Forget a segment in host memory."""

    key: str


@dataclass(frozen=True, slots=True)
class PersistSegment:
    """Begin to write a segment in host memory to disk."""

    key: str


@dataclass(frozen=True, slots=True)
class FetchSegment:
    """Begin to read a segment from disk into host memory."""

    key: str
    tokens: int = 0
    """How many it holds."""


@dataclass(frozen=True, slots=True)
class RemoveSegment:
    """Begin to delete a segment on disk."""

    key: str


SegmentOperation: TypeAlias = (
    StoreSegment | RestoreSegment | DropSegment | PersistSegment | FetchSegment | RemoveSegment
)
KvOperation: TypeAlias = ClearSequence | TruncateSequence | ForkSequence | SegmentOperation


def changed_sequence(operation: KvOperation) -> int | None:
    """The sequence whose memory an operation changes, if any."""
    match operation:
        case ClearSequence(sequence_id) | TruncateSequence(sequence_id) | RestoreSegment(sequence_id):
            return sequence_id
        case ForkSequence(_, target_id):
            return target_id
    return None


# --- rows ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """A sequence's pending token, followed by proposed tokens to verify. Rows at position, position + 1, ..."""

    sequence_id: int
    token: int
    position: int
    """Native position of `token`."""
    sampling: SamplingContext
    max_tokens: int
    """At most this many tokens may come out of the step for this sequence (>= 1)."""
    drafts: tuple[int, ...] = ()
    """Proposed by a drafter of the scheduler's; a draft model's proposals for the sequence follow its DraftRequest."""
    drafter: str = ""
    """The drafter that proposed them."""
    grade: int = 0
    """The grade of that proposal."""
    origins: Origins = ()
    """Who proposed `drafts`, where more than one drafter did."""


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """A run of prompt text. Where `sampling` is set the run ends the prompt: a token is sampled after its last row."""

    sequence_id: int
    tokens: Tokens
    position: int
    sampling: SamplingContext | None = None


@dataclass(frozen=True, slots=True)
class MediaRows:
    """Rows [start, stop) of a media span that is encoded. `sampling` as in PrefillRows."""

    sequence_id: int
    media: PromptSegment
    position: int
    """Native position at which the span begins."""
    start: int
    stop: int
    sampling: SamplingContext | None = None

    @property
    def is_last(self) -> bool:
        """Whether the span is whole in memory then."""
        return self.stop == self.media.logical_tokens


def tokens_of(row: DecodeRow | PrefillRows | MediaRows) -> int:
    """Known tokens that a row, or a run of rows, adds to a sequence's memory; drafts are not counted."""
    match row:
        case PrefillRows(tokens=tokens):
            return int(tokens.size)
        case MediaRows(start=start, stop=stop):
            return stop - start
    return 1


@dataclass(frozen=True, slots=True)
class DraftFill:
    """Text to run through the draft model so that its memory catches up; nothing is sampled."""

    sequence_id: int
    tokens: Tokens
    position: int
    """Dense draft position of the first token."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Ask for up to `limit` tokens that may follow `tokens`.

    `tokens` is all that is known of the sequence, the pending token last; ids below 0 stand for media, which a request
    to a draft model leaves out. `held` is how many of them a draft model's memory already holds: it evaluates
    tokens[held:] and then its own proposals. `request` is whose text it is (its id, tenant, parameters).
    """

    sequence_id: int
    tokens: Tokens
    held: int
    limit: int
    request: Request | None = None
    sampling: SamplingContext | None = None
    """How the target will choose, for a draft that chooses alike; None asks for the likeliest."""
    wants_distributions: bool = False
    """Say what proposals were drawn from: they are verified by rejection sampling then."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may come next, the first one first; empty where a drafter has no idea.

    `grade` groups proposals of one drafter that are about equally sure (a longer match, say): acceptance is learned for
    each grade.
    """

    tokens: tuple[int, ...] = ()
    grade: int = 0
    origins: Origins = ()
    """Who proposed which tokens, where several drafters did; empty: the drafter that is asked."""
    drawn_from: tuple[TokenDistribution, ...] = ()
    """What each token was drawn from at random, where the request wanted that; else empty."""

    def shortened(self, length: int) -> Proposal:
        """Its first `length` tokens."""
        return Proposal(self.tokens[:length], self.grade, first(self.origins, length), self.drawn_from[:length])


class Drafter(Protocol):
    """Proposes tokens that may come next. Proposals make a step faster or slower, never an answer different."""

    @property
    def name(self) -> str:
        """Shown in usage and metrics."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """For each request, in order, at most `limit` tokens."""
        ...


# --- plan and result ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything one step does. `now` is the time the plan was made, in seconds of the engine clock."""

    now: float
    operations: tuple[KvOperation, ...] = ()
    draft_fills: tuple[DraftFill, ...] = ()
    draft_requests: tuple[DraftRequest, ...] = ()
    """For the draft model. Each belongs to a decode row that carries no drafts of its own."""
    decode: tuple[DecodeRow, ...] = ()
    """In order of sequence id, so that native graphs can be reused."""
    prefill: tuple[PrefillRows | MediaRows, ...] = ()
    adapters: AdapterSet = ()
    """What the target applies to all rows; () where there are none."""
    media: tuple[MediaOperation, ...] = ()
    """What is to be encoded, beside this step and those that follow."""
    waits_for_store: bool = False
    """Nothing can be evaluated before the store has finished something: wait for it, a moment at most."""
    waits_for_media: bool = False
    """The same for a span that is being encoded."""

    def sequence_ids(self) -> list[int]:
        """Sequences with target rows in this step."""
        return [row.sequence_id for row in (*self.decode, *self.prefill)]


def prompt_rows(plan: StepPlan) -> int:
    """Rows of prompt text in a step; media are not counted."""
    return sum(rows.tokens.size for rows in plan.prefill if isinstance(rows, PrefillRows))


def media_rows(plan: StepPlan) -> int:
    """Rows of media spans in a step."""
    return sum(rows.stop - rows.start for rows in plan.prefill if isinstance(rows, MediaRows))


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What verification gave one sequence: at least one token; all but the last are in the target's memory."""

    tokens: tuple[int, ...]
    drafted: int = 0
    """How many tokens were proposed."""
    accepted: int = 0
    """How many proposals the target's own choice confirmed."""
    logprobs: tuple[TokenLogprobs, ...] | None = None


class FailureKind(StrEnum):
    """Why a step failed."""

    NO_ROOM = "no room in the KV memory"
    ABORTED = "aborted"
    FAILED = "native decode failed"


@dataclass(frozen=True, slots=True)
class StepFailure:
    kind: FailureKind
    message: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"


@dataclass(frozen=True, slots=True)
class SequenceFault:
    """Why a sequence got no token in a step that was done for the others. Its memory is unknown then."""

    message: str
    is_own: bool = False
    """The request's own doing, which trying again does not change: its grammar raised, or it bans every token. Else the
    model's: logits that are no numbers."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step's parts, from which costs are learned. 0 where a part did not run or was not measured."""

    target: float = 0.0
    """The target's decode and verification, without rows that were evaluated again after a rejection."""
    draft: float = 0.0
    """Drafting by the draft model, catch-up included."""
    storing: float = 0.0
    """Copying segments to the store."""
    restoring: float = 0.0
    """Copying segments back."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the runner learned. Of each row of the plan that samples, `sequences` has an entry, or `faults`."""

    elapsed: float
    """Seconds the step took."""
    sequences: Mapping[int, SequenceResult] = field(default_factory=dict)
    draft_held: Mapping[int, int] = field(default_factory=dict)
    """Dense tokens the draft's memory holds after the step, of every sequence with a draft fill or request, or that got
    a stored segment back. They may be fewer than planned: a draft model that fails drafts less, and fails no step."""
    faults: Mapping[int, SequenceFault] = field(default_factory=dict)
    draft_faults: tuple[int, ...] = ()
    """Sequences for which the draft model failed (which is not: had no room). They go on without it."""
    failure: StepFailure | None = None
    kept: Mapping[int, int] = field(default_factory=dict)
    """Of a failed step: the sequences whose memory is known all the same, since only the evaluation failed. They hold
    what they held before, all operations done, and so many of their prefill rows. Empty where an operation failed."""
    times: StepTimes = StepTimes()
    held_from: Mapping[int, int] = field(default_factory=dict)
    """First native position that is still there, of every sequence whose sliding window has lost some."""
    stored: Mapping[str, int] = field(default_factory=dict)
    """Bytes in host memory of each segment the plan stores, also of a failed step's; 0 where that failed."""
    stored_from: Mapping[str, int] = field(default_factory=dict)
    """What `SegmentHeader.whole_from` became, of every stored segment whose sliding window had lost cells."""
    unrestorable: tuple[str, ...] = ()
    """Keys of segments that could not be restored although there was room, which fails the step: they are not to be
    tried again."""
    store_events: tuple[StoreEvent, ...] = ()
    """What the store finished in the background."""
    media_events: tuple[MediaEvent, ...] = ()
    """What was encoded in the background, or could not be."""


class Runner(Protocol):
    """Performs plans on a model. Called by one thread only."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Do what the plan says. Faults of the model come back as `failure`, never as an exception."""
        ...

    def close(self) -> None:
        """Free what is held; safe to call twice."""
        ...


class Vocabulary(Protocol):
    """What scheduling needs to know of the model's vocabulary."""

    @property
    def size(self) -> int: ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a turn."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the text; empty for control tokens. A piece may be part of a UTF-8 character."""
        ...
