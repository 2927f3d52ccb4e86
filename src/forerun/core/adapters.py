"""LoRA adapters: what requests select, and what KV is kept apart by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from forerun.errors import InvalidRequestError

AdapterSet: TypeAlias = tuple[tuple[str, float], ...]
"""Names and scales, in order of name; () for the model as it is."""
MAX_ADAPTERS = 4
"""At once, for one request: llama.cpp's graphs have room for more, but not for any number."""
MAX_SCALE = 100.0
NO_CONTENTS: Mapping[str, str] = MappingProxyType({})
_DIGITS = 32
_EVERYONE = "0" * _DIGITS


def adapter_set(given: object) -> AdapterSet:
    """What a caller selects: names mapped to scales, or a name alone. Raises InvalidRequestError."""
    if isinstance(given, str):
        given = {given: 1.0}
    if not isinstance(given, Mapping):
        raise InvalidRequestError("adapters", f"maps names to scales, or is one name, got {given!r}")
    if len(given) > MAX_ADAPTERS:
        raise InvalidRequestError("adapters", f"at most {MAX_ADAPTERS} at once, got {len(given)}")
    for name, scale in given.items():
        _check(name, scale)
    return tuple((name, float(given[name])) for name in sorted(given))


def _check(name: object, scale: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidRequestError("adapters", f"a name is text, got {name!r}")
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise InvalidRequestError("adapters", f"the scale of {name!r} is a number, got {scale!r}")
    if not scale:
        raise InvalidRequestError("adapters", f"the scale of {name!r} is 0, which applies nothing: leave it out")
    if not -MAX_SCALE <= scale <= MAX_SCALE:  # also refuses NaN
        raise InvalidRequestError(
            "adapters", f"the scale of {name!r} must lie between {-MAX_SCALE:g} and {MAX_SCALE:g}, got {scale!r}"
        )


def require_known(adapters: AdapterSet, known: Iterable[str]) -> None:
    """Raise InvalidRequestError, naming those that are known, for an adapter that is not."""
    names = sorted(known)
    for name, _ in adapters:
        if name not in names:
            there = f"this engine has {', '.join(map(repr, names))}" if names else "this engine was loaded without any"
            raise InvalidRequestError("adapters", f"{name!r} is not known: {there}")


def scope_of(tenant: str, adapters: AdapterSet = (), contents: Mapping[str, str] = NO_CONTENTS) -> str:
    """What KV is kept apart by, beside the model: "" for everyone's, else hexadecimal digits.

    32 over the tenant, and with adapters 32 more over their contents and scales (names may be given to other files).
    `contents`: a digest for each name.
    """
    whose = hashlib.sha256(b"tenant\0" + tenant.encode()).hexdigest()[:_DIGITS] if tenant else ""
    if not adapters:
        return whose
    parts = sorted(f"{contents[name]} {scale!r}\n" for name, scale in adapters)
    return (whose or _EVERYONE) + hashlib.sha256(b"adapters\0" + "".join(parts).encode()).hexdigest()[:_DIGITS]


def is_tenant_s(scope: str, tenant_scope: str) -> bool:
    """Whether a scope belongs to the tenant of another one, whatever the adapters."""
    return (scope[:_DIGITS] or _EVERYONE) == (tenant_scope[:_DIGITS] or _EVERYONE)
