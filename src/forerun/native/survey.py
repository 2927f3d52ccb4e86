"""What a model is and what a context of it takes, without weights: `survey.py MODEL MODEL_PARAMS CONTEXT_PARAMS`.

A program. Both parameters are JSON objects of fields of llama.cpp's structures; it prints one JSON object (`main`).
Weights and KV cells are not allocated (`no_alloc`), yet llama.cpp says in its log what they and its compute buffers
would take. Like probe.py this runs in a process of its own, which may die, and imports nothing else of Forerun.
"""

from __future__ import annotations

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
_SIZES = {  # "llama_kv_cache: size =  180.00 MiB (...)", "sched_reserve:  CPU compute buffer size =  98.25 MiB"
    "kv": re.compile(r"^llama_kv_cache\w*: size = +([\d.]+) MiB"),
    "state": re.compile(r"^llama_memory_recurrent: size = +([\d.]+) MiB"),
    "compute": re.compile(r" compute buffer size = +([\d.]+) MiB"),
    "outputs": re.compile(r"  output buffer size = +([\d.]+) MiB"),
}


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


def main(path: str, model_params: str, context_params: str) -> int:
    """Exit code for the file at `path`; what was found out goes to standard output, llama.cpp's complaints to error.

    Kinds: `n_swa` (tokens), `is_recurrent`, `is_hybrid`, `n_ctx_train`, `n_vocab`. Bytes: `weights`,
    `kv`, `state` (recurrent), `compute`, `outputs` (logits), `other` (vocabulary, graph). `has_gpu`: some of them are
    a GPU's. `generates`: it has a memory and no encoder.
    """
    _leave_no_core_file()
    try:  # a missing library is an answer, not a traceback
        import llama_cpp.llama_cpp as llama
    except (ImportError, OSError, RuntimeError) as error:
        _print(str(error))
        return NO_LIBRARY
    log = Log()
    callback = llama.llama_log_callback(log)
    llama.llama_log_set(callback, None)
    llama.llama_backend_init()
    before = _private_bytes()
    parameters = _filled(llama.llama_model_default_params(), json.loads(model_params))
    parameters.no_alloc = True
    parameters.load_mode = llama.LLAMA_LOAD_MODE_NONE
    model = llama.llama_model_load_from_file(os.fsencode(path), parameters)
    if not model:
        return REFUSED
    limits = _filled(llama.llama_context_default_params(), json.loads(context_params))
    sizes = _context_sizes(llama, model, limits, log)
    if sizes is None:
        return NO_CONTEXT
    generates = bool(sizes.pop("has_memory")) and not llama.llama_model_has_encoder(model)
    other = _private_bytes() - before - sizes.pop("tried", 0)
    print(json.dumps(_kinds(llama, model) | sizes | {"generates": generates, "other": max(0, other)}), flush=True)  # noqa: T201  # the answer
    return 0


def _kinds(llama: Any, model: Any) -> dict[str, Any]:
    return {
        "n_swa": llama.llama_model_n_swa(model),
        "is_recurrent": llama.llama_model_is_recurrent(model),
        "is_hybrid": llama.llama_model_is_hybrid(model),
        "n_ctx_train": llama.llama_model_n_ctx_train(model),
        "n_vocab": llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)),
        "weights": llama.llama_model_size(model),
        "has_gpu": llama.llama_supports_gpu_offload(),
    }


def _context_sizes(llama: Any, model: Any, limits: Any, log: Log) -> dict[str, int] | None:
    """Bytes of a context; None where there is none. `tried`: bytes of states that are allocated now."""
    wanted = limits.n_seq_max
    if llama.llama_model_is_recurrent(model) or llama.llama_model_is_hybrid(model):
        limits.n_seq_max = 1
        one = _made(llama, model, limits, log)
        if one is None:
            return None
        limits.n_seq_max = max(1, min(wanted, _MOST_STATE // max(1, one["state"])))
    sizes = _made(llama, model, limits, log)
    if sizes is None:
        return None
    tried = sizes["state"]
    for name in ("state", "outputs"):  # a state, and a row of logits, for each sequence id
        sizes[name] = sizes[name] * wanted // limits.n_seq_max
    return sizes | {"tried": tried}


def _made(llama: Any, model: Any, limits: Any, log: Log) -> dict[str, int] | None:
    start = len(log.lines) - 1
    context = llama.llama_init_from_model(model, limits)
    if not context:
        return None
    sizes = log.sizes(start) | {"has_memory": int(bool(llama.llama_get_memory(context)))}
    if limits.n_seq_max == 1:
        llama.llama_free(context)
    return sizes


def _filled(structure: Any, values: dict[str, Any]) -> Any:
    for name, value in values.items():
        setattr(structure, name, value)
    return structure


def _private_bytes() -> int:
    """Memory of this process that no file backs; 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as status:
            lines = [line for line in status if line.startswith("RssAnon:")]
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
