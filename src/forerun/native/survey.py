"""What a model is and what a context of it takes, without weights:
`survey.py MODEL MODEL_PARAMS CONTEXT_PARAMS MATRICES`.

A program. Both parameters are JSON objects of fields of llama.cpp's structures, matrices are [type, bytes, shape] each
(`_repacked`); it prints one JSON object (`main`).
Weights and KV cells are not allocated (`no_alloc`), yet llama.cpp says in its log what they and its compute buffers
would take. Like probe.py this runs in a process of its own, which may die, and imports nothing else of Forerun.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from typing import Any

REFUSED, NO_CONTEXT, NO_LIBRARY = 3, 4, 5  # exit codes, read by forerun.models.native_child
_WARNING, _CONTINUED = 3, 5  # enum ggml_log_level: debug 1, info 2, warning 3, error 4, continuation 5
_MIB = 1024 * 1024
_MOST_STATE = 256 * _MIB
"""Recurrent states are really allocated, one for each sequence id: so many bytes are tried, the rest is worked out."""
_TYPE_F32, _TYPE_I32 = 0, 26  # enum ggml_type
_DEVICE_CPU, _DEVICE_GPU, _DEVICE_INTEGRATED_GPU = 0, 1, 2  # enum ggml_backend_dev_type
_SIZES = {  # "llama_kv_cache: size =  180.00 MiB (...)", "sched_reserve:  CPU compute buffer size =  98.25 MiB"
    "kv": re.compile(r"^llama_kv_cache\w*: size = +([\d.]+) MiB"),
    "state": re.compile(r"^llama_memory_recurrent: size = +([\d.]+) MiB"),
    "compute": re.compile(r" compute buffer size = +([\d.]+) MiB"),
    "outputs": re.compile(r"  output buffer size = +([\d.]+) MiB"),
}
_LAYER = re.compile(r"^load_tensors: layer +(\d+) assigned to device (\S+),")
_KV_LAYER = re.compile(r"^llama_kv_cache\w*: layer +\d+: dev = (\S+)")
_COMPUTE = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")


class Log:
    """Remembers llama.cpp's lines; warnings and errors go to standard error too."""

    def __init__(self) -> None:
        self.lines = [""]

    def __call__(self, level: int, text: bytes, _data: object) -> None:
        decoded = text.decode(errors="replace")
        if level >= _WARNING and level != _CONTINUED:
            _print(decoded, end="")
        *whole, rest = (self.lines.pop() + decoded).split("\n")
        self.lines += [*whole, rest]

    def sizes(self, start: int) -> dict[str, int]:
        """Bytes of each kind in the lines from `start` on."""
        found = {
            name: [float(match[1]) for line in self.lines[start:] if (match := pattern.search(line))]
            for name, pattern in _SIZES.items()
        }
        return {name: round(sum(mibs) * _MIB) for name, mibs in found.items()}

    def share(self, device: str, start: int, kv: int) -> dict[str, Any]:
        """What of a model, and of the context that the lines from `start` on are about, lies on a device: numbers of
        `layers`, and bytes. KV cells are counted by layers, as if all were of one size.
        """
        layers = [int(match[1]) for line in self.lines if (match := _LAYER.match(line)) and match[2] == device]
        holders = [match[1] for line in self.lines[start:] if (match := _KV_LAYER.match(line))]
        buffers = [match for line in self.lines[start:] if (match := _COMPUTE.search(line))]
        return {
            "layers": layers,
            "kv": kv * holders.count(device) // max(1, len(holders)),
            "compute": round(sum(float(match[2]) for match in buffers if match[1] == device) * _MIB),
        }


