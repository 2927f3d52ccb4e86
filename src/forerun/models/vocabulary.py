"""Do two models speak of the same tokens? A draft is of use only where they do, down to the last id."""

from __future__ import annotations

from typing import Final, NoReturn

from forerun.errors import IncompatibleDraftError
from forerun.models.gguf_header import GgufHeader, RawArray, Value
from forerun.models.gguf_types import ValueType

_PREFIX: Final = "tokenizer.ggml."
# Compared first and in this order, so that the first difference told is the one that says most.
_KINDS: Final = ("model", "pre")
_ARRAYS: Final = {"tokens": "token", "token_type": "type of token", "scores": "score of token", "merges": "merge"}
# What follows concerns text around the tokens, or is advice to programs: it cannot make an id mean something else.
_IRRELEVANT: Final = frozenset(
    {"padding_token_id", "unknown_token_id", "seperator_token_id", "mask_token_id", "cls_token_id"}
    | {"huggingface.json", "rwkv.world"}
)


def require_same_vocabulary(target: GgufHeader, draft: GgufHeader) -> None:
    """Check that every token id means the same to both models.

    Compares tokenizer kind, tokens, types, scores, merges, special ids and the add-BOS/EOS settings. Raises
    IncompatibleDraftError naming both files and the first difference, target first. The usual case, equal arrays, is
    one memory comparison for each.
    """
    for name in _KINDS:
        _compare_values(target, draft, name)
    for name in _ARRAYS:
        _compare_arrays(target, draft, name)
    for name in _other_names(target, draft):
        _compare_values(target, draft, name)


def _other_names(target: GgufHeader, draft: GgufHeader) -> list[str]:
    keys = {key.removeprefix(_PREFIX) for key in (*target.metadata, *draft.metadata) if key.startswith(_PREFIX)}
    return sorted(keys - _IRRELEVANT - set(_KINDS) - set(_ARRAYS))


def _compare_values(target: GgufHeader, draft: GgufHeader, name: str) -> None:
    ours, theirs = target.metadata.get(_PREFIX + name), draft.metadata.get(_PREFIX + name)
    # A key that only one file has is no difference: converters of different age wrote them, and llama.cpp fills it
    # in from the tokens, which are equal. The kind of tokenizer is always told.
    if name not in _KINDS and (ours is None or theirs is None):
        return
    if ours != theirs:
        label = name.removesuffix("_id").replace("_", " ") if name.endswith("_token_id") else f"tokenizer {name}"
        _refuse(target, draft, f"{label} {_shown(ours)} against {_shown(theirs)}")


def _compare_arrays(target: GgufHeader, draft: GgufHeader, name: str) -> None:
    ours, theirs = target.array(_PREFIX + name), draft.array(_PREFIX + name)
    if ours == theirs or (name == "scores" and None in (ours, theirs)):  # older BPE files carry scores of zero
        return
    if ours is None or theirs is None:
        _refuse(target, draft, f"tokenizer {name}: {_shown(ours)} against {_shown(theirs)}")
    if len(ours) != len(theirs):
        _refuse(target, draft, f"{len(ours)} against {len(theirs)} {name}")
    _refuse(target, draft, _first_difference(ours, theirs, _ARRAYS[name]))


def _first_difference(ours: RawArray, theirs: RawArray, label: str) -> str:
    for index, (one, other) in enumerate(zip(_decoded(ours), _decoded(theirs), strict=True)):
        if one != other:
            return f"{label} {index}: {one!r} against {other!r}"
    # Equal elements in unlike encodings, or NaN scores: the bytes differ all the same.
    return f"{label}s are stored as {ours.element.name.lower()} against {theirs.element.name.lower()}"


def _decoded(array: RawArray) -> list[str] | list[int | float | bool]:
    if array.element is ValueType.STRING:
        return [value.decode(errors="backslashreplace") for value in array.strings()]
    return list(array.numbers())


def _shown(value: Value | None) -> str:
    if value is None:
        return "none"
    return f"{len(value)} elements" if isinstance(value, RawArray) else repr(value)[:80]


def _refuse(target: GgufHeader, draft: GgufHeader, difference: str) -> NoReturn:
    raise IncompatibleDraftError(
        f"draft {draft.path} cannot draft for {target.path}: their vocabularies differ: {difference} "
        "(target against draft); choose a draft of the same model family, or switch the draft off"
    )
