"""The line of figures after an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forerun.core.request import Usage


def figures(usages: Sequence[Usage], seconds: float) -> str:
    """One line about one or several answers that took `seconds` together."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    output = sum(usage.output_tokens for usage in usages)
    parts = [
        f"{prompt} prompt tokens ({_cached(usages)})",
        f"{output} output tokens",
    ]
    rate = _rate(usages, output, seconds)
    if rate is not None:
        parts.append(f"{rate:.1f} tok/s")
    parts.append(f"TTFT {_range([usage.queue_ms + usage.prefill_ms for usage in usages])}")
    line = ", ".join(parts)
    drafting = ", ".join(_speculation(usages))
    return f"{line}; speculation: {drafting}" if drafting else line


def _cached(usages: Sequence[Usage]) -> str:
    """How many prompt tokens were reused, and of these how many came from elsewhere than the KV memory."""
    total = sum(usage.cached_tokens for usage in usages)
    host = sum(usage.cached_host_tokens for usage in usages)
    disk = sum(usage.cached_disk_tokens for usage in usages)
    sources = [f"{count} from {where}" for count, where in ((host, "host memory"), (disk, "disk")) if count]
    return f"{total} cached" + (f", {', '.join(sources)}" if sources else "")


def _speculation(usages: Sequence[Usage]) -> Iterator[str]:
    """What drafting did; nothing where it did nothing."""
    drafted = sum(usage.drafted_tokens for usage in usages)
    accepted = sum(usage.accepted_tokens for usage in usages)
    if drafted:
        steps = sum(usage.draft_steps for usage in usages)
        yield f"{accepted} of {drafted} drafted tokens accepted ({accepted / drafted:.0%})"
        yield f"{accepted / steps:.1f} per draft"
    saved = round(sum(usage.saved_ms for usage in usages))
    if saved:
        yield f"saved {saved} ms" if saved > 0 else f"cost {-saved} ms"


def _rate(usages: Sequence[Usage], output: int, seconds: float) -> float | None:
    """Of one answer how fast it was written once it had begun; of several, how much came in all that time."""
    if len(usages) > 1:
        return output / seconds
    decode_ms = usages[0].decode_ms
    return (output - 1) / decode_ms * 1e3 if decode_ms > 0 else None


def _range(milliseconds: Sequence[float]) -> str:
    low, high = min(milliseconds), max(milliseconds)
    return f"{high:.0f} ms" if len(milliseconds) == 1 else f"{low:.0f} to {high:.0f} ms"
