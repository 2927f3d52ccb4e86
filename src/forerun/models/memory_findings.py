"""What everything takes against what is free, device by device, and how much more would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from forerun.errors import ModelLoadError
from forerun.models.findings import Finding, Verdict, size, size_a_token
from forerun.models.fit import MOST_CHOSEN, TIGHT, TOKENS_A_REQUEST, Fit, Place
from forerun.models.survey import ModelSurvey


def itemised(name: str, survey: ModelSurvey) -> Finding:
    """What a model and its context take, by what for."""
    each = f" ({size_a_token(survey.kv / survey.cells)} a token)" if survey.kv else ""
    parts = {
        "weights": survey.weights,
        f"KV cells{each}": survey.kv,
        "recurrent states": survey.state,
        "compute buffers": survey.compute,
        "logits": survey.outputs,
        "vocabulary and graph": survey.other,
    }
    return Finding(Verdict.OK, "memory", f"{name}: {size(survey.total)}: {_listed(parts)}")


def beside(parts: Mapping[str, int]) -> Iterator[Finding]:
    """What is taken by no model, by name."""
    if any(parts.values()):
        yield Finding(Verdict.OK, "memory", f"beside the models: {size(sum(parts.values()))}: {_listed(parts)}")


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size(number)}" for name, number in parts.items() if number)


def judge_places(places: Sequence[Place], paths: Sequence[Path], cache_ram: int) -> list[Finding]:
    """Whether each memory has what is needed of it, the machine's own first: more is refused, but for its weights,
    which can be read again. `cache_ram`: bytes that cached prefixes may take there."""
    host, *gpus = places
    names = " and ".join(map(str, paths))
    return [_judge_host(host, names), *_judge_cache(host, cache_ram), *(_judge_gpu(gpu, names) for gpu in gpus)]


def _judge_host(host: Place, names: str) -> Finding:
    if host.free is None:
        return Finding(Verdict.NOTE, "memory", f"{size(host.needed)} together; what is free is not told here")
    numbers = f"{size(host.needed)} needed, {size(host.free)} free on {host.where}"
    if host.needed - host.weights > host.free:
        advice = "lower n_ctx, take a smaller quantisation, or end something else"
        return Finding.refused("memory", ModelLoadError(f"{names}: too little memory: {numbers}; {advice}"))
    if host.needed > host.free:  # llama.cpp maps weights into memory: they are read again and again, but they run
        slow = "weights that do not fit are read from disk again for every token: very slow"
        return Finding(Verdict.WARNING, "memory", f"{numbers}; {slow}")
    if host.needed > TIGHT * host.free:
        return Finding(Verdict.WARNING, "memory", f"{numbers}: tight")
    return Finding(Verdict.OK, "memory", numbers)


def _judge_cache(host: Place, cache_ram: int) -> Iterator[Finding]:
    if not cache_ram:
        return
    told = f"cached prefixes may take {size(cache_ram)} of host memory beside that (--cache-ram)"
    if host.free is not None and host.needed + cache_ram > host.free:
        yield Finding(Verdict.WARNING, "memory", f"{told}, more than is left: give them less")
    else:
        yield Finding(Verdict.OK, "memory", told)


def _judge_gpu(gpu: Place, names: str) -> Finding:
    if gpu.free is None:
        return Finding(
            Verdict.NOTE, "memory", f"{size(gpu.needed)} needed on {gpu.where}, which does not tell its free"
        )
    numbers = f"{size(gpu.needed)} needed, {size(gpu.free)} free on {gpu.where}"
    if gpu.needed > gpu.free:  # nothing is read again there: what does not fit cannot be loaded
        advice = "give it fewer layers (--n-gpu-layers), lower n_ctx, or take a smaller quantisation"
        return Finding.refused("memory", ModelLoadError(f"{names}: too little memory: {numbers}; {advice}"))
    return Finding(Verdict.OK, "memory", numbers)


def resident(total: int, repacked: int) -> Iterator[Finding]:
    """What the process will be seen to have in memory, where that is more than it needs: `repacked` of it twice."""
    if repacked:
        told = f"{size(total)} will be resident: {size(repacked)} of the weights are copied to a "
        going = "layout for this processor, and their file's pages go when others need the room"
        yield Finding(Verdict.OK, "memory", told + going)


def judge_fit(fit: Fit, n_ctx: int, *, is_asked: bool) -> Iterator[Finding]:
    """The longest request that fits, and how many of the context's length and of a chat's.

    `is_asked`: whether somebody said how long the context is to be.
    """
    each = (
        f"a token takes {size_a_token(fit.bytes_a_token)}" if fit.bytes_a_token else "memory does not grow with tokens"
    )
    if fit.tokens is None and fit.states is None:
        yield Finding(Verdict.NOTE, "fit", f"{each}; how many fit is not told here")
        return
    most = "" if fit.tokens is None else f", {fit.tokens} fit"
    lengths = sorted({TOKENS_A_REQUEST, min(n_ctx, max(1, fit.longest))})
    counts = ", or ".join(f"{fit.requests(tokens)} of {tokens} tokens" for tokens in lengths)
    told = f"{each}{most}: one request of {fit.longest} (trained for {fit.n_ctx_train}); at once {counts}"
    yield Finding(Verdict.OK, "fit", told)
    if not is_asked and n_ctx < min(fit.longest, MOST_CHOSEN):
        chosen = f"{n_ctx} tokens are chosen, which leave as much again for cached prefixes and for others"
        yield Finding(Verdict.NOTE, "fit", f"{chosen}; --n-ctx takes up to {fit.longest}")
