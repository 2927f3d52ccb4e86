"""Randomness as a function, and a way to draw tokens with it that two models can share.

Every token id has an arrival time at a request's output position: exponential with mean 1, a hash of (seed, position,
id) and nothing else. Divided by the tokens' probabilities they are a race, and the winner is distributed as the
probabilities say. A draft model that runs the race with its own probabilities over the *same* arrivals nearly always
sees the same winner where the two agree: the chance is at least (1 - d) / (1 + d) for distributions at total variation
distance d. The target's choice does not depend on the draft at all (Daliri, Musco, Suresh 2024, "Coupling without
Communication and Drafter-Invariant Speculative Decoding", https://arxiv.org/abs/2408.07978).

Arrivals have 32 bits: a token's chance is exact to 2**-32.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.intp]
Reals: TypeAlias = NDArray[np.floating[Any]]

_MASK = 2**64 - 1
_STRIDE = 0x9E3779B97F4A7C15
_RESOLUTION = 2.0**-32
_FEW = 64
"""So many candidates are not worth sieving."""
_MARGIN = 1.001
"""Single precision may be so far off in the sieve; it is off by less than 1e-4."""
_FARTHEST = 60.0
"""Differences of scaled logits beyond this count as this in the sieve: 2**32 * e**60 is still a float32."""


class Stream(IntEnum):
    """Independent random numbers for one output position."""

    ARRIVALS = 0
    ACCEPTANCE = 1
    """Whether rejection sampling takes a proposal."""
    REPLACEMENT = 2
    """The arrivals that decide what replaces a refused one."""


def uniform(seed: int, index: int, stream: Stream = Stream.ARRIVALS) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return (random_bits(seed, index, stream) >> 11) / 2**53


def random_bits(seed: int, index: int, stream: Stream) -> int:
    """64 bits of (seed, index, stream).

    SplitMix64's mixing function (Steele, Lea, Flood 2014, https://doi.org/10.1145/2714064.2660195), seed mixed first so
    that neighbouring seeds share no stream.
    """
    key = _mix(_mix(seed & _MASK) + (index + 1) * _STRIDE & _MASK)
    return _mix(key + stream) if stream else key


def _mix(value: int) -> int:
    value = (value + _STRIDE) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def winner(
    ids: Ids | None, logits: Reals, temperature: float, seed: int, index: int, stream: Stream = Stream.ARRIVALS
) -> int:
    """Who wins the race for output token `index`, as a position in `logits`.

    Drawn with probabilities softmax(logits / temperature). `ids` names the tokens that `logits` belong to (None: 0, 1,
    ...); their order does not matter. The largest logit must be finite; -inf never wins.
    """
    key = random_bits(seed, index, stream)
    largest = logits.max()
    if logits.size <= _FEW:
        times = _times(np.arange(logits.size) if ids is None else ids, logits, largest, temperature, key)
        return int(times.argmin())
    survivors = _sieve(ids, logits, largest, temperature, key)
    names = survivors if ids is None else ids[survivors]
    return int(survivors[_times(names, logits[survivors], largest, temperature, key).argmin()])


def _times(ids: Ids, logits: Reals, largest: Any, temperature: float, key: int) -> NDArray[np.float64]:
    """When each candidate arrives, up to a common factor."""
    behind = (np.float64(largest) - logits) / max(temperature, 1e-290)
    times: NDArray[np.float64] = arrivals(ids, key) * np.exp(np.minimum(behind, 600.0))
    return times


def arrivals(ids: Ids, key: int) -> NDArray[np.float64]:
    """Exponential with mean 1, one for each id; no two of a race are equal."""
    uniforms = (_hashes(ids.astype(np.uint32), key).astype(np.float64) + 0.5) * _RESOLUTION
    return -np.log1p(-uniforms)


def _sieve(ids: Ids | None, logits: Reals, largest: Any, temperature: float, key: int) -> Ids:
    """Positions of all that can win, nearly always one or two.

    An arrival -log(1 - u) is later than u. Who would be too late with u in its place, against somebody's exact time,
    has lost.
    """
    behind = (largest - logits).astype(np.float32, copy=False)
    behind *= np.float32(1 / max(temperature, 1e-20))
    np.minimum(behind, np.float32(_FARTHEST), out=behind)
    earliest = np.exp(behind, out=behind)
    earliest *= _hashes(_all_ids(logits.size) if ids is None else ids.astype(np.uint32), key)
    first = earliest.argmin(keepdims=True)
    names = first if ids is None else ids[first]
    limit = _times(names, logits[first], largest, temperature, key)[0] / _RESOLUTION * _MARGIN
    return np.flatnonzero(earliest <= limit)


@lru_cache(maxsize=4)
def _all_ids(count: int) -> NDArray[np.uint32]:
    return np.arange(count, dtype=np.uint32)


def _hashes(ids: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """32 bits of (key, id), different for different ids.

    Two rounds of multiplication and shift (constants: Wellons 2018, https://nullprogram.com/blog/2018/07/31/), half of
    the key before each. 32-bit arithmetic, since processors do eight or more of it at a time.
    """
    bits = ids + np.uint32(key >> 32)
    shifted = bits >> 16
    bits ^= shifted
    bits *= np.uint32(0x7FEB352D)
    np.right_shift(bits, 15, out=shifted)
    bits ^= shifted
    bits += np.uint32(key & 0xFFFFFFFF)
    bits *= np.uint32(0x846CA68B)
    np.right_shift(bits, 16, out=shifted)
    bits ^= shifted
    return bits
