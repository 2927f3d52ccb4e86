from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import IncompatibleDraftError
from forerun.models.gguf_header import read_header
from forerun.models.vocabulary import compare_vocabularies, require_same_vocabulary
from tests.conftest import MakeTinyModel
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile
from tests.support.tiny_models import PADDING, TinyModel


def difference(target: Path, draft: Path) -> str:
    with pytest.raises(IncompatibleDraftError) as caught:
        require_same_vocabulary(read_header(target), read_header(draft))
    message = str(caught.value)
    assert str(target) in message
    assert str(draft) in message
    return message


def small(path: Path, **changes: bytes | None) -> Path:
    """A header with a vocabulary of three tokens; `changes` replace or (None) remove tokenizer keys."""
    entries: dict[str, bytes | None] = {
        "model": gguf.text("gpt2"),
        "pre": gguf.text("smollm"),
        "tokens": gguf.string_array([b"a", b"b", b"foo"]),
        "token_type": gguf.i32_array([1, 1, 1]),
        "merges": gguf.string_array([b"a b"]),
        "eos_token_id": gguf.u32(2),
        "add_bos_token": gguf.boolean(False),
    }
    entries |= changes
    GgufFile({f"tokenizer.ggml.{key}": value for key, value in entries.items() if value is not None}).write(path)
    return path


QWEN_TOKENS, R1_TOKENS, SPECIAL = 151_936, 152_064, 151_643


def qwen_like(path: Path, size: int, special: dict[int, str], **changes: bytes) -> Path:
    """A vocabulary that is Qwen's up to SPECIAL, in shape: then special tokens, then padding that nobody uses."""
    names = [f"t{index}" for index in range(SPECIAL + 22)]
    for index, name in special.items():
        names[index] = name
    padding = size - len(names)
    tokens = [name.encode() for name in names] + [b"[PAD%d]" % index for index in range(len(names), size)]
    types = [1] * SPECIAL + [3] * 22 + [5] * padding
    return small(path, tokens=gguf.string_array(tokens), token_type=gguf.i32_array(types), **changes)


def test_deepseek_s_vocabulary_is_refused_as_a_draft_for_qwen_with_both_sizes_and_the_first_difference(
    tmp_path: Path,
) -> None:
    """DeepSeek-R1-Distill-Qwen looks like Qwen: the same tokens, but for the special ones, and more padding."""
    ours = {SPECIAL: "<|endoftext|>", SPECIAL + 1: "<|im_start|>", SPECIAL + 2: "<|im_end|>"}
    theirs = {SPECIAL: "<end_of_sentence>", SPECIAL + 1: "<User>", SPECIAL + 2: "<Assistant>"}
    target = qwen_like(tmp_path / "qwen.gguf", QWEN_TOKENS, ours, pre=gguf.text("qwen2"))
    draft = qwen_like(tmp_path / "r1.gguf", R1_TOKENS, theirs, pre=gguf.text("deepseek-r1-qwen"))
    told = difference(target, draft)
    assert "their vocabularies (151936 and 152064 tokens) differ" in told
    assert "tokenizer pre 'qwen2' against 'deepseek-r1-qwen'" in told
    assert "3 of 151936 tokens differ: token 151643: '<|endoftext|>' against '<end_of_sentence>'" in told


def test_models_with_the_same_vocabulary_are_accepted(
    tiny_dense_path: Path, tiny_poor_draft_path: Path, tiny_smollm2_draft_path: Path, smollm2_path: Path
) -> None:
    for target, draft in (
        (tiny_dense_path, tiny_dense_path),
        (tiny_dense_path, tiny_poor_draft_path),
        (smollm2_path, tiny_smollm2_draft_path),
    ):
        require_same_vocabulary(read_header(target), read_header(draft))


def test_a_vocabulary_of_another_size_is_refused_with_both_sizes(
    tiny_dense_path: Path, tiny_foreign_path: Path
) -> None:
    assert "4096 against 3000 tokens" in difference(tiny_dense_path, tiny_foreign_path)


def test_a_permuted_vocabulary_of_the_same_size_is_refused_with_the_first_token_that_differs(
    tiny_dense_path: Path, tiny_permuted_path: Path
) -> None:
    ours = read_header(tiny_dense_path).array("tokenizer.ggml.tokens")
    assert ours is not None
    first, second = (ours.strings()[index].decode() for index in (1_000, 2_000))
    told = difference(tiny_dense_path, tiny_permuted_path)
    assert f"2 of 4096 tokens differ: token 1000: {first!r} against {second!r}, token 2000: {second!r}" in told


