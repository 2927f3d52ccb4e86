"""One request inside the scheduler: what is known of it, how far it is computed, and what it has shown so far.

No phases: `computed` catches up with `history.size`. One token behind is a decode row, more is prefill; chunks, cache
hits, drafts and resumed requests are the same arithmetic.

    history    [ prompt ............... | output ... ]
    computed   0 ──────────────► c                       in the target's memory
    known                                 history.size
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.core.acceptance import RequestDrafting
from forerun.core.grammar import GuardedConstraint
from forerun.core.history import TokenHistory
from forerun.core.memory import MemoryKind
from forerun.core.origins import Origins, of_block
from forerun.core.pool import Sequence
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.rates import CopyRates
from forerun.core.request import FinishReason, OutputDelta, Request, TokenLogprobs, Usage
from forerun.core.retention import RetentionRecord
from forerun.core.sampling import SamplingContext
from forerun.core.step import SequenceResult, Vocabulary
from forerun.core.stopping import TextStream
from forerun.core.stored import StoredPrefix
from forerun.core.tiers import PrefixTiers
from forerun.errors import ForerunError, GrammarFailedError

_FIRST_MESSAGES, _LAST_MESSAGES = 2, 4
"""Ends of messages that are worth a checkpoint each: system prompt and tools, and the turns that may be taken back."""


@dataclass(slots=True)
class Suspicion:
    """What is held against a request that was part of a failed step."""

    until: int = 0
    """Known tokens: once so many are computed it has got past what failed."""
    alone: int = 0
    """Failed steps in which nobody else was."""
    has_drafted: bool = False
    """Whether drafts of its own were part of them."""


class RequestState:
    """Owned by the scheduler from `add` to the final delta."""

    __slots__ = (
        "accepted",
        "adapters",
        "admitted_at",
        "cached",
        "cached_disk",
        "cached_host",
        "cached_ms",
        "checkpoints",
        "computed",
        "draft_steps",
        "drafted",
        "drafting",
        "fences",
        "fetches",
        "fetching",
        "first_token_at",
        "gave_way",
        "has_counted_cache",
        "has_media",
        "history",
        "is_paused",
        "is_synthetic",
        "limit",
        "media_done",
        "number",
        "overtaken",
        "parked",
        "position_offset",
        "promised",
        "request",
        "reuses_cache",
        "sampling",
        "scope",
        "sequence",
        "steps",
        "suspicion",
        "text",
        "text_history",
        "told_progress",
        "waits_for",
        "was_cut_short",
    )

    def __init__(
        self,
        request: Request,
        vocabulary: Vocabulary,
        n_ctx: int,
        *,
        scope: str = "",
        is_synthetic: bool = False,
        reuses_cache: bool = True,
    ) -> None:
        prompt, params = request.prompt, request.params
        self.request = request
        self.history = TokenHistory(prompt)
        constraint = request.constraint and GuardedConstraint(request.constraint, vocabulary.size)
        self.sampling = SamplingContext(params, request.seed, vocabulary.end_tokens, self.history, constraint)
        self.text = TextStream(params.stop)
        self.has_media = any(segment.is_media for segment in prompt.segments)
        self.text_history = TokenHistory(PromptLayout.of_text(prompt.text_tokens)) if self.has_media else self.history
        """What a draft model sees of it: the text alone, one token after the other."""
        # The last output token is never put into memory, hence one more than there are cells.
        room = n_ctx + 1 - prompt.logical_tokens
        self.limit = room if params.max_tokens is None else min(params.max_tokens, room)
        self.position_offset = prompt.logical_tokens - prompt.native_positions
        self.sequence: Sequence | None = None
        self.computed = self.media_done = 0
        """Known tokens in memory; rows of the media span behind them that are there too: it counts once it is whole."""
        self.promised = 0
        """Logical tokens of this request that the pool's lookup knows about."""
        self.waits_for: tuple[Sequence, int] | None = None
        """A running sequence that will hold a prefix of this prompt once it has computed so many tokens."""
        self.fences: set[int] = set()
        """Chunks end here: others wait to fork the sequence there, and cannot later."""
        self.scope = scope
        """Whose KV this is: nothing is reused under another scope."""
        self.reuses_cache = reuses_cache
        """Whether it looks prefixes up and leaves its own to others."""
        self.adapters = params.adapter_set
        self.checkpoints: set[int] = set()
        """What is held there is stored, where a memory can be gone back to at stored ends alone."""
        self.fetching = StoredPrefix()
        """What is on its way from disk for it."""
        self.fetches = 0
        """How often it waited for that."""
        self.suspicion: Suspicion | None = None
        """It was part of a failed step, and has not got past that (core/recovery.py)."""
        self.number = self.overtaken = self.gave_way = 0
        """Requests that came before it; starts of others that it had to wait for although it was before them, or did
        not fit; how often it was parked for a more urgent one."""
        self.parked: tuple[RetentionRecord, ...] | None = None
        """It ran, and waits for cells to go on: what is held in host memory for it meanwhile."""
        self.is_paused = self.was_cut_short = False
        """Its reader is behind: it takes no part in steps until that has caught up. The last step with rows of it was
        cut short, and it has not got on since."""
        self.cached: int | None = None
        self.cached_host = self.cached_disk = 0
        self.cached_ms = 0.0
        self.has_counted_cache = False
        self.drafting = RequestDrafting(request.forced)
        self.drafted = self.accepted = self.steps = self.draft_steps = self.told_progress = 0
        self.is_synthetic = is_synthetic
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None

    def let_go(self, tiers: PrefixTiers | None) -> None:
        """It is parked no more: what was held for it in host memory may go."""
        if tiers is not None and self.parked:
            tiers.let_go(self.parked)
        self.parked = None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be why steps fail: it is tried apart from others, and drafts nothing."""
        return self.suspicion is not None

    @property
    def remaining(self) -> int:
        """Known tokens that are not in the target's memory."""
        return self.history.size - self.computed - self.media_done

    @property
    def output_left(self) -> int:
        """Output tokens until max_tokens or the end of the context."""
        return self.limit - self.history.output_tokens

    def native_position(self, logical: int) -> int:
        """The target's position of the token at a logical index (a legal boundary)."""
        if not self.has_media or logical >= self.history.prompt_tokens:
            return logical - self.position_offset
        boundary = self.request.prompt.boundary_at(logical)
        assert boundary is not None
        return boundary.native_position

    @property
    def text_computed(self) -> int:
        """How many tokens of its text are in the target's memory."""
        if not self.has_media:
            return self.computed
        prompt = self.request.prompt
        inside = prompt.boundary_at(min(self.computed, prompt.logical_tokens))
        assert inside is not None
        return self.computed - inside.media_tokens

    def next_media(self) -> PromptSegment | None:
        """The media span to evaluate next, or None where text comes next."""
        return self.request.prompt.media_at(self.computed) if self.has_media else None

    def coming_media(self) -> PromptSegment | None:
        """The first media span that is not all in memory, or None."""
        if not self.has_media or self.computed >= self.history.prompt_tokens:
            return None
        return self.request.prompt.media_at_or_after(self.computed)

    def text_run_end(self) -> int:
        """Where the text that comes next ends: at a media span, or with what is known."""
        if not self.has_media or self.computed >= self.history.prompt_tokens:
            return self.history.size
        end = self.computed + self.request.prompt.text_tokens_at(self.computed).size
        return end if end < self.history.prompt_tokens else self.history.size

    def chunk_end(self) -> int:
        """Where the next chunk ends at the latest."""
        ends = [fence for fence in (*self.fences, *self.checkpoints) if fence > self.computed]
        return min([self.text_run_end(), *ends])

    def choose_checkpoints(self, memory: MemoryKind, known: int) -> None:
        """Where to store what is held while it is whole, so that later prompts can start there.

        At the end of the prompt, and where others went another way after `known` tokens; where there is a state also at
        the ends of messages, and before the last token, which the same prompt would have to evaluate.
        """
        prompt = self.history.slice(0, self.history.prompt_tokens)
        wanted = [known, prompt.size]
        if memory.has_state:
            ends = (np.flatnonzero(np.isin(prompt, list(self.sampling.end_tokens))) + 1).tolist()
            wanted += [*ends[:_FIRST_MESSAGES], *ends[-_LAST_MESSAGES:], prompt.size - 1]
        legal = (at for at in wanted if self.computed < at <= prompt.size)
        self.checkpoints = {at for at in legal if self.request.prompt.boundary_at(at) is not None}

    def count_restored(self, sequence: Sequence, stored: StoredPrefix | None, rates: CopyRates) -> None:
        """Where the cached part of the prompt came from; once, as for `cached`."""
        if self.has_counted_cache:
            return
        self.has_counted_cache = True
        if stored is not None and sequence.restored_from is not None:
            held = sequence.restored_from.logical_tokens
            self.cached_disk = sum(part.tokens_beyond(held) for part in stored.parts if part.segment.was_fetched)
            self.cached_host = sum(part.tokens_beyond(held) for part in stored.parts) - self.cached_disk
        if rates.prefill_ms is not None:
            resident = (self.cached or 0) - self.cached_host - self.cached_disk
            self.cached_ms = rates.saving(self.cached_host, self.cached_disk) + resident * rates.prefill_ms

    def layout(self, tokens: int) -> PromptLayout:
        """The first `tokens` known logical tokens as a layout."""
        prompt = self.request.prompt
        if tokens >= self.history.prompt_tokens:
            return prompt.extended([PromptSegment(self.history.slice(self.history.prompt_tokens, tokens), None)])
        boundary = prompt.boundary_at(tokens)
        assert boundary is not None
        return prompt.prefix(boundary)

    def take_tokens(
        self, result: SequenceResult, vocabulary: Vocabulary, now: float, proposed: Origins = ()
    ) -> OutputDelta:
        """Add what a step gave, up to where the request ends; says so in the delta. `proposed`: who drafted for it."""
        if self.first_token_at is None:
            self.first_token_at = now
        shown: list[str] = []
        count = 0
        finish: FinishReason | None = None
        error: GrammarFailedError | None = None
        for token in result.tokens:
            count += 1
            error = self._cut_short(token)
            self.history.append(token)
            if self.has_media:
                self.text_history.append(token)
            finish = self._show(token, vocabulary, shown)
            if finish is not None:
                break
        if error is not None:
            finish = FinishReason.ERROR
        accepted = min(result.accepted, count)
        self.drafted += result.drafted
        self.accepted += accepted
        self.drafting.count(proposed, accepted)
        self.steps += 1
        self.draft_steps += result.drafted > 0
        logprobs = result.logprobs[:count] if result.logprobs is not None else None
        origins = of_block(proposed, result.accepted, count)
        return self.delta("".join(shown), result.tokens[:count], logprobs, finish, now, error, origins)

    def _cut_short(self, token: int) -> GrammarFailedError | None:
        """What to say where an answer ends although its grammar is not complete: there was nothing left to choose."""
        constraint = self.sampling.constraint
        if constraint is None or token not in self.sampling.end_tokens:
            return None
        if constraint.accepted(self.history, (), (token,)):
            return None
        banned = "none of the tokens that it lets come may be used (logit_bias), or none exists"
        return GrammarFailedError(
            f"after {self.history.output_tokens} tokens the answer cannot go on under its grammar: "
            f"{constraint.problem or banned}"
        )

    def _show(self, token: int, vocabulary: Vocabulary, shown: list[str]) -> FinishReason | None:
        ends = token in self.sampling.end_tokens
        if not ends:
            piece = vocabulary.piece(token) or self.request.params.shown_tokens.get(token, "").encode()
            shown.append(self.text.push(piece))
        if ends or self.text.stopped:
            shown.append(self.text.finish())
            return FinishReason.STOP
        if self.history.output_tokens >= self.limit:
            shown.append(self.text.finish())
            return FinishReason.LENGTH
        return None

    def delta(
        self,
        text: str,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...] | None,
        finish: FinishReason | None,
        now: float,
        error: ForerunError | None = None,
        origins: Origins = (),
    ) -> OutputDelta:
        usage = None if finish is None else self.usage(now)
        return OutputDelta(
            self.request.id,
            text,
            tokens,
            logprobs,
            finish,
            usage,
            error,
            origins,
            self.is_synthetic,
            stop_string=self.text.stopped_by,
        )

    def progress(self) -> OutputDelta | None:
        """How far the prompt has been read; None where nobody wants to know, or nothing is new: a request that lost its
        memory reads its prompt again, and goes on telling when it is where it was."""
        total = self.history.prompt_tokens
        done = min(self.computed, total)
        if not self.request.reports_progress or self.history.output_tokens or done <= self.told_progress:
            return None
        self.told_progress = done
        return OutputDelta(self.request.id, "", (), is_synthetic=self.is_synthetic, prefill_done=(done, total))

    def usage(self, now: float) -> Usage:
        arrival = self.request.arrival
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        return Usage(
            prompt_tokens=self.history.prompt_tokens,
            cached_tokens=self.cached or 0,
            cached_host_tokens=self.cached_host,
            cached_disk_tokens=self.cached_disk,
            cache_saved_ms=self.cached_ms,
            output_tokens=self.history.output_tokens,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            drafters=dict(self.drafting.by_drafter),
            steps=self.steps,
            draft_steps=self.draft_steps,
            saved_ms=self.drafting.saved_ms,
            queue_ms=(admitted - arrival) * 1e3,
            prefill_ms=(first - admitted) * 1e3,
            decode_ms=(now - first) * 1e3,
            is_synthetic=self.is_synthetic,
        )

    def __repr__(self) -> str:
        where = f"sequence {self.sequence.id}" if self.sequence else "waiting"
        return f"RequestState({self.request.id}: {where}, {self.computed} of {self.history.size} computed)"


def sequence_of(state: RequestState) -> Sequence:
    """The sequence a running request owns."""
    assert state.sequence is not None, f"{state!r} is not running"
    return state.sequence
