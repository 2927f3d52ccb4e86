"""What an answer took, in the forms clients know: OpenAI's `usage` and llama.cpp's `timings`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from forerun.core.request import Usage


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Timings(_Frozen):
    """llama.cpp's `timings`, of one choice.

    As there, `predicted_ms` begins with the first token, and `predicted_per_second` is `predicted_n` over it; rates are
    0 where no time passed. `prompt_n` leaves out what came from the cache, which is `cache_n`.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class PromptTokensDetails(_Frozen):
    cached_tokens: int
    """Reused instead of computed, wherever they came from."""
    cached_host_tokens: int
    """Those among them that came from host memory."""
    cached_disk_tokens: int
    """Those among them that came from disk."""


class CompletionTokensDetails(_Frozen):
    reasoning_tokens: int


class SpeculationDetails(_Frozen):
    """What drafting did for the answer. Not OpenAI's prediction tokens, which are part of the completion's count."""

    drafted_tokens: int
    accepted_tokens: int
    mean_accepted_length: float
    saved_ms: float
    """Against plain decoding at the measured rate; negative where drafting lost."""
    drafters: dict[str, tuple[int, int]]
    """Drafted and accepted tokens by drafter."""


class CompletionUsage(_Frozen):
    """OpenAI's `usage`, of all choices together, with what speculation did beside it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    speculation: SpeculationDetails | None = None
    """None where nothing was drafted."""


def timings(usage: Usage) -> Timings:
    """What one choice took."""
    prompt_n = usage.prompt_tokens - usage.cached_tokens
    return Timings(
        cache_n=usage.cached_tokens,
        prompt_n=prompt_n,
        prompt_ms=usage.prefill_ms,
        prompt_per_token_ms=_ratio(usage.prefill_ms, prompt_n),
        prompt_per_second=_ratio(prompt_n * 1e3, usage.prefill_ms),
        predicted_n=usage.output_tokens,
        predicted_ms=usage.decode_ms,
        predicted_per_token_ms=_ratio(usage.decode_ms, usage.output_tokens),
        predicted_per_second=_ratio(usage.output_tokens * 1e3, usage.decode_ms),
        draft_n=usage.drafted_tokens,
        draft_n_accepted=usage.accepted_tokens,
    )


def completion_usage(prompts: Sequence[Sequence[Usage]], reasoning_tokens: int = 0) -> CompletionUsage:
    """The usage of a whole response: for each prompt that of its choices, of which there is at least one.

    A prompt counts once, whatever its number of choices, and so does what was reused of it: what the choice computed
    that computed most of it.
    """
    choices = [usage for own in prompts for usage in own]
    most_computed = [min(own, key=lambda usage: usage.cached_tokens) for own in prompts]
    prompt_tokens = sum(usage.prompt_tokens for usage in most_computed)
    completion_tokens = sum(usage.output_tokens for usage in choices)
    return CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(usage.cached_tokens for usage in most_computed),
            cached_host_tokens=sum(usage.cached_host_tokens for usage in most_computed),
            cached_disk_tokens=sum(usage.cached_disk_tokens for usage in most_computed),
        ),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning_tokens),
        speculation=_speculation(choices),
    )


def _speculation(choices: Sequence[Usage]) -> SpeculationDetails | None:
    drafted = sum(usage.drafted_tokens for usage in choices)
    if not drafted:
        return None
    accepted = sum(usage.accepted_tokens for usage in choices)
    return SpeculationDetails(
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        mean_accepted_length=_ratio(accepted, sum(usage.draft_steps for usage in choices)),
        saved_ms=sum(usage.saved_ms for usage in choices),
        drafters=_by_drafter(choices),
    )


def _by_drafter(choices: Iterable[Usage]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for usage in choices:
        for name, (drafted, accepted) in usage.drafters.items():
            before = counts.get(name, (0, 0))
            counts[name] = (before[0] + drafted, before[1] + accepted)
    return counts


def _ratio(amount: float, of: float) -> float:
    return amount / of if of > 0 else 0.0
