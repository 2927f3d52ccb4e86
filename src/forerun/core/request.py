"""What a caller asks for and what comes back: sampling parameters, finish reasons, usage, output deltas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, Protocol

from forerun.core.adapters import AdapterSet, adapter_set
from forerun.core.grammar import Grammar, TokenConstraint
from forerun.core.origins import Origins
from forerun.core.prompt import PromptLayout, Tokens
from forerun.errors import ForerunError, InvalidRequestError

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_LOGIT_BIAS = 100.0
MAX_DRAFT_TOKENS = 64
AUTO: Final = "auto"
"""Draft as far as measured costs and acceptance say it pays."""
OFF: Final = "off"
"""Draft nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a request ends. Names and order of application are llama.cpp's:
    logit_bias, penalties, top_k, typical_p, top_p, min_p, temperature. Temperature 0 is greedy.

    Raises InvalidRequestError, naming the field, for values that make no sense.
    """

    max_tokens: int | None = None
    """At most this many output tokens; None runs to the end of the context."""
    temperature: float = 0.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    """How many of the latest tokens (prompt included) penalties look at; 0 none, -1 all."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids: -100 to 100, or -inf, which bans a token whatever its logit."""
    seed: int | None = None
    """Same seed, same answer, whatever is drafted. None draws one for the request; drafts may then have a say in which
    of the model's answers it is."""
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these strings."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Report each token's log probability and this many alternatives (0: the token alone)."""
    speculation: int | Literal["auto", "off"] | None = None
    """What of the engine's speculation this request takes: "off" (or 0) drafts nothing for it, a number at most so many
    tokens a step, "auto" as far as it pays, None what the engine does. A request asks for less than its engine does,
    never for more: where the engine drafts nothing, so does every request. "auto" is refused by an engine with a fixed
    number of drafts, which has measured no costs to decide by.
    """
    shown_tokens: Mapping[int, str] = field(default_factory=dict)
    """Control tokens that are part of the text, with their spelling; other ones are left out, and so are those that end
    the answer."""
    adapters: Mapping[str, float] | str = field(default_factory=dict)
    """LoRA adapters of the engine's by name, each with its scale (not 0, at most 100 either way); a name alone is
    applied as it is, with scale 1. Nothing is reused that was computed with others, or with other scales."""
    grammar: Grammar | None = None
    """What the answer must look like. All other settings choose among the tokens it lets come; it ends where it is
    complete, whatever `ignore_eos` and `logit_bias` say of end tokens, and earlier at a stop string or stop token."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _as_tuple("stop", self.stop, str))
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids, int))
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            _check_range(name, value, low, high)
            if name in _WHOLE_NUMBERS:
                _check_integer(name, value)
        self._check_speculation()
        self._check_stops()
        self._check_logit_bias()
        _check_bool("ignore_eos", self.ignore_eos)
        self._check_shown_tokens()
        given: object = self.grammar
        if given is not None and not isinstance(given, Grammar):
            raise InvalidRequestError("grammar", f"must be a Grammar, got {type(given).__name__}")
        object.__setattr__(self, "adapters", dict(adapter_set(self.adapters)))

    def _check_speculation(self) -> None:
        value = self.speculation
        if value is None or value in (AUTO, OFF):
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequestError(
                "speculation", f"must be a whole number up to {MAX_DRAFT_TOKENS}, 'auto' or 'off', got {value!r}"
            )
        _check_range("speculation", value, 0, MAX_DRAFT_TOKENS)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequestError("stop", f"at most {MAX_STOPS} stop strings, got {len(self.stop)}")
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_LENGTH:
            raise InvalidRequestError("stop", f"a stop string has at most {MAX_STOP_LENGTH} characters, got {longest}")
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop", "a stop string is empty; leave it out instead")
        if any("\ud800" <= character <= "\udfff" for text in self.stop for character in text):
            raise InvalidRequestError("stop", "a stop string is not valid Unicode and would never be found")
        if any(token < 0 for token in self.stop_token_ids):
            raise InvalidRequestError("stop_token_ids", f"token ids are not negative, got {min(self.stop_token_ids)}")

    def _check_shown_tokens(self) -> None:
        given: object = self.shown_tokens
        if not isinstance(given, Mapping):
            raise InvalidRequestError("shown_tokens", f"maps token ids to their spelling, got {given!r}")
        object.__setattr__(self, "shown_tokens", dict(given))
        for token, text in given.items():
            if isinstance(token, bool) or not isinstance(token, int) or not isinstance(text, str):
                raise InvalidRequestError("shown_tokens", f"maps token ids to their spelling, got {token!r}: {text!r}")

    def _check_logit_bias(self) -> None:
        given: object = self.logit_bias
        if not isinstance(given, Mapping):
            raise InvalidRequestError("logit_bias", f"maps token ids to numbers, got {given!r}")
        object.__setattr__(self, "logit_bias", dict(given))  # the caller may go on changing theirs
        for token, bias in given.items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise InvalidRequestError("logit_bias", f"keys are token ids (0 and up), got {token!r}")
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise InvalidRequestError("logit_bias", f"the bias of token {token} is a number, got {bias!r}")
            if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS and bias != -math.inf:  # also refuses NaN
                raise InvalidRequestError(
                    "logit_bias",
                    f"the bias of token {token} must lie between {-MAX_LOGIT_BIAS:g} and {MAX_LOGIT_BIAS:g}, "
                    f"or be -inf, got {bias!r}",
                )

    @property
    def draft_limit(self) -> int:
        """Drafted tokens a step at most, as far as the request has a say."""
        if self.speculation == OFF:
            return 0
        return self.speculation if isinstance(self.speculation, int) else MAX_DRAFT_TOKENS

    @property
    def adapter_set(self) -> AdapterSet:
        """The adapters in order of name."""
        return adapter_set(self.adapters)

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0 or self.top_k == 1


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, 2**31 - 1),
    ("temperature", 0, 100),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("typical_p", 0, 1),
    ("repetition_penalty", 1e-6, 100),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("penalty_last_n", -1, 2**31 - 1),
    ("seed", 0, 2**64 - 1),
    ("logprobs", 0, MAX_LOGPROBS),
)
_WHOLE_NUMBERS = frozenset({"max_tokens", "top_k", "penalty_last_n", "seed", "logprobs"})
_OPTIONAL = frozenset({"max_tokens", "seed", "logprobs"})


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(name, f"must be a number, got {value!r}")
    if not low <= value <= high:  # also refuses NaN
        raise InvalidRequestError(name, f"must lie between {low} and {high}, got {value!r}")


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, int):
        raise InvalidRequestError(name, f"must be a whole number, got {value!r}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(name, f"must be true or false, got {value!r}")


def _as_tuple(name: str, value: object, kind: type) -> tuple[object, ...]:
    if isinstance(value, kind) and not isinstance(value, bool):
        return (value,)
    if not isinstance(value, tuple | list):
        raise InvalidRequestError(name, f"must be a {kind.__name__} or a list of them, got {value!r}")
    wrong = [item for item in value if isinstance(item, bool) or not isinstance(item, kind)]
    if wrong:
        raise InvalidRequestError(name, f"holds {wrong[0]!r}, which is no {kind.__name__}")
    return tuple(value)


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """The model's end of turn, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens reached, or the context is full."""
    ABORT = "abort"
    """Cancelled by the caller."""
    ERROR = "error"
    """The request failed; the output carries the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request took. Token counts, and milliseconds of wall time."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were reused instead of computed: from the KV memory itself, or restored to it."""
    cached_host_tokens: int = 0
    """Those among them that were restored from host memory."""
    cached_disk_tokens: int = 0
    """Those among them that were read from disk."""
    cache_saved_ms: float = 0.0
    """Prefill time that they saved, restoring counted, at the measured rates; 0 until those are known."""
    output_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that the target confirmed."""
    drafters: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Drafted and accepted tokens by drafter."""
    steps: int = 0
    """Steps that gave this request tokens."""
    draft_steps: int = 0
    """Those among them in which it had drafts to verify."""
    saved_ms: float = 0.0
    """Time that drafting saved against the measured plain rate at the same depth and load; negative where it lost."""
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    is_synthetic: bool = False
    """Drafts were accepted by a random number (synthetic acceptance): the answer is none."""

    @property
    def mean_accepted_length(self) -> float:
        """Accepted tokens in each step that had drafts to verify; 0 where none had."""
        return self.accepted_tokens / self.draft_steps if self.draft_steps else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Output tokens in each step that gave any; 1 without speculation."""
        return self.output_tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probability of a token under the model (before any sampling setting), and of the likeliest tokens."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step added to one request. The last delta of a request carries `finish_reason` and `usage`."""

    request_id: str
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: ForerunError | None = None
    origins: Origins = ()
    """Where `tokens` came from."""
    is_synthetic: bool = False
    """Drafts were accepted by a random number (synthetic acceptance): figures may be right, the text is not."""
    prefill_done: tuple[int, int] | None = None
    """How many of the prompt's tokens are in memory, and how many it has: where the request reports its progress, while
    it has no output."""
    stop_string: str | None = None
    """Which of the request's stop strings ended it."""


