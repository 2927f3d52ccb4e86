"""Loads one model's metadata and makes a small context, as a process of its own: `python probe.py MODEL`.

llama.cpp checks much of a file with assertions and divides by some of its numbers, so a bad file can end the process
that loads it. This one may die; `forerun.models.probe` reads how. Weights are neither read nor allocated (`no_alloc`).
Started by path, not by `-m`, so that nothing else of Forerun is imported: it takes 0.2 s.
"""

from __future__ import annotations

import os
import sys
from typing import Any

REFUSED, NO_CONTEXT, NO_LIBRARY = 3, 4, 5  # exit codes, read by forerun.models.native_child
_WARNING = 3  # enum ggml_log_level: debug 1, info 2, warning 3, error 4, continuation 5


def main(path: str) -> int:
    """Exit code for the file at `path`; the library's warnings and errors go to standard error."""
    _leave_no_core_file()
    try:  # a missing library is an answer, not a traceback
        import llama_cpp.llama_cpp as llama
    except (ImportError, OSError, RuntimeError) as error:
        _print(str(error))
        return NO_LIBRARY
    callback = llama.llama_log_callback(_log)
    llama.llama_log_set(callback, None)
    llama.llama_backend_init()
    return _load(llama, path)


def _load(llama: Any, path: str) -> int:
    parameters = llama.llama_model_default_params()
    parameters.no_alloc = True
    parameters.load_mode = llama.LLAMA_LOAD_MODE_NONE
    parameters.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(os.fsencode(path), parameters)
    if not model:
        return REFUSED
    limits = llama.llama_context_default_params()
    limits.n_ctx, limits.n_batch, limits.n_ubatch = 256, 32, 32
    return 0 if llama.llama_init_from_model(model, limits) else NO_CONTEXT


def _leave_no_core_file() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _log(level: int, text: bytes, _data: object) -> None:
    if level >= _WARNING:
        _print(text.decode(errors="replace"), end="")


def _print(text: str, end: str = "\n") -> None:
    sys.stderr.write(text + end)
    sys.stderr.flush()  # an abort would lose what is buffered


if __name__ == "__main__":
    # Skip the interpreter's and the library's tear-down: the answer is known, and the kernel frees the rest.
    os._exit(main(sys.argv[1]))
