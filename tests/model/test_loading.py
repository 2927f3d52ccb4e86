"""Loading models: progress, interruption, errors, and where llama.cpp's log goes."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from forerun.core.memory import MemoryKind
from forerun.errors import ModelLoadError
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.log import NativeLog
from forerun.native.model import LlamaModel

pytestmark = pytest.mark.model


def test_a_model_says_what_it_is(smollm2: LlamaModel, smollm2_path: Path) -> None:
    assert smollm2.path == smollm2_path
    assert smollm2.n_ctx_train == 8192
    assert smollm2.n_swa == 0
    assert not smollm2.is_recurrent
    assert not smollm2.is_hybrid
    assert smollm2.memory.is_dense
    assert "Q4_1" in smollm2.description
    assert 90e6 < smollm2.size_bytes < 110e6
    assert smollm2_path.name in repr(smollm2)


def test_memories_that_cannot_be_cut_anywhere_are_told_apart(
    tiny_swa_path: Path, tiny_hybrid_path: Path, tiny_recurrent_path: Path
) -> None:
    swa, hybrid, recurrent = map(LlamaModel.load, (tiny_swa_path, tiny_hybrid_path, tiny_recurrent_path))
    assert swa.n_swa == 64
    assert hybrid.is_hybrid
    assert recurrent.is_recurrent
    assert swa.memory == MemoryKind(window=64)
    assert hybrid.memory == recurrent.memory == MemoryKind(has_state=True)


def test_a_file_whose_name_is_not_utf_8_is_loaded(tmp_path: Path, tiny_dense_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"mod\xe9le.gguf")
    path.symlink_to(tiny_dense_path)
    LlamaModel.load(path, vocab_only=True).close()


def test_progress_is_told_from_zero_to_one(tiny_dense_path: Path) -> None:
    shares: list[float] = []
    LlamaModel.load(tiny_dense_path, progress=shares.append).close()
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] == 1.0


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_while_loading_ends_the_load_and_is_raised(
    error: type[BaseException], tiny_dense_path: Path
) -> None:
    def progress(_share: float) -> None:
        raise error

    with pytest.raises(error):
        LlamaModel.load(tiny_dense_path, progress=progress)


def test_an_interrupt_while_loading_ends_the_load(smollm2_path: Path) -> None:
    def progress(share: float) -> None:
        if share > 0.1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        LlamaModel.load(smollm2_path, progress=progress)


def test_an_interrupt_while_a_context_is_made_is_not_lost(dense: LlamaModel) -> None:
    """Ctrl-C that came while llama.cpp wrote its log was dropped, and the program went on as if nothing had been."""

    class Interrupts(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            os.kill(os.getpid(), signal.SIGINT)  # to the process, as a terminal sends it

    logger, handler = logging.getLogger("forerun.native"), Interrupts()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            LlamaContext(dense, ContextParams(n_ctx=256, n_threads=1, n_threads_batch=1))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_a_vocabulary_loads_without_the_weights(smollm2: LlamaModel, smollm2_path: Path) -> None:
    model = LlamaModel.load(smollm2_path, vocab_only=True)
    assert model.vocabulary.end_tokens == smollm2.vocabulary.end_tokens
    model.close()
    model.close()


def test_what_llama_cpp_says_of_a_bad_file_is_in_the_error_and_not_on_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    with caplog.at_level(logging.DEBUG, "forerun.native"), pytest.raises(ModelLoadError) as raised:
        LlamaModel.load(path)
    assert str(path) in str(raised.value)
    assert "invalid" in str(raised.value) or "failed" in str(raised.value)
    assert any(record.levelno == logging.ERROR for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_a_context_that_cannot_be_made_is_an_error_that_says_why(dense: LlamaModel) -> None:
    params = ContextParams(n_ctx=256, n_seq_max=1000, n_threads=1, n_threads_batch=1)
    with pytest.raises(ModelLoadError, match="n_seq_max must be <= 256"):
        LlamaContext(dense, params)


def test_pieces_of_the_native_log_become_lines_with_levels(caplog: pytest.LogCaptureFixture) -> None:
    log = NativeLog(logging.getLogger("forerun.native"))
    mark = log.mark()
    with caplog.at_level(logging.DEBUG, "forerun.native"):
        for level, text in (
            (2, b"one line\n"),
            (3, b"begun, "),
            (5, b"continued"),
            (5, b", ended\n"),
            (4, b"first\nsecond\n"),
            (2, b"dots ."),
            (5, b"."),
            (4, b"\xff no text\n"),
            (1, None),
        ):
            log.write(level, text)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "one line"),
        ("WARNING", "begun, continued, ended"),
        ("ERROR", "first"),
        ("ERROR", "second"),
        ("DEBUG", "dots .."),
        ("ERROR", "\ufffd no text"),
    ]
    assert log.errors_since(mark, limit=2) == ["second", "\ufffd no text"]
    assert log.errors_since(log.mark()) == []