def test_another_end_of_sequence_token_is_refused_with_both_ids(
    tiny_dense_path: Path, tiny_model: MakeTinyModel
) -> None:
    told = difference(tiny_dense_path, tiny_model(TinyModel(eos=0)))
    assert "eos token 2 against 0 ('<|im_end|>' against '<|endoftext|>')" in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": gguf.text("llama")}, "tokenizer model 'gpt2' against 'llama'"),
        ({"pre": gguf.text("qwen2")}, "tokenizer pre 'smollm' against 'qwen2'"),
        ({"pre": None}, "tokenizer pre 'smollm' against none"),
        ({"token_type": gguf.i32_array([1, 1, 3])}, "type of token 2: 1 against 3"),
        ({"token_type": None}, "tokenizer token_type: 3 elements against none"),
        ({"merges": gguf.string_array([b"b a"])}, "merge 0: 'a b' against 'b a'"),
        ({"tokens": gguf.string_array([b"a", b"\xff", b"foo"])}, r"token 1: 'b' against '\\xff'"),
        ({"add_bos_token": gguf.boolean(True)}, "tokenizer add_bos_token False against True"),
    ],
)
def test_every_kind_of_difference_is_told(tmp_path: Path, changes: dict[str, bytes | None], told: str) -> None:
    assert told in difference(small(tmp_path / "target.gguf"), small(tmp_path / "draft.gguf", **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"padding_token_id": gguf.u32(1)},
        {"eot_token_id": gguf.u32(2)},
        {"add_bos_token": None},
        {"scores": gguf.f32_array([0.0, 0.0, 0.0])},
    ],
)
def test_keys_that_leave_the_meaning_of_ids_alone_are_no_difference(
    tmp_path: Path, changes: dict[str, bytes | None]
) -> None:
    target, draft = small(tmp_path / "target.gguf"), small(tmp_path / "draft.gguf", **changes)
    require_same_vocabulary(read_header(target), read_header(draft))
    require_same_vocabulary(read_header(draft), read_header(target))


def test_all_differences_are_told_with_their_number_and_the_first_few(tmp_path: Path) -> None:
    target = small(tmp_path / "target.gguf", tokens=gguf.string_array([b"a", b"b", b"c", b"d"]))
    draft = small(
        tmp_path / "draft.gguf",
        tokens=gguf.string_array([b"A", b"B", b"C", b"D"]),
        eos_token_id=gguf.u32(1),
        bos_token_id=gguf.u32(9),
        add_bos_token=gguf.boolean(True),
    )
    told = compare_vocabularies(read_header(target), read_header(draft))
    assert told.differences == (
        "4 of 4 tokens differ: token 0: 'a' against 'A', token 1: 'b' against 'B', token 2: 'c' against 'C'",
        "tokenizer add_bos_token False against True",
        "eos token 2 against 1 ('c' against 'B')",
    )
    assert told.cosmetic == ()


def test_unused_ids_at_the_end_of_either_vocabulary_are_padding(
    tiny_dense_path: Path, tiny_model: MakeTinyModel
) -> None:
    padded = tiny_model(TinyModel(vocabulary="padded"))
    for target, draft, owner in ((padded, tiny_dense_path, "the target's"), (tiny_dense_path, padded, "the draft's")):
        told = require_same_vocabulary(read_header(target), read_header(draft))
        assert not told.differences
        (note,) = told.cosmetic
        assert f"{owner} {PADDING} more are unused padding" in note


def test_more_ids_that_are_used_are_a_vocabulary_of_another_size(tmp_path: Path) -> None:
    longer = gguf.string_array([b"a", b"b", b"foo", b"bar"])
    normal = {"tokens": longer, "token_type": gguf.i32_array([1, 1, 1, 1])}
    unused = {"tokens": longer, "token_type": gguf.i32_array([1, 1, 1, 5])}
    target = small(tmp_path / "target.gguf")
    assert "3 against 4 tokens" in difference(target, small(tmp_path / "draft.gguf", **normal))
    require_same_vocabulary(read_header(target), read_header(small(tmp_path / "draft.gguf", **unused)))
    moved = unused | {"tokens": gguf.string_array([b"a", b"c", b"foo", b"bar"])}
    assert "token 1: 'b' against 'c'" in difference(target, small(tmp_path / "draft.gguf", **moved))


def test_texts_of_ids_that_are_unused_in_both_and_advice_to_programs_are_cosmetic(tmp_path: Path) -> None:
    types = gguf.i32_array([1, 1, 5])
    target = small(tmp_path / "target.gguf", token_type=types, padding_token_id=gguf.u32(0))
    other = gguf.string_array([b"a", b"b", b"bar"])
    draft = small(tmp_path / "draft.gguf", token_type=types, tokens=other, padding_token_id=gguf.u32(1))
    told = compare_vocabularies(read_header(target), read_header(draft))
    assert told.differences == ()
    assert told.cosmetic == ("token 2: 'foo' against 'bar'", "padding token 0 against 1 ('a' against 'b')")
