"""Do two models speak of the same tokens? A draft is of use only where they do, down to the last id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.errors import IncompatibleDraftError
from forerun.models.gguf_header import GgufHeader, RawArray, Value
from forerun.models.gguf_types import ValueType

_PREFIX: Final = "tokenizer.ggml."
# Compared first and in this order, so that the first difference told is the one that says most.
_KINDS: Final = ("model", "pre")
_ARRAYS: Final = {  # what one element is called, and several
    "tokens": ("token", "tokens"),
    "token_type": ("type of token", "types of tokens"),
    "scores": ("score of token", "scores of tokens"),
    "merges": ("merge", "merges"),
}
# What follows concerns text around the tokens, or is advice to programs: it cannot make an id mean something else.
_IRRELEVANT: Final = frozenset(
    {"padding_token_id", "unknown_token_id", "seperator_token_id", "mask_token_id", "cls_token_id"}
    | {"huggingface.json", "rwkv.world"}
)
_UNUSED: Final = 5  # enum llama_token_type: no text has this token, so no model learned to say it
_EXAMPLES: Final = 3

Elements = Sequence[str | int | float | bool]


@dataclass(frozen=True, slots=True)
class VocabularyComparison:
    """Where two vocabularies differ, in words, target first. Both are empty for equal ones."""

    differences: tuple[str, ...]
    """What makes an id mean something else: such a pair is refused."""
    cosmetic: tuple[str, ...]
    """What does not: padding nobody says, advice to programs."""


def compare_vocabularies(target: GgufHeader, draft: GgufHeader) -> VocabularyComparison:
    """Compare tokenizer kind, tokens, types, scores, merges, special ids and the add-BOS/EOS settings.

    The usual case, equal arrays, is one memory comparison for each. llama.cpp's own rule (common/speculative.cpp:
    sizes up to 128 apart, texts equal from id 5 on, add-BOS/EOS and their ids equal) is laxer in what it looks at, and
    stricter in one thing: here a vocabulary may be padded to any length with ids that its types call unused.
    """
    differences: list[str] = []
    cosmetic: list[str] = []
    for name in _KINDS:
        differences += _values_differ(target, draft, name)
    padding = _padding(target, draft)
    cosmetic += padding
    for name in _ARRAYS:
        found = _array_differs(target, draft, name, is_padded=bool(padding))
        differences += found.differences
        cosmetic += found.cosmetic
    for name in _other_names(target, draft):
        (cosmetic if name in _IRRELEVANT else differences).extend(_values_differ(target, draft, name))
    return VocabularyComparison(tuple(differences), tuple(cosmetic))


def require_same_vocabulary(target: GgufHeader, draft: GgufHeader) -> VocabularyComparison:
    """Check that every token id that is said means the same to both models; returns what differs all the same.

    Raises IncompatibleDraftError naming both files and the differences, target first.
    """
    comparison = compare_vocabularies(target, draft)
    if comparison.differences:
        sizes = [len(tokens) if (tokens := _array(header, "tokens")) else 0 for header in (target, draft)]
        raise IncompatibleDraftError(
            f"draft {draft.path} cannot draft for {target.path}: their vocabularies ({sizes[0]} and {sizes[1]} tokens) "
            "differ: "
            f"{'; '.join(comparison.differences)} "
            "(target against draft); choose a draft of the same model family, or switch the draft off"
        )
    return comparison


def _other_names(target: GgufHeader, draft: GgufHeader) -> list[str]:
    keys = {key.removeprefix(_PREFIX) for key in (*target.metadata, *draft.metadata) if key.startswith(_PREFIX)}
    return sorted(keys - set(_KINDS) - set(_ARRAYS))


def _values_differ(target: GgufHeader, draft: GgufHeader, name: str) -> Iterator[str]:
    ours, theirs = target.metadata.get(_PREFIX + name), draft.metadata.get(_PREFIX + name)
    # A key that only one file has is no difference: converters of different age wrote them, and llama.cpp fills it
    # in from the tokens, which are equal. The kind of tokenizer is always told.
    if name not in _KINDS and (ours is None or theirs is None):
        return
    if ours == theirs:
        return
    if name.endswith("_token_id"):
        label = name.removesuffix("_id").replace("_", " ")
        texts = f"{_text(target, ours)} against {_text(draft, theirs)}"
        yield f"{label} {_shown(ours)} against {_shown(theirs)} ({texts})"
    else:
        yield f"tokenizer {name} {_shown(ours)} against {_shown(theirs)}"


def _text(header: GgufHeader, token: Value | None) -> str:
    """A token as its vocabulary spells it."""
    tokens = _array(header, "tokens")
    if tokens is None or not isinstance(token, int) or not 0 <= token < len(tokens):
        return "no such token"
    return repr(_decoded(tokens)[token])


def _padding(target: GgufHeader, draft: GgufHeader) -> list[str]:
    """What to say where one vocabulary is the other one and ids that nobody uses; empty where that is not so."""
    tokens = [_array(header, "tokens") for header in (target, draft)]
    types = [_array(header, "token_type") for header in (target, draft)]
    sizes = [len(array) if array else 0 for array in tokens]
    if sizes[0] == sizes[1] or None in types:
        return []
    longer = int(sizes[1] > sizes[0])
    kinds = types[longer]
    if kinds is None or kinds.element is ValueType.STRING or len(kinds) != max(sizes):
        return []
    if any(kind != _UNUSED for kind in kinds.numbers()[min(sizes) :]):
        return []
    owner = ("the target's", "the draft's")[longer]
    return [f"{sizes[0]} against {sizes[1]} tokens: {owner} {abs(sizes[0] - sizes[1])} more are unused padding"]


def _array_differs(target: GgufHeader, draft: GgufHeader, name: str, *, is_padded: bool) -> VocabularyComparison:
    ours, theirs = _array(target, name), _array(draft, name)
    if ours == theirs or (name == "scores" and None in (ours, theirs)):  # older BPE files carry scores of zero
        return VocabularyComparison((), ())
    if ours is None or theirs is None:
        return VocabularyComparison((f"tokenizer {name}: {_shown(ours)} against {_shown(theirs)}",), ())
    same_size = len(ours) == len(theirs)
    is_told = same_size or is_padded or name not in ("tokens", "merges")  # the others have as many as tokens
    sizes = () if is_told else (f"{len(ours)} against {len(theirs)} {name}",)
    if name == "merges" and sizes:  # one that is missing moves all behind it
        return VocabularyComparison(sizes, ())
    found = _elements_differ(_decoded(ours), _decoded(theirs), _ARRAYS[name], _unused(target, draft, name))
    if same_size and not (found.differences or found.cosmetic):
        # Equal elements in unlike encodings, or NaN scores: the bytes differ all the same.
        encodings = f"{ours.element.name.lower()} against {theirs.element.name.lower()}"
        return VocabularyComparison((f"{_ARRAYS[name][1]} are stored as {encodings}",), ())
    return VocabularyComparison(sizes + found.differences, found.cosmetic)


def _elements_differ(
    ours: Elements, theirs: Elements, names: tuple[str, str], unused: frozenset[int]
) -> VocabularyComparison:
    """Where two arrays differ as far as both go; elements in `unused` only for the record."""
    where = [index for index, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other]
    said = [index for index in where if index not in unused]
    unsaid = [index for index in where if index in unused]
    one, several = names
    return VocabularyComparison(
        _told(ours, theirs, said, one, several), _told(ours, theirs, unsaid, one, f"{several}, unused in both,")
    )


def _told(ours: Elements, theirs: Elements, where: Sequence[int], one: str, several: str) -> tuple[str, ...]:
    """A difference with its first examples; how many there are where it is not the only one."""
    if not where:
        return ()
    examples = ", ".join(f"{one} {index}: {ours[index]!r} against {theirs[index]!r}" for index in where[:_EXAMPLES])
    count = f"{len(where)} of {min(len(ours), len(theirs))} {several} differ: "
    return (examples if len(where) == 1 else count + examples,)


def _unused(target: GgufHeader, draft: GgufHeader, name: str) -> frozenset[int]:
    """Ids that both call unused, where the elements of an array belong to ids."""
    types = [_array(header, "token_type") for header in (target, draft)]
    if name == "merges" or any(array is None or array.element is ValueType.STRING for array in types):
        return frozenset()
    first, second = (array.numbers() for array in types if array is not None)
    kinds = zip(first, second, strict=False)
    return frozenset(index for index, both in enumerate(kinds) if both == (_UNUSED, _UNUSED))


def _array(header: GgufHeader, name: str) -> RawArray | None:
    return header.array(_PREFIX + name)


def _decoded(array: RawArray) -> Elements:
    if array.element is ValueType.STRING:
        return [value.decode(errors="backslashreplace") for value in array.strings()]
    return array.numbers()


def _shown(value: Value | None) -> str:
    if value is None:
        return "none"
    return f"{len(value)} elements" if isinstance(value, RawArray) else repr(value)[:80]
