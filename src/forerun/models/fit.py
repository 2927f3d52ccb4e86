"""What fits where: bytes that are needed and free by device, and how many tokens and requests that makes.

Everything here is arithmetic on surveys; `preflight.py` asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.models.machine_memory import FreeMemory
from forerun.models.survey import GpuShare, ModelSurvey

TIGHT: Final = 0.85
"""Needing more than this share of the free memory is told, and never chosen: others want some too."""
MOST_CHOSEN: Final = 32_768
"""Tokens of memory that an engine gets at most where nobody says: they are allocated at once, and to read more takes
minutes on a processor."""
TOKENS_A_REQUEST: Final = 2048
"""What a request of a chat takes, prompt and answer: for numbers of requests that are told or chosen."""
_MOST_REQUESTS: Final = 255
"""As many as llama.cpp has sequence ids, less the one that stored prefixes are copied through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A memory: the machine's own, or a GPU's. Bytes."""

    where: str
    """In words: "this machine", "CUDA0"."""
    needed: int
    weights: int
    """Of `needed`."""
    kv: int
    states: int = 0
    """Of `needed`: recurrent ones."""
    free: int | None
    """None where nobody tells."""
    is_gpu: bool = False

    @property
    def usable(self) -> float | None:
        """Bytes that may be chosen."""
        return None if self.free is None else TIGHT * self.free

    @property
    def has_room(self) -> bool:
        """Whether this may be chosen for somebody who says nothing.

        In the machine's memory as much as tokens take stays free beside them: for cached prefixes, and for others.
        """
        reserved = 0 if self.is_gpu else self.kv + self.states
        return self.usable is None or self.needed + reserved <= self.usable


def places_of(
    surveys: Sequence[ModelSurvey], free: FreeMemory | None, gpus: Mapping[str, int], beside: int = 0
) -> list[Place]:
    """The machine's memory, where `beside` bytes are taken by everything but models; then each GPU that is used.

    `gpus`: bytes that are free, by name.
    """
    shares = [gpu for survey in surveys for gpu in survey.gpus]
    host = Place(
        where="this machine" if free is None else free.where,
        needed=sum(survey.on_host for survey in surveys) + beside,
        weights=sum(survey.weights for survey in surveys) - sum(gpu.weights for gpu in shares),
        kv=sum(survey.kv for survey in surveys) - sum(gpu.kv for gpu in shares),
        states=sum(survey.state for survey in surveys),
        free=None if free is None else free.free,
    )
    names = dict.fromkeys(gpu.name for gpu in shares)
    return [host, *(_gpu_place(name, [gpu for gpu in shares if gpu.name == name], gpus.get(name)) for name in names)]


def _gpu_place(name: str, shares: Sequence[GpuShare], free: int | None) -> Place:
    return Place(
        where=name,
        needed=sum(gpu.total for gpu in shares),
        weights=sum(gpu.weights for gpu in shares),
        kv=sum(gpu.kv for gpu in shares),
        free=free,
        is_gpu=True,
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """How much memory for tokens there is room for beside weights and buffers, with no prefixes in host memory."""

    n_ctx_train: int
    bytes_a_token: int
    """Of target and draft together; 0 where memory does not grow with tokens."""
    tokens: int | None = None
    """All requests together. None: any number, or nobody tells what is free."""
    states: int | None = None
    """Requests for which there are recurrent states; None where they have none, or nobody tells what is free."""

    @property
    def longest(self) -> int:
        """The longest request that fits, in tokens; never longer than what the model was trained for."""
        return self.n_ctx_train if self.tokens is None else min(self.tokens, self.n_ctx_train)

    def requests(self, tokens: int) -> int:
        """How many of so many tokens each fit at once."""
        by_tokens = _MOST_REQUESTS if self.tokens is None else self.tokens // max(1, tokens)
        return min(by_tokens, _MOST_REQUESTS if self.states is None else self.states, _MOST_REQUESTS)


def fit_of(
    now: Sequence[Place], later: Sequence[Place], n_ctx: tuple[int, int], n_ctx_train: int, ids: tuple[int, int]
) -> Fit:
    """From what is needed for two numbers of tokens: a straight line, as far as llama.cpp's own numbers go.

    `ids`: sequence ids that were surveyed, and how many of them a running request takes.
    """
    fewer, more = n_ctx
    growth = [max(0.0, (two.needed - one.needed) / (more - fewer)) for one, two in zip(now, later, strict=True)]
    tokens = [
        max(0, fewer + int((place.usable - place.needed) / each))
        for place, each in zip(now, growth, strict=True)
        if place.usable is not None and each >= 1
    ]
    host = now[0]
    states = None
    if host.states and host.usable is not None:
        states = max(0, int((host.usable - host.needed + host.states) / (host.states / ids[0] * ids[1])))
    return Fit(n_ctx_train, round(sum(growth)), min(tokens, default=None), states)
