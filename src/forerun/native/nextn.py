"""llama.cpp's NextN calls: hidden states out of a context. A staging API, reached through `llama_cpp.llama_cpp_ext`.

That module raises AttributeError while it is imported where the library lacks one of the symbols, so it is imported
only when somebody asks.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from llama_cpp import llama_cpp
from numpy.typing import NDArray

from forerun.errors import EngineError


class NextnUnavailableError(EngineError):
    """This build of llama-cpp-python has no NextN calls, or other ones."""


def nextn_width(model_handle: int) -> int:
    """Numbers of one hidden state."""
    width: int = llama_cpp.llama_model_n_embd_out(model_handle)
    return width


def output_hidden_states(context_handle: int) -> None:
    """From now on decodes also give the hidden states of all rows. Raises NextnUnavailableError.

    llama.cpp can also give those of output rows alone ("masked"), but in the graph of an MTP head that copies as many
    rows from the *beginning* of the batch: right only where every row is an output.
    """
    is_masked = False
    _calls().llama_set_embeddings_nextn(context_handle, True, is_masked)


def hidden_states(context_handle: int, rows: int, width: int) -> NDArray[np.float32]:
    """Hidden states of the last decode, in the batch's order: shape (rows, width).

    A view of native memory: valid until the next decode.
    """
    pointer = _calls().llama_get_embeddings_nextn(context_handle)
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    if not address:
        raise ValueError("the last decode gave no hidden states")
    buffer = (ctypes.c_float * (rows * width)).from_address(address)
    view: NDArray[np.float32] = np.ctypeslib.as_array(buffer).reshape(rows, width)
    return view


@cache
def _calls() -> Any:
    try:
        from llama_cpp import llama_cpp_ext
    except (ImportError, AttributeError) as error:
        reason = f"this llama-cpp-python has no NextN calls ({error}); upgrade it"
        raise NextnUnavailableError(reason) from error
    return llama_cpp_ext


def why_no_nextn() -> str | None:
    """One line on why this build cannot run MTP heads, None where it can."""
    try:
        _calls()
    except NextnUnavailableError as error:
        return str(error)
    names = {name for name, *_ in llama_cpp.llama_model_params._fields_} | {
        name for name, *_ in llama_cpp.llama_context_params._fields_
    }
    missing = [name for name in ("load_mtp", "ctx_type") if name not in names]
    return f"this llama-cpp-python has no parameter {missing[0]}; upgrade it" if missing else None
