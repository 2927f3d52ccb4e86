"""`forerun models rm` and `verify`."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from forerun.cli.endings import SOME_FAILED
from forerun.cli.terminal import Terminal
from forerun.errors import ModelNotFoundError
from forerun.models.findings import size
from forerun.models.store import ModelStore, StoredModel
from forerun.models.verifying import fault_of


def remove_models(names: Sequence[str], *, yes: bool) -> None:
    """Ask, then delete. Raises ModelNotFoundError before anything is deleted, where one is not here."""
    store = ModelStore.of_user()
    wanted = list(dict.fromkeys(names))
    sizes = {name: _size_of(store, name) for name in wanted}
    told = f"{', '.join(wanted)}: {size(sum(sizes.values()))}"
    if not yes and not typer.confirm(f"Delete {told} in {store.folder}?", err=True):
        raise typer.Exit(1)
    for name in wanted:
        with store.locked(name):
            store.remove(name)
    typer.echo(f"deleted: {told}")


def verify_models(names: Sequence[str]) -> None:
    """A line a file; exits with 1 where one is not as it was."""
    store = ModelStore.of_user()
    models = [_require(store, name) for name in names] if names else store.models()
    if not models:
        typer.echo(f"no model was pulled to {store.folder} yet")
        return
    terminal, damaged = Terminal(verbose=False), []
    for model in models:
        with terminal.loading(model.id, doing="reading") as bars:
            faults = {file.name: fault_of(model, file, bars.show) for file in model.files}
        for name, fault in faults.items():
            typer.echo(f"{'ok' if fault is None else 'damaged':<8} {model.id}  {name}{f' {fault}' if fault else ''}")
        if any(faults.values()):
            damaged.append(model.id)
    if damaged:
        again = " && ".join(f"forerun models rm --yes {name} && forerun pull {name}" for name in damaged)
        terminal.note(f"fetch again what is damaged: {again}")
        raise typer.Exit(SOME_FAILED)


def _size_of(store: ModelStore, name: str) -> int:
    model, partial = store.find(name), store.partial(name)
    if model is None and partial is None:
        raise _not_here(store, name)
    return (model.size if model else 0) + (partial.size if partial else 0)


def _require(store: ModelStore, name: str) -> StoredModel:
    model = store.find(name)
    if model is None:
        raise _not_here(store, name)
    return model


def _not_here(store: ModelStore, name: str) -> ModelNotFoundError:
    known = ", ".join(model.id for model in store.models()) or "nothing at all"
    return ModelNotFoundError(f"{name!r} was not pulled to {store.folder}: there is {known}")
