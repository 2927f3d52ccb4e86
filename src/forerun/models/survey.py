"""What a model is and what a context of it would take, known before its weights are loaded.

llama.cpp says so itself, in a child process without weights (`forerun/native/survey.py`, 0.2 s, exact to its log's
0.01 MiB); what it said is remembered for each version of the file and each set of parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from forerun.devices import visible_devices
from forerun.errors import ModelFileError, ModelLoadError
from forerun.models.native_child import SCRIPTS, run_child
from forerun.models.probe import identity
from forerun.models.probe_cache import digest
from forerun.models.user_cache import read_json, user_cache_file, write_json

_CHILD: Final = SCRIPTS / "survey.py"
_MAX_ENTRIES: Final = 128
Params = Mapping[str, int | float | bool]
"""Fields of llama.cpp's llama_model_params or llama_context_params."""


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
    generates: bool
    """It has a memory, and no encoder: text can be written with it, token by token."""
    has_gpu: bool
    """Layers would go to a GPU: some of the bytes are its own."""
    weights: int
    """All tensors once. Of those that llama.cpp repacks for the CPU the file's pages stay cached if there is room."""
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

    @property
    def has_state(self) -> bool:
        """Whether each sequence id has a whole state, recurrent or in part."""
        return self.is_recurrent or self.is_hybrid

    def with_ids(self, ids: int, surveyed: int) -> Self:
        """The same for another number of sequence ids than was surveyed."""
        return replace(self, state=self.state * ids // surveyed, outputs=self.outputs * ids // surveyed)

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

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Raises ValueError, KeyError or TypeError for anything but what the child prints."""
        if not isinstance(values, dict):
            raise TypeError(f"expected an object, got {type(values).__name__}")
        known: dict[str, Any] = {field.name: values[field.name] for field in fields(cls)}
        if any(not isinstance(value, int) or value < 0 for value in known.values()):
            raise ValueError("a survey has numbers and yes or no only")
        return cls(**known)


def survey_model(path: Path, model: Params, context: Params, *, timeout: float = 60.0) -> ModelSurvey:
    """Ask llama.cpp about the file at `path`, which passed `probe_model`, loaded with these parameters.

    Raises ModelFileError where the library dies of it, ModelLoadError where it makes no such context, or the machine
    refuses a process.
    """
    cache = user_cache_file("surveys.json")
    arguments = (json.dumps(model, sort_keys=True), json.dumps(context, sort_keys=True))
    try:
        key = digest(repr((2, identity(path), arguments, visible_devices())))
        known = _entries(cache)
        try:
            return ModelSurvey.from_json(known[key])
        except (KeyError, TypeError, ValueError):
            survey = _asked(path, arguments, timeout, gpus=bool(model.get("n_gpu_layers")))
    except OSError as error:
        raise ModelLoadError(f"{path}: the model could not be checked: {error}") from error
    kept = {name: entry for name, entry in known.items() if name != key} | {key: asdict(survey)}
    write_json(cache, dict(list(kept.items())[-_MAX_ENTRIES:]))
    return survey


def _asked(path: Path, arguments: tuple[str, str], timeout: float, *, gpus: bool) -> ModelSurvey:
    output = run_child(_CHILD, path, *arguments, timeout=timeout, gpus=gpus)
    try:
        return ModelSurvey.from_json(json.loads(output.splitlines()[-1]))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: the native library's answer makes no sense: {error}") from error


def _entries(cache: Path | None) -> dict[str, Any]:
    entries = read_json(cache)
    return entries if isinstance(entries, dict) else {}
