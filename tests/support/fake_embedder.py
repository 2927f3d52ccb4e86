"""What processes of embedding engines build in tests: vectors that tell what they are of, and faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun.core.prompt import Tokens
from forerun.engine.embedding import Vectors
from forerun.engine.loading import LoadPhase, LoadProgress
from forerun.errors import EngineError, ModelLoadError

KILLS, FAILS, HANGS, RAISES = 900, 901, 902, 903
"""An input that holds one of these tokens ends the process, fails its batch, is never finished, or is unforeseen."""


class FakeEmbedder:
    """A vector is (tokens, sum of tokens). Implements embedding.Embedder."""

    n_ctx, max_inputs, max_batch_tokens, dimensions = 8, 4, 16, 2

    def embed(self, inputs: Sequence[Tokens]) -> Vectors:
        tokens = set(np.concatenate(inputs).tolist())
        if KILLS in tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANGS in tokens:
            time.sleep(3600)
        if RAISES in tokens:
            raise ZeroDivisionError("a fault nobody foresaw")
        if FAILS in tokens:
            raise EngineError("a bad batch")
        return np.array([[len(one), one.sum()] for one in inputs], np.float32)

    def close(self) -> None:
        pass


def make(options: Mapping[str, Any], progress: LoadProgress) -> FakeEmbedder:
    """Options: `fails` (the message), `dies` loading, `loads_while` a file is there."""
    progress(LoadPhase.TARGET, "a model", 0.5)
    if "fails" in options:
        raise ModelLoadError(options["fails"])
    if options.get("dies"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if "loads_while" in options:
        while Path(options["loads_while"]).exists():
            time.sleep(0.005)
    return FakeEmbedder()
