"""Drafters of somebody else's: found, made once, and looked at before an engine takes them. See docs/drafters.md."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias, cast

from forerun.core.lookups import RESERVED_NAMES
from forerun.core.step import Drafter, Vocabulary
from forerun.errors import InvalidConfigError

OWN_NAMES: Final = RESERVED_NAMES | {"ngram", "suffix", "synthetic"}
"""Names of Forerun's own in usage and origins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterContext:
    """What a factory may want to know."""

    vocabulary: Vocabulary
    """The target's: how many tokens, their bytes, which of them end a turn."""
    n_ctx: int
    """KV cells of the target: no text is longer."""


DrafterFactory: TypeAlias = Callable[..., object]


def find_factory(given: object) -> DrafterFactory:
    """What makes a drafter, from `module:factory`, a factory, or a drafter itself.

    Raises InvalidConfigError: for no such module or name, or something that can be neither.
    """
    if isinstance(given, str):
        return _imported(given)
    if not inspect.isclass(given) and callable(getattr(given, "propose", None)):
        return lambda: given
    if not callable(given):
        _refuse(f"is 'module:factory', a factory or a drafter, got {given!r}")
    return given


def make_drafter(factory: DrafterFactory, context: DrafterContext) -> Drafter:
    """Call a factory, with the context where it needs an argument. Raises InvalidConfigError for what is no drafter."""
    try:
        made = factory(context) if _wants_context(factory) else factory()
    except Exception as error:  # somebody else's code: whatever it raises is one clear line
        raise InvalidConfigError("drafter", f"{_name_of(factory)} raised {type(error).__name__}: {error}") from error
    if inspect.isclass(made) or not callable(getattr(made, "propose", None)):
        _refuse(f"{_name_of(factory)} made {made!r}, which has no method propose(requests)")
    name = getattr(made, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        _refuse(f"{_name_of(factory)} made a drafter whose name is no identifier: {name!r}")
    if name in OWN_NAMES:
        _refuse(f"the name {name!r} is taken; any but {', '.join(sorted(OWN_NAMES))} will do")
    return cast(Drafter, made)


def _imported(path: str) -> DrafterFactory:
    module_name, colon, names = path.partition(":")
    if not (module_name and colon and names):
        _refuse(f"is 'module:factory', got {path!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # also what the module itself raises
        raise InvalidConfigError(
            "drafter", f"module {module_name!r} could not be imported: {type(error).__name__}: {error}"
        ) from error
    for name in names.split("."):
        if not hasattr(found, name):
            _refuse(f"module {module_name!r} has no {names!r}")
        found = getattr(found, name)
    if not callable(found):
        _refuse(f"{path!r} is no factory: {found!r} cannot be called")
    return cast(DrafterFactory, found)


def _wants_context(factory: DrafterFactory) -> bool:
    """Whether a factory has a parameter that must be given."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # built in
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is p.empty and p.kind in positional for p in parameters)


def _name_of(factory: DrafterFactory) -> str:
    return f"factory {getattr(factory, '__qualname__', None) or repr(factory)}"


def _refuse(message: str) -> NoReturn:
    raise InvalidConfigError("drafter", message)
