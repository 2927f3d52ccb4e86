"""Says what llama.cpp was compiled for and which devices it finds, as one JSON object: `python describe.py`.

A process of its own, which may die: a library that was compiled for another processor ends whoever loads it. Imports
nothing else of Forerun, like probe.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

NO_LIBRARY = 5  # exit code, read by forerun.doctor.library
_KINDS = ("cpu", "gpu", "integrated gpu", "accelerator", "meta")  # enum ggml_backend_dev_type


def main() -> int:
    try:  # a missing library is an answer, not a traceback
        import llama_cpp.llama_cpp as llama
        from llama_cpp._ggml import libggml
    except (ImportError, OSError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return NO_LIBRARY
    silent = llama.llama_log_callback(lambda _level, _text, _data: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    found = {
        "system_info": llama.llama_print_system_info().decode(errors="replace"),
        "gpu_offload": bool(llama.llama_supports_gpu_offload()),
        "devices": _devices(libggml),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    return 0


def _devices(ggml: Any) -> list[dict[str, Any]]:
    """What ggml.h says of each device; memory in bytes."""
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes, ggml.ggml_backend_dev_get.restype = [ctypes.c_size_t], pointer
    for function, result in ((ggml.ggml_backend_dev_name, text), (ggml.ggml_backend_dev_description, text)):
        function.argtypes, function.restype = [pointer], result
    ggml.ggml_backend_dev_type.argtypes, ggml.ggml_backend_dev_type.restype = [pointer], ctypes.c_int
    size = ctypes.POINTER(ctypes.c_size_t)
    ggml.ggml_backend_dev_memory.argtypes, ggml.ggml_backend_dev_memory.restype = [pointer, size, size], None
    return [_device(ggml, ggml.ggml_backend_dev_get(index)) for index in range(ggml.ggml_backend_dev_count())]


def _device(ggml: Any, device: int) -> dict[str, Any]:
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    kind = ggml.ggml_backend_dev_type(device)
    return {
        "name": (ggml.ggml_backend_dev_name(device) or b"").decode(errors="replace"),
        "description": (ggml.ggml_backend_dev_description(device) or b"").decode(errors="replace"),
        "kind": _KINDS[kind] if 0 <= kind < len(_KINDS) else "other",
        "free": free.value,
        "total": total.value,
    }


if __name__ == "__main__":
    os._exit(main())  # skip the library's tear-down, as probe.py does
