"""What a model is and what a context of it would take, known before its weights are loaded.

llama.cpp says so itself, in a child process without weights (`forerun/native/survey.py`, 0.2 s, exact to its log's
0.01 MiB); what it said is remembered for each version of the file and each set of parameters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from forerun.devices import visible_devices
from forerun.errors import ModelFileError, ModelLoadError
from forerun.models.gguf_header import GgufHeader, TensorInfo
from forerun.models.native_child import SCRIPTS, run_child
from forerun.models.probe import identity
from forerun.models.probe_cache import digest
from forerun.models.user_cache import read_json, user_cache_file, write_json

_CHILD: Final = SCRIPTS / "survey.py"
_MAX_ENTRIES: Final = 128
_EMBEDDING: Final = "token_embd.weight"
Params = Mapping[str, int | float | bool]
"""Fields of llama.cpp's llama_model_params or llama_context_params."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """What of a model and its context lies in a GPU's memory. Bytes."""

    name: str
    """llama.cpp's for the device: "CUDA0"."""
    weights: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSurvey:
    """A model and one context of it, as llama.cpp sees them. Sizes in bytes."""

    n_ctx_train: int
    """Longest context the model was trained for, in tokens."""
    n_vocab: int
    n_swa: int
    """Width of the sliding window in tokens; 0 without one."""
    is_recurrent: bool
    is_hybrid: bool
    cells: int
    """Tokens that the context has memory for: more than was asked for, llama.cpp rounds up."""
    generates: bool
    """It has a memory, and no encoder: text can be written with it, token by token."""
    weights: int
    """All tensors once."""
    repacked: int
    """Of the weights: copied to a layout that suits the processor. The file's pages stay in memory beside them for as
    long as nobody else needs it."""
    kv: int
    """KV cells, allocated at once."""
    state: int
    """Recurrent states of all sequence ids."""
    compute: int
    """Buffers of one micro-batch."""
    outputs: int
    """Logits of one row for each sequence id."""
    other: int
    """Vocabulary, graph, bookkeeping of cells; 0 where the system does not tell."""
    program: int
    """Python and the native library, before anything is loaded: once a process, and no part of `total`."""
    gpus: tuple[GpuShare, ...] = ()
    """What of all this is not in the machine's own memory."""

    @property
    def has_state(self) -> bool:
        """Whether each sequence id has a whole state, recurrent or in part."""
        return self.is_recurrent or self.is_hybrid

    def with_ids(self, ids: int, logit_rows: int, surveyed: int) -> Self:
        """The same for other numbers of sequence ids, and of rows with logits, than the ids that were surveyed."""
        return replace(self, state=self.state * ids // surveyed, outputs=self.outputs * logit_rows // surveyed)

    @property
    def memory(self) -> str:
        """The kind of memory in words."""
        if self.is_recurrent:
            return "recurrent memory"
        window = f"sliding window of {self.n_swa} tokens" if self.n_swa else ""
        if self.is_hybrid:
            return f"hybrid memory (partly recurrent{', ' if window else ''}{window})"
        return window or "dense memory"

    @property
    def total(self) -> int:
        """Bytes of model and context together."""
        return self.weights + self.kv + self.state + self.compute + self.outputs + self.other

    @property
    def on_host(self) -> int:
        """Bytes of `total` in the machine's own memory."""
        return self.total - sum(gpu.total for gpu in self.gpus)

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """What `asdict` made of one. Raises ValueError, KeyError or TypeError for anything else."""
        gpus = tuple(GpuShare(name=str(gpu["name"]), **_numbers(gpu, GpuShare, "name")) for gpu in values["gpus"])
        return cls(**_numbers(values, cls, "gpus"), gpus=gpus)


def _numbers(values: Any, kind: type[Any], *others: str) -> dict[str, Any]:
    """The fields of a dataclass but for `others`, which are no numbers."""
    known = {field.name: values[field.name] for field in fields(kind) if field.name not in others}
    if any(not isinstance(value, int) or value < 0 for value in known.values()):
        raise ValueError("a survey has numbers and yes or no only")
    return known


def survey_model(header: GgufHeader, model: Params, context: Params, *, timeout: float = 60.0) -> ModelSurvey:
    """Ask llama.cpp about the file of `header`, which passed `probe_model`, loaded with these parameters.

    Raises ModelFileError where the library dies of it, ModelLoadError where it makes no such context, or the machine
    refuses a process.
    """
    path, cache = header.path, user_cache_file("surveys.json")
    arguments = (json.dumps(model, sort_keys=True), json.dumps(context, sort_keys=True))
    try:
        key = digest(repr((4, identity(path), arguments, visible_devices())))
        known = _entries(cache)
        try:
            return ModelSurvey.from_json(known[key])
        except (KeyError, TypeError, ValueError):
            survey = _asked(header, arguments, timeout, gpus=bool(model.get("n_gpu_layers")))
    except OSError as error:
        raise ModelLoadError(f"{path}: the model could not be checked: {error}") from error
    kept = {name: entry for name, entry in known.items() if name != key} | {key: asdict(survey)}
    write_json(cache, dict(list(kept.items())[-_MAX_ENTRIES:]))
    return survey


def _asked(header: GgufHeader, arguments: tuple[str, str], timeout: float, *, gpus: bool) -> ModelSurvey:
    path = header.path
    output = run_child(_CHILD, path, *arguments, json.dumps(_matrices(header)), timeout=timeout, gpus=gpus)
    try:
        said = json.loads(output.splitlines()[-1])
        shares = [gpu | {"weights": _weights_of(header, set(gpu["layers"]))} for gpu in said["gpus"]]
        return ModelSurvey.from_json(said | {"gpus": shares})
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: the native library's answer makes no sense: {error}") from error


def _matrices(header: GgufHeader) -> list[tuple[int, int, tuple[int, ...]]]:
    """Type, bytes (all of that shape together) and shape of what rows are multiplied with."""
    sizes: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for tensor in header.tensors:
        if len(tensor.shape) in (2, 3) and tensor.name.endswith(".weight") and tensor.name != _EMBEDDING:
            sizes[tensor.type, tensor.shape] += tensor.size or 0
    return [(kind, size, shape) for (kind, shape), size in sizes.items()]


def _weights_of(header: GgufHeader, layers: set[int]) -> int:
    """Bytes of the tensors of these layers, by llama.cpp's numbers: the output comes behind the last block."""
    count = header.hparam("block_count")
    output = count if isinstance(count, int) else -1
    return sum(tensor.size or 0 for tensor in header.tensors if _layer_of(tensor, output) in layers)


def _layer_of(tensor: TensorInfo, output: int) -> int | None:
    kind, _, rest = tensor.name.partition(".")
    number = rest.partition(".")[0]
    if kind == "blk" and number.isdecimal():
        return int(number)
    return output if kind.startswith("output") else None


def _entries(cache: Path | None) -> dict[str, Any]:
    entries = read_json(cache)
    return entries if isinstance(entries, dict) else {}
