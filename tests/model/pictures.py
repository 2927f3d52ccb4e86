"""Pictures, prompts that hold them, and engines that read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun.compose import build
from forerun.core.prompt import PromptLayout
from forerun.core.prompt_text import PromptText
from forerun.core.request import SamplingParams
from forerun.engine.engine import BlockingEngine
from forerun.engine.output import Output
from forerun.engine_config import EngineConfig
from forerun.media.item import Media
from forerun.media.picture import Picture
from forerun.native.encoder import MediaEncoder
from forerun.native.runner import LlamaRunner
from tests.support.tiny_projector import TinyProjector, build_projector

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0)}


def solid(colour: str, width: int = 112, height: int = 84) -> Picture:
    """One colour all over: 12 embeddings in 4 positions where nothing else is said."""
    return Picture.of(width, height, bytes(COLOURS[colour]) * (width * height))


def noise(seed: int, width: int = 112, height: int = 84) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, 3 * width * height, dtype=np.uint8)
    return Picture.of(width, height, pixels.tobytes())


def with_pictures(*parts: str | Media) -> tuple[PromptText, list[Media]]:
    """A text with pictures, or recordings, where they stand."""
    text = ""
    places: list[tuple[int, int]] = []
    pictures: list[Media] = []
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            places.append((len(text), len(pictures)))
            pictures.append(part)
    return PromptText(text, media=tuple(places)), pictures


TIE = 0.1
"""Log-probabilities this close may change places: batches of other sizes round otherwise, a few thousandths here."""


def assert_same_answer(one: Output, other: Output) -> None:
    """Two greedy answers, asked for with two likeliest tokens each, that are equal up to a tie."""
    assert one.logprobs
    assert other.logprobs
    assert len(one.token_ids) == len(other.token_ids)
    for index, (first, second) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
        assert abs(first.logprob - second.logprob) < TIE, f"token {index} has another probability"
        if first.token != second.token:
            (_, best), (_, next_best) = first.top
            assert best - next_best < TIE, f"token {index} is {second.token} instead of {first.token}"
            return


@dataclass
class Seeing:
    """An engine on a thread that reads pictures, and its encoder."""

    engine: BlockingEngine
    encoder: MediaEncoder

    def prompt(self, *parts: str | Media) -> PromptLayout:
        text, pictures = with_pictures(*parts)
        return self.engine.prompt(text, media=pictures)

    def ask(self, *parts: str | Media, tokens: int = 8, cold: bool = False, **params: Any) -> Output:
        """The greedy answer; `cold`: with nothing reused."""
        asked = SamplingParams(max_tokens=tokens, ignore_eos=True, **params)
        (output,) = self.engine.generate(self.prompt(*parts), asked, reuses_cache=not cold)
        return output


@contextmanager
def seeing(model: Path, projector: Path | None = None, **options: Any) -> Iterator[Seeing]:
    """Loads a model with a projector: that of the tiny models if none is given."""
    given = {"n_ctx": 2048, "n_threads": 1, "cache_ram": 0, **options}
    parts = build(EngineConfig(model=str(model), projector=str(projector or build_projector(TinyProjector())), **given))
    assert isinstance(parts.runner, LlamaRunner)
    assert parts.runner.encoder is not None
    with BlockingEngine(parts) as engine:
        yield Seeing(engine, parts.runner.encoder)