def main(path: str, model_params: str, context_params: str, matrices: str) -> int:
    """Exit code for the file at `path`; what was found out goes to standard output, llama.cpp's complaints to error.

    Kinds: `n_swa` (tokens), `is_recurrent`, `is_hybrid`, `n_ctx_train`, `n_vocab`, `cells` (tokens that the context has
    memory for). Bytes: `weights`, `kv`, `state`, `compute`, `outputs` (logits), `other` (vocabulary, graph),
    `repacked` (of the weights), `program` (Python and the library). `gpus`: what of them is on which (`Log.share`).
    `generates`: it has a memory and no encoder.
    """
    _leave_no_core_file()
    try:  # a missing library is an answer, not a traceback
        import llama_cpp.llama_cpp as llama
        from llama_cpp._ggml import libggml as ggml
    except (ImportError, OSError, RuntimeError) as error:
        _print(str(error))
        return NO_LIBRARY
    log = Log()
    callback = llama.llama_log_callback(log)
    llama.llama_log_set(callback, None)
    llama.llama_backend_init()
    before, program = _private_bytes(), _private_bytes("VmRSS:")
    parameters = _filled(llama.llama_model_default_params(), json.loads(model_params))
    parameters.no_alloc = True
    parameters.load_mode = llama.LLAMA_LOAD_MODE_NONE
    model = llama.llama_model_load_from_file(os.fsencode(path), parameters)
    if not model:
        return REFUSED
    limits = _filled(llama.llama_context_default_params(), json.loads(context_params))
    made = _context_sizes(llama, model, limits, log)
    if made is None:
        return NO_CONTEXT
    sizes, start = made
    found = {
        "generates": bool(sizes.pop("has_memory")) and not llama.llama_model_has_encoder(model),
        "other": max(0, _private_bytes() - before - sizes.pop("tried", 0)),
        "program": program,
    }
    gpus = [{"name": name} | log.share(name, start, sizes["kv"]) for name in _gpus(llama, ggml)]
    gpus = [gpu for gpu in gpus if gpu["layers"] or gpu["kv"] or gpu["compute"]]
    # Weights of which some go to a GPU are not repacked, or not these.
    found["repacked"] = 0 if gpus else _repacked(ggml, json.loads(matrices))
    print(json.dumps(_kinds(llama, model) | sizes | found | {"gpus": gpus}), flush=True)  # noqa: T201  # the answer
    return 0


def _kinds(llama: Any, model: Any) -> dict[str, Any]:
    return {
        "n_swa": llama.llama_model_n_swa(model),
        "is_recurrent": llama.llama_model_is_recurrent(model),
        "is_hybrid": llama.llama_model_is_hybrid(model),
        "n_ctx_train": llama.llama_model_n_ctx_train(model),
        "n_vocab": llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)),
        "weights": llama.llama_model_size(model),
    }


