"""`forerun pull`: what is fetched on standard error, the files that came of it on standard output."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from forerun.cli.endings import ERROR, report
from forerun.cli.terminal import Terminal
from forerun.errors import DownloadError, InvalidConfigError, ModelNotFoundError
from forerun.fetch.catalog_plans import plan_listed
from forerun.fetch.plan import PullPlan
from forerun.fetch.planning import plan_source
from forerun.fetch.pull import PullListener, PullOptions, already_here, pull_all
from forerun.fetch.sources import GRAMMAR, is_source, parse_source
from forerun.models.catalog import load_catalog
from forerun.models.findings import size
from forerun.models.store import ModelStore, StoredModel


def pull_models(names: Sequence[str], *, sha256: str | None, at_once: int) -> None:
    """Fetch the models; exits with 2 where one could not be had, after all others."""
    if sha256 is not None and len(names) > 1:
        raise InvalidConfigError("sha256", f"is of one file, {len(names)} models are named: pull them one by one")
    terminal, store = Terminal(verbose=False), ModelStore.of_user()
    with terminal.waiting("looking"):
        plans = _plans(names, sha256, store)
    missing = {plan.id: plan for plan in plans if isinstance(plan, PullPlan)}
    for plan in missing.values():
        _announce(plan, terminal)
    placed: dict[str, StoredModel | DownloadError] = {}
    if missing:
        try:
            with _shown(terminal) as listener:
                results = asyncio.run(pull_all(list(missing.values()), store, listener, PullOptions(at_once=at_once)))
        except KeyboardInterrupt:
            terminal.note("interrupted: what has come stays, and the same pull goes on from there")
            raise
        placed = dict(zip(missing, results, strict=True))
    failed = False
    for wanted in plans:
        result = wanted if isinstance(wanted, StoredModel) else placed[wanted.id]
        if isinstance(result, StoredModel):
            terminal.note(_told(result, is_new=isinstance(wanted, PullPlan)))
            typer.echo(result.path)
        else:
            report(result)
            failed = True
    if failed:
        raise typer.Exit(ERROR)


def _plans(names: Sequence[str], sha256: str | None, store: ModelStore) -> list[PullPlan | StoredModel]:
    """Of each model what is to be fetched, or what is here of it already."""
    return [plan for name in names for plan in _plan(name, sha256, store)]


def _plan(name: str, sha256: str | None, store: ModelStore) -> list[PullPlan | StoredModel]:
    if is_source(name):
        source = parse_source(name)
        known = store.find(str(source))
        if known is not None and (sha256 is None or sha256.lower() in {file.sha256 for file in known.files}):
            return [known]  # the hub need not be asked
        return [plan_source(source, sha256)]
    listed = load_catalog().get(name)
    if listed is None:
        raise ModelNotFoundError(f"unknown model {name!r}: `forerun models list` shows the ids; or give {GRAMMAR}")
    if sha256 is not None:
        raise InvalidConfigError("sha256", f"the catalog says it already for {name}: leave it out")
    return [already_here(plan, store) or plan for plan in plan_listed(listed)]


def _announce(plan: PullPlan, terminal: Terminal) -> None:
    if plan.advice is not None:
        terminal.warn(plan.advice)
    count = f"{len(plan.files)} files" if len(plan.files) > 1 else plan.files[0].name
    terminal.note(f"{plan.id}: {count}" + ("" if plan.size is None else f", {size(plan.size)}"))


def _told(model: StoredModel, *, is_new: bool) -> str:
    return f"{model.id}: {'pulled' if is_new else 'already here'}, {size(model.size)}"


@contextmanager
def _shown(terminal: Terminal) -> Iterator[PullListener]:
    """A bar a file on a terminal, else a line where it has to wait."""
    if not terminal.console.is_terminal:
        yield _Listener(terminal, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal.console, transient=True, redirect_stdout=False) as bars:
        yield _Listener(terminal, bars)


class _Listener(PullListener):
    def __init__(self, terminal: Terminal, bars: Progress | None) -> None:
        self._terminal, self._bars = terminal, bars
        self._tasks: dict[str, TaskID] = {}

    def waits(self, plan: PullPlan) -> None:
        self._terminal.note(f"{plan.id}: another process pulls it: waiting until that has ended")

    def progress(self, name: str, done: int, total: int) -> None:
        if self._bars is None:
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[name], completed=done)