class ForcedTokens(Protocol):
    """Knows where a constraint (a grammar, say) leaves one legal continuation. Such tokens are drafted first."""

    def forced(self, output: Tokens, limit: int) -> Sequence[int]:
        """The tokens that must follow `output`, the answer so far: at most `limit`, none where there is a choice.

        Verified like any draft: a wrong one costs speed only. Who raises is not asked again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue. `arrival` is the engine clock's time in seconds."""

    id: str
    prompt: PromptLayout
    params: SamplingParams
    arrival: float = 0.0
    tenant: str = ""
    """Whose request it is. Nothing is drafted from another tenant's texts, or from what drafting them taught."""
    forced: ForcedTokens | None = None
    constraint: TokenConstraint | None = None
    """The parameters' grammar, compiled for this request."""
    drawn_seed: int = 0
    """What randomness comes from where the parameters give no seed."""
    priority: int = 0
    """Higher ones are admitted first; among equals who came first."""
    deadline: float | None = None
    """When the answer should begin, on the engine's clock: among requests of a priority the earliest is admitted first,
    before all without one. It is answered all the same where that was too late."""
    reuses_cache: bool = True
    """False: its prompt is computed from scratch, and nothing of it is kept for others, or offered to them: neither KV
    nor text to draft from."""
    reports_progress: bool = False
    """Deltas say how far the prompt has been read."""

    @property
    def seed(self) -> int:
        return self.drawn_seed if self.params.seed is None else self.params.seed