def _context_sizes(llama: Any, model: Any, limits: Any, log: Log) -> tuple[dict[str, int], int] | None:
    """Bytes of a context, and where its lines of the log begin; None where there is none.

    `tried`: bytes of states that are allocated now.
    """
    wanted = limits.n_seq_max
    if llama.llama_model_is_recurrent(model) or llama.llama_model_is_hybrid(model):
        limits.n_seq_max = 1
        one = _made(llama, model, limits, log)
        if one is None:
            return None
        limits.n_seq_max = max(1, min(wanted, _MOST_STATE // max(1, one["state"])))
    start = len(log.lines) - 1
    sizes = _made(llama, model, limits, log)
    if sizes is None:
        return None
    tried = sizes["state"]
    for name in ("state", "outputs"):  # a state, and a row of logits, for each sequence id
        sizes[name] = sizes[name] * wanted // limits.n_seq_max
    return sizes | {"tried": tried}, start


def _made(llama: Any, model: Any, limits: Any, log: Log) -> dict[str, int] | None:
    start = len(log.lines) - 1
    context = llama.llama_init_from_model(model, limits)
    if not context:
        return None
    sizes = log.sizes(start)
    sizes |= {"has_memory": int(bool(llama.llama_get_memory(context))), "cells": llama.llama_n_ctx(context)}
    if limits.n_seq_max == 1:
        llama.llama_free(context)
    return sizes


def _gpus(llama: Any, ggml: Any) -> list[str]:
    if not llama.llama_supports_gpu_offload():
        return []
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes, ggml.ggml_backend_dev_get.restype = [ctypes.c_size_t], ctypes.c_void_p
    ggml.ggml_backend_dev_name.argtypes, ggml.ggml_backend_dev_name.restype = [ctypes.c_void_p], ctypes.c_char_p
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    devices = [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]
    kinds = (_DEVICE_GPU, _DEVICE_INTEGRATED_GPU)
    return [ggml.ggml_backend_dev_name(one).decode() for one in devices if ggml.ggml_backend_dev_type(one) in kinds]


class _GgmlParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def _repacked(ggml: Any, matrices: list[tuple[int, int, list[int]]]) -> int:
    """Bytes of the matrices (type, bytes, shape in ggml's order) that the CPU copies to a layout of its own.

    llama.cpp asks in the same way (weight_buft_supported): a multiplication with a matrix that lies in such a buffer.
    """
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    for name in ("dev_by_type", "dev_backend_reg", "reg_get_proc_address", "buft_alloc_buffer"):
        getattr(ggml, f"ggml_backend_{name}").restype = pointer
    for name in ("init", "new_tensor", "mul_mat", "mul_mat_id"):
        getattr(ggml, f"ggml_{name}").restype = pointer
    ggml.ggml_backend_dev_supports_op.restype = ctypes.c_bool
    cpu = pointer(ggml.ggml_backend_dev_by_type(_DEVICE_CPU))
    registry = pointer(ggml.ggml_backend_dev_backend_reg(cpu))
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return 0
    layouts = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(cpu)
    buffers: list[int] = []
    while layouts[len(buffers)]:
        buffers.append(ggml.ggml_backend_buft_alloc_buffer(pointer(layouts[len(buffers)]), ctypes.c_size_t(0)))
    room = _GgmlParams(_MIB + 4096 * len(matrices) * len(buffers), None, True)
    context = pointer(ggml.ggml_init(room))

    def tensor(kind: int, *shape: int) -> Any:
        return pointer(ggml.ggml_new_tensor(context, kind, len(shape), (integer * len(shape))(*shape)))

    def is_taken(kind: int, shape: list[int], buffer: int) -> bool:
        weights = tensor(kind, *shape)
        pointer.from_address((weights.value or 0) + ctypes.sizeof(pointer)).value = buffer  # ggml_tensor.buffer
        if len(shape) == 2:
            product = ggml.ggml_mul_mat(context, weights, tensor(_TYPE_F32, shape[0], 512))
        else:
            rows, ids = tensor(_TYPE_F32, shape[0], 1, 512), tensor(_TYPE_I32, 1, 512)
            product = ggml.ggml_mul_mat_id(context, weights, rows, ids)
        return bool(ggml.ggml_backend_dev_supports_op(cpu, pointer(product)))

    taken = (size for kind, size, shape in matrices if any(is_taken(kind, shape, buffer) for buffer in buffers))
    return sum(taken)


def _filled(structure: Any, values: dict[str, Any]) -> Any:
    for name, value in values.items():
        setattr(structure, name, value)
    return structure


def _private_bytes(kind: str = "RssAnon:") -> int:
    """Memory of this process, by default what no file backs; 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as status:
            lines = [line for line in status if line.startswith(kind)]
    except OSError:
        return 0
    return int(lines[0].split()[1]) * 1024 if lines else 0


def _leave_no_core_file() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _print(text: str, end: str = "\n") -> None:
    sys.stderr.write(text + end)
    sys.stderr.flush()  # an abort would lose what is buffered


if __name__ == "__main__":
    # Skip the interpreter's and the library's tear-down: the answer is known, and the kernel frees the rest.
    os._exit(main(*sys.argv[1:]))
