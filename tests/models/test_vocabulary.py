from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import IncompatibleDraftError
from forerun.models.gguf_header import read_header
from forerun.models.vocabulary import require_same_vocabulary
from tests.conftest import MakeTinyModel
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile
from tests.support.tiny_models import TinyModel


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


def test_models_with_the_same_vocabulary_are_accepted(
    tiny_dense_path: Path, tiny_poor_draft_path: Path, smollm2_path: Path
) -> None:
    for draft in (tiny_dense_path, tiny_poor_draft_path, smollm2_path):
        require_same_vocabulary(read_header(tiny_dense_path), read_header(draft))


def test_a_vocabulary_of_another_size_is_refused_with_both_sizes(
    tiny_dense_path: Path, tiny_foreign_path: Path
) -> None:
    assert "49152 against 32000 tokens" in difference(tiny_dense_path, tiny_foreign_path)


def test_a_permuted_vocabulary_of_the_same_size_is_refused_with_the_first_token_that_differs(
    tiny_dense_path: Path, tiny_permuted_path: Path
) -> None:
    ours = read_header(tiny_dense_path).array("tokenizer.ggml.tokens")
    assert ours is not None
    first, second = (ours.strings()[index].decode() for index in (1_000, 2_000))
    assert f"token 1000: {first!r} against {second!r}" in difference(tiny_dense_path, tiny_permuted_path)


def test_another_end_of_sequence_token_is_refused_with_both_ids(
    tiny_dense_path: Path, tiny_model: MakeTinyModel
) -> None:
    assert "eos token 2 against 0" in difference(tiny_dense_path, tiny_model(TinyModel(eos=0)))


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
