"""What an engine is made of, as the user says it: every field checked before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from forerun.core.config import Verification
from forerun.core.request import AUTO, MAX_DRAFT_TOKENS, OFF
from forerun.core.segment import SEGMENT_TOKENS
from forerun.core.step import Drafter
from forerun.errors import InvalidConfigError
from forerun.plugins import DrafterFactory

MAX_AUTO_DRAFT_TOKENS = 32
"""Drafted tokens a step and sequence at most, however well they are accepted."""
DEFAULT_MAX_NUM_SEQS = 16
DEFAULT_N_SEQ_MAX = 128
LOGIT_ROWS = 128
"""Rows of a step that can have logits without a fixed draft length: as many as costs are measured for. Each takes the
vocabulary's width in memory, twice."""
_IDLE_STATES = 16
"""Cached prefixes that recurrent and hybrid models have ids for."""
MAX_SEQUENCE_IDS = 256
"""llama.cpp's LLAMA_MAX_SEQ."""

MAX_N_CTX = 2**24
"""llama.cpp fills about 40 bytes a cell before it allocates the cells themselves: no more, or the system ends us."""

_LIMITS: dict[str, tuple[int, int]] = {
    "n_ctx": (1, MAX_N_CTX),
    "draft_n_ctx": (1, MAX_N_CTX),
    "max_num_batched_tokens": (1, 2**20),
    "n_ubatch": (1, 2**20),
    "max_num_seqs": (1, MAX_SEQUENCE_IDS),
    "n_seq_max": (1, MAX_SEQUENCE_IDS),
    "max_queue": (1, 2**31 - 1),
    "n_threads": (1, 1024),
    "n_gpu_layers": (-1, 2**31 - 1),
    "speculation": (0, MAX_DRAFT_TOKENS),
    "suffix_tokens": (0, 2**26),
    "cache_ram": (0, 2**50),
    "cache_disk": (1, 2**60),
    "media_cache": (0, 2**50),
}
_OPTIONAL = {
    *("n_ctx", "draft_n_ctx", "n_ubatch", "max_num_seqs", "n_seq_max"),
    *("n_threads", "speculation", "cache_ram"),
}
MAX_TARGET_ITL_MS = 60_000.0
DEFAULT_CACHE_DISK = 16 * 2**30
DEFAULT_MEDIA_CACHE = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is made of. Raises InvalidConfigError, naming the field, for values that make no sense."""

    model: str
    """Path of a GGUF file (a Path too), an id of the catalog ("smollm2"), which brings its draft where `draft`, `mtp`
    and `speculation` say nothing else, or what a model was pulled as.
    """
    draft: str | None = None
    """A draft model with the same vocabulary, named the same way."""
    projector: str | None = None
    """A GGUF file (a Path too) with the model's projector, often called mmproj: prompts may then hold pictures. None:
    what the catalog says of a model that is named by its id."""
    n_ctx: int | None = None
    """KV cells, all sequences together. None: the model's training context, at most 32,768, halved until it fits
    (models/preflight.py)."""
    mtp: bool | None = None
    """Let the model's own MTP (NextN) head draft. True: or refuse to load, saying why. None: where it has a head that
    can, speculation is on and there is no `draft`.
    """
    draft_n_ctx: int | None = None
    """KV cells of the draft model or MTP head. None: as many as the target's, at most its training context."""
    max_num_batched_tokens: int = 512
    """Rows of one step at most (llama.cpp's n_batch)."""
    n_ubatch: int | None = None
    """Rows computed at a time inside a step. None: 512, or 128 without flash attention, which takes memory for each of
    them and every cell."""
    flash_attention: bool | None = None
    """llama.cpp's flash attention. None: where layers are on a GPU. On a CPU few rows over many cells take half the
    time without it: drafts that are verified, prompts beside answers."""
    max_num_seqs: int | None = None
    """Requests that run at the same time. None: 16, or as many as there is memory for where each takes a state of its
    own."""
    n_seq_max: int | None = None
    """Sequence ids: running requests and cached prefixes together. None: DEFAULT_N_SEQ_MAX, or a few more than
    max_num_seqs for recurrent and hybrid models, which hold a whole state for each id.
    """
    max_queue: int = 2**31 - 1
    """Requests that may wait; one more is refused."""
    n_threads: int | None = None
    """CPU threads. None: the physical cores this process may run on. While other programs use cores, as many fewer
    (Linux, without flash attention; decision 38)."""
    n_gpu_layers: int = -1
    """Layers on the GPU where llama.cpp has one; -1 all."""
    speculation: int | Literal["auto", "off"] | None = None
    """"auto": drafts go where measured costs and acceptance say they pay, zero included. A number: so many drafted
    tokens a step and sequence at most, whatever they cost; 0 is "off". None: "auto" with `draft`,
    `mtp` or `drafter`, off without.
    Requests may ask for less (SamplingParams.speculation).
    """
    drafter: str | Drafter | DrafterFactory | None = None
    """A drafter of your own beside Forerun's: "module:factory", a factory, or the drafter itself (docs/drafters.md)."""
    suffix_tokens: int = 2**20
    """Tokens of past outputs that are kept to draft from, 36 bytes each; 0 none."""
    cache_ram: int | None = None
    """Bytes of host memory for prefixes that leave the pool; 0 none. None: a quarter of what is free beside the models,
    at least 16 MiB and at most 8 GiB.
    """
    cache_dir: str | None = None
    """A directory (a Path too) that keeps prefixes over restarts, made where it is not there; it must be yours alone.
    None keeps none.
    """
    cache_disk: int = DEFAULT_CACHE_DISK
    """Bytes of files in `cache_dir`, all models together."""
    media_cache: int = DEFAULT_MEDIA_CACHE
    """Bytes of host memory for what pictures were encoded to, so that one that is sent again is not encoded again; 0
    none. Of `cache_disk` an eighth is theirs too where there is a projector."""
    synthetic_acceptance: float | None = None
    """For measuring only: each drafted token is accepted with this probability (0 to 1), whatever the model says. Costs
    are real, answers are not, and every output says so. Without a draft model a dummy drafts, as much as it may;
    `speculation` is then "auto" where nothing is said.
    """
    verification: Literal["auto", "match", "rejection"] = "auto"
    """How a draft model's proposals are verified where a request samples and gives no seed: "match" them with what is
    chosen anyway, by "rejection" sampling, which accepts a little more, or "auto": by what has been accepting more.
    """
    adapters: Mapping[str, str | os.PathLike[str]] = field(default_factory=dict)
    """LoRA adapters of the model, GGUF files by the names under which requests select them (SamplingParams.adapters).
    All are loaded at start, and none is applied unless asked for.
    """
    chat_template: str | None = None
    """A file with the Jinja template (a Path too) that conversations are written with instead of the model's own."""
    target_itl_ms: float | Literal["auto"] | None = None
    """Milliseconds between two tokens of an answer at most while other prompts are computed beside it. "auto": chosen
    from what decodes cost here, which is measured where it is not known yet (a few seconds, once). None: the same where
    it is known, else 128 rows of prompts a step.
    """
    recalibrate: bool = False
    """Measure costs again, also where they are known of this model, build and machine."""
    reuse_prefixes: bool = True
    """False computes every prompt from scratch."""
    record: str | None = None
    """A file (a Path too) to which the engine writes everything it is told and decides, for `forerun replay`: no text.
    It goes on behind what is there.
    """
    record_text: bool = False
    """Write prompts and answers to it too."""
    checks_integrity: bool = False
    """Check every owner's bookkeeping whenever the engine goes idle."""

    def __post_init__(self) -> None:
        for name in ("model", "draft", "projector", "cache_dir", "chat_template", "record"):
            object.__setattr__(self, name, _file_name(name, getattr(self, name)))
        for name, (low, high) in _LIMITS.items():
            if name != "speculation" or _is_number(name, self.speculation, (AUTO, OFF)):
                _check(name, getattr(self, name), low, high)
        _check_share("synthetic_acceptance", self.synthetic_acceptance)
        _check_latency("target_itl_ms", self.target_itl_ms)
        self._check_cache()
        object.__setattr__(self, "adapters", _adapter_files(self.adapters))
        self._check_mtp()
        if self.record_text and self.record is None:
            _refuse("record_text", "there is no recording to write text to: give record a file")
        if self.verification not in list(Verification):
            _refuse("verification", f"must be one of {', '.join(Verification)}, got {self.verification!r}")
        if self.n_seq_max is not None and self.running > self.n_seq_max:
            _refuse("max_num_seqs", f"is {self.max_num_seqs}, but there are only n_seq_max = {self.n_seq_max} ids")
        if self.running > self.max_num_batched_tokens:
            rows = f"max_num_batched_tokens = {self.max_num_batched_tokens} rows"
            _refuse("max_num_seqs", f"is {self.max_num_seqs}, but a step holds only {rows}")

    def _check_mtp(self) -> None:
        if self.mtp is not None and not isinstance(self.mtp, bool):
            _refuse("mtp", f"must be true, false or None, got {self.mtp!r}")
        if self.mtp and self.draft is not None:
            _refuse("mtp", f"there is the draft model {self.draft} already; give one of the two")
        if self.mtp and not self.draft_tokens:
            _refuse("mtp", "an MTP head drafts, but speculation is 0")

    def _check_cache(self) -> None:
        if self.cache_dir is None:
            return
        if not self.cache_dir:
            _refuse("cache_dir", "the name is empty: give the path of a directory")
        if self.cache_ram == 0:
            _refuse("cache_dir", "prefixes reach the disk through host memory, but cache_ram is 0: give it some")
        if os.name != "posix":
            _refuse("cache_dir", "this system cannot keep files to one user: leave it out, cache_ram works here too")

    @property
    def running(self) -> int:
        """Requests that run at the same time: as many as somebody says, else DEFAULT_MAX_NUM_SEQS within what else is
        said."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        return min(DEFAULT_MAX_NUM_SEQS, self.n_seq_max or DEFAULT_MAX_NUM_SEQS, self.max_num_batched_tokens)

    def sequence_ids(self, *, has_state: bool) -> int:
        """Ids of requests and cached prefixes: cheap where memory is cells, a whole state each where it is one."""
        if self.n_seq_max is not None:
            return self.n_seq_max
        if not has_state:
            return max(DEFAULT_N_SEQ_MAX, self.running)
        room = MAX_SEQUENCE_IDS - self.running - self.scratch_ids
        return min(self.running + _IDLE_STATES, max(room, self.running))

    def native_ids(self, *, has_state: bool) -> int:
        """Ids that a context needs: those of `sequence_ids`, then with a state one for each request whose drafts may
        have to be taken back, then one to copy stored prefixes through.

        Raises InvalidConfigError where llama.cpp has not so many.
        """
        ids = self.sequence_ids(has_state=has_state)
        spare, scratch = self.rollback_ids(has_state=has_state), self.scratch_ids
        if ids + spare > MAX_SEQUENCE_IDS:
            _refuse(
                "n_seq_max",
                f"is {ids}; with speculation, a recurrent or hybrid model needs max_num_seqs = {self.running} ids "
                f"beside it to take rejected drafts back, and there are {MAX_SEQUENCE_IDS} in all",
            )
        if ids + spare + scratch > MAX_SEQUENCE_IDS:
            beside = f" and {spare} to take rejected drafts back" if spare else ""
            _refuse(
                "n_seq_max",
                f"is {ids}; {scratch} id beside it is needed to copy prefixes out of the pool{beside}, and there are "
                f"{MAX_SEQUENCE_IDS} in all",
            )
        return ids + spare + scratch

    def rollback_ids(self, *, has_state: bool) -> int:
        """Ids for copies of sequences whose drafts may have to be taken back."""
        return self.running if has_state and self.draft_tokens else 0

    @property
    def logit_rows(self) -> int:
        """Rows of one step whose logits are wanted, at most: those that may be sampled from, and drafted tokens."""
        drafted = 1 if self.drafts_by_gain else self.draft_tokens
        return min(self.max_num_batched_tokens, max(LOGIT_ROWS, self.running * (1 + drafted)))

    @property
    def moves_prefixes(self) -> bool:
        """Whether prefixes leave the pool for host memory and come back."""
        return self.reuse_prefixes and self.cache_ram != 0

    @property
    def scratch_ids(self) -> int:
        """Ids to copy stored prefixes through; the last ones of a context."""
        return int(self.moves_prefixes)

    @property
    def scratch_cells(self) -> int:
        """Cells beside those of the pool: a segment of which a part is wanted is all in memory for a moment."""
        return SEGMENT_TOKENS if self.moves_prefixes else 0

    @property
    def draft_tokens(self) -> int:
        """Drafted tokens a step and sequence at most."""
        if self.drafts_by_gain:
            return MAX_AUTO_DRAFT_TOKENS
        return self.speculation if isinstance(self.speculation, int) else 0

    @property
    def latency_ms(self) -> float | None:
        """The target latency in milliseconds; None: a choice from what decodes cost."""
        return None if self.target_itl_ms == AUTO else self.target_itl_ms

    @property
    def drafts_by_gain(self) -> bool:
        """Whether draft lengths follow measured costs."""
        drafters = (self.draft, self.mtp or None, self.drafter, self.synthetic_acceptance)
        has_drafter = any(given is not None for given in drafters)
        return self.speculation == AUTO or (self.speculation is None and has_drafter)


def _file_name(name: str, value: object) -> str | None:
    """A name or path as text: callers may give a Path."""
    if value is None and name != "model":
        return None
    if not isinstance(value, str | os.PathLike):
        known = " or a known name" if name in ("model", "draft") else ""
        _refuse(name, f"must be a path{known}, got {value!r}")
    return os.fsdecode(value)


def _adapter_files(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        _refuse("adapters", f"maps names to files, got {given!r}")
    files: dict[str, str] = {}
    for name, file in given.items():
        if not isinstance(name, str) or not name or "=" in name:
            _refuse("adapters", f"a name is text without '=', got {name!r}")
        if not isinstance(file, str | os.PathLike) or not os.fspath(file):
            _refuse("adapters", f"the file of {name!r} must be a path, got {file!r}")
        files[name] = os.fsdecode(file)
    return files


def _check(name: str, value: object, low: int, high: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(name, f"must be a whole number, got {value!r}")
    if not low <= value <= high:
        _refuse(name, f"must lie between {low} and {high}, got {value}")


def _is_number(name: str, value: object, words: tuple[str, ...]) -> bool:
    """Whether a value is to be checked as a number; False for one of `words`."""
    if isinstance(value, str) and value not in words:
        _refuse(name, f"must be a whole number or one of {', '.join(map(repr, words))}, got {value!r}")
    return not isinstance(value, str)


def _check_share(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, f"must be a number, got {value!r}")
    if not 0 <= value <= 1:  # also refuses NaN
        _refuse(name, f"must lie between 0 and 1, got {value}")


def _check_latency(name: str, value: object) -> None:
    if value is None or value == AUTO:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, f"must be milliseconds or {AUTO!r}, got {value!r}")
    if not 1 <= value <= MAX_TARGET_ITL_MS:  # also refuses NaN
        _refuse(name, f"must lie between 1 and {MAX_TARGET_ITL_MS:g} ms, got {value}")


def _refuse(name: str, message: str) -> NoReturn:
    raise InvalidConfigError(name, message)
