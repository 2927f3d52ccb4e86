"""`forerun doctor`: the machine, the library and the folders, a line each."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from typing import Any

import typer
from rich.console import Console

import forerun
from forerun.cli.check import finding_line
from forerun.cli.endings import ERROR
from forerun.cli.terminal import Terminal
from forerun.doctor.judging import Place, judge
from forerun.doctor.library import Library, look_at_library
from forerun.doctor.machine import Machine, can_be_written, free_on_disk, look_at_machine
from forerun.errors import ModelNotFoundError
from forerun.models.findings import Finding, Verdict, size
from forerun.models.store import ModelStore
from forerun.models.user_cache import user_cache_file


def show_diagnosis(*, as_json: bool) -> None:
    """Print the report; exits with 2 where no model can be run."""
    with Terminal(verbose=False).waiting("looking"):
        machine, library = look_at_machine(), look_at_library()
        findings = judge(machine, library, _places(), os.environ)
    versions = f"forerun {forerun.__version__}, Python {platform.python_version()}"
    findings.insert(0, Finding(Verdict.OK, "version", versions))
    if as_json:
        print(json.dumps(_as_json(machine, library, findings), ensure_ascii=False, indent=2))  # noqa: T201  # the product
    else:
        console = Console(highlight=False)
        for finding in findings:
            console.print(finding_line(finding), soft_wrap=not console.is_terminal)
    if any(finding.verdict is Verdict.REFUSED for finding in findings):
        raise typer.Exit(ERROR)


def _places() -> list[Place]:
    places = []
    try:
        store = ModelStore.of_user()
    except ModelNotFoundError:
        pass  # no home folder: `forerun pull` says so
    else:
        content = _content_of(store)
        folder = store.folder
        places.append(Place("models", str(folder), free_on_disk(folder), can_be_written(folder), content))
    cache = user_cache_file("costs.json")
    if cache is not None:
        folder = cache.parent
        places.append(Place("measured", str(folder), free_on_disk(folder), can_be_written(folder)))
    return places


def _content_of(store: ModelStore) -> str:
    models, partials = store.models(), store.partials()
    told = f"{len(models)} pulled, {size(sum(model.size for model in models))}" if models else "none pulled"
    unfinished = size(sum(partial.size for partial in partials))
    return told + (f", {len(partials)} not to the end ({unfinished})" if partials else "")


def _as_json(machine: Machine, library: Library, findings: list[Finding]) -> dict[str, Any]:
    about = dataclasses.asdict(machine) | {"cpu_flags": sorted(machine.cpu_flags)}
    return {
        "findings": [
            {"verdict": finding.verdict, "subject": finding.subject, "message": finding.message} for finding in findings
        ],
        "machine": about,
        "library": dataclasses.asdict(library) | {"features": sorted(library.features)},
    }
