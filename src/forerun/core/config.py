"""Limits of the scheduler, under the names people know from vLLM and llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.core.memory import DENSE, MemoryKind
from forerun.core.pool import DEFAULT_MIN_PREFIX_SIMILARITY, DEFAULT_MIN_PREFIX_TOKENS
from forerun.core.segment import SEGMENT_TOKENS, SegmentSizes

MODEL_DRAFTER = "draft"


class Verification(StrEnum):
    """How the proposals of a draft model stand their test where a request samples and gave no seed.

    With a seed, and greedily, they are always matched: the answer then never depends on drafts.
    """

    AUTO = "auto"
    """Whichever has been accepting more."""
    MATCH = "match"
    REJECTION = "rejection"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Raises ValueError for limits that make no sense together."""

    n_ctx: int
    """Cells of the target's KV memory, shared by all sequences; also the longest a single request can get."""
    n_seq_max: int = 128
    """Sequence ids: running requests and cached prefixes together."""
    max_num_seqs: int = 16
    """Requests that run at the same time."""
    max_num_batched_tokens: int = 512
    """Rows of one step at most."""
    max_logit_rows: int | None = None
    """Rows of one step at most whose logits are wanted: drafted tokens keep to it. None: all of them."""
    target_itl_ms: float | None = None
    """Milliseconds between two tokens of a request at most, while others' prompts are computed beside it; None: a
    choice from what decodes cost here (core/step_budget.py)."""
    prefill_rows_beside_decode: int = 128
    """Prefill rows of one step while others are decoding, where it is not known what they cost."""
    prefill_quantum: int = 64
    """Prefill rows one request gets before it is another one's turn."""
    max_queue: int = 1024
    """Requests that wait at most; one more is refused."""
    speculation: int = 0
    """Drafted tokens a sequence and step at most; 0 turns drafting off."""
    suffix_tokens: int = 2**20
    """Tokens of past outputs that are kept to draft from; 0 none. Each takes 36 bytes (see SuffixIndex.nbytes)."""
    draft_n_ctx: int = 0
    """Cells of the draft model's KV memory; 0 where there is no draft model."""
    draft_name: str = MODEL_DRAFTER
    """What usage calls the draft model."""
    verification: Verification = Verification.AUTO
    memory: MemoryKind = DENSE
    """Where the target's memory can be cut."""
    draft_memory: MemoryKind = DENSE
    min_prefix_similarity: float = DEFAULT_MIN_PREFIX_SIMILARITY
    min_prefix_tokens: int = DEFAULT_MIN_PREFIX_TOKENS
    synthetic_acceptance: float | None = None
    """Drafts are accepted with this probability, whatever the model says: only costs are real then."""
    cache_ram: int = 0
    """Bytes of KV kept in host memory; 0: idle prefixes stay in the pool alone."""
    cache_disk: int = 0
    """Bytes of KV kept on disk."""
    retention: str = "value"
    """What goes when they are full: a name in core.value.POLICIES."""
    segment_sizes: SegmentSizes = SegmentSizes()  # noqa: RUF009 (a value)
    """What a stored segment takes."""
    segment_tokens: int = SEGMENT_TOKENS
    """Text tokens of a stored segment at most."""
    model_key: str = ""
    """Covers all that KV depends on, prompt and adapters aside."""
    splits_media: bool = False
    """Whether a media span may be evaluated in parts, a step each: not where its rows look at those behind them, nor in
    a memory with a state, which cannot go back to where the span began."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """LoRA adapters that requests may select: names, each with a digest of its content."""
    reuse_prefixes: bool = True
    """False computes every prompt from scratch: the reference that reuse is compared with."""

    def __post_init__(self) -> None:
        for name in ("n_ctx", "n_seq_max", "max_num_seqs", "max_num_batched_tokens", "max_queue", "segment_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("speculation", "suffix_tokens", "draft_n_ctx", "min_prefix_tokens", "cache_ram", "cache_disk"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.target_itl_ms is not None and not self.target_itl_ms > 0:
            raise ValueError(f"target_itl_ms must be above 0, got {self.target_itl_ms}")
        for name in ("min_prefix_similarity", "synthetic_acceptance"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.max_num_seqs > self.n_seq_max:
            raise ValueError(
                f"max_num_seqs is {self.max_num_seqs}, but there are only n_seq_max = {self.n_seq_max} ids"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs is {self.max_num_seqs}, but a step holds only "
                f"max_num_batched_tokens = {self.max_num_batched_tokens} rows"
            )
        self._check_media()

    def _check_media(self) -> None:
        if self.splits_media and self.memory.has_state:
            raise ValueError("splits_media is on, but a memory with a state cannot go back to where a span began")
