"""pytest-benchmark's call with something to do before each round, which it does not say the types of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

Setup = Callable[[], tuple[tuple[Any, ...], dict[str, Any]] | None]
"""May return what the call is given."""


def timed_after(benchmark: BenchmarkFixture, setup: Setup, call: Callable[..., object], *, rounds: int) -> None:
    """Time `call` alone, once after each `setup`."""
    untyped: Any = benchmark
    untyped.pedantic(call, setup=setup, rounds=rounds)
