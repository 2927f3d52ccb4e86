"""`forerun check`: what fits and what does not, a line each, before any weights are loaded."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from forerun.cli.endings import ERROR
from forerun.cli.options import ModelOptions
from forerun.cli.terminal import Terminal
from forerun.compose import check
from forerun.engine.loading import PhaseProgress
from forerun.engine_config import EngineConfig
from forerun.models.findings import Finding, Verdict
from forerun.models.fit import TOKENS_A_REQUEST, Fit
from forerun.models.prospects import Check
from forerun.models.wanted import Limits

_STYLES = {Verdict.OK: "green", Verdict.NOTE: "cyan", Verdict.WARNING: "yellow", Verdict.REFUSED: "bold red"}


def check_models(options: ModelOptions, *, measures: bool | None, as_json: bool, verbose: bool) -> None:
    """Print the report; exits with 2 where something is refused. `measures`: None where costs are not known yet."""
    terminal = Terminal(verbose=verbose)
    config = options.config()
    if measures:
        config = dataclasses.replace(config, recalibrate=True)
    with terminal.waiting("checking"):
        result = check(config, measures=False) if measures is False else _measured(config, terminal)
    if as_json:
        print(json.dumps(report_as_json(result), ensure_ascii=False, indent=2))  # noqa: T201  # the product
    else:
        _print_report(result)
    if not result.preflight.is_usable:
        raise typer.Exit(ERROR)


def _measured(config: EngineConfig, terminal: Terminal) -> Check:
    return check(config, measures=True, progress=_announced(terminal))


def _announced(terminal: Terminal) -> PhaseProgress:
    """Says once for each model that its costs are being measured, and that this takes a while."""

    def show(name: str, share: float) -> None:
        if name.startswith("measuring ") and share == 0:
            terminal.note(f"{name}: what decodes cost here, a few seconds, once (--no-measure leaves it out)")

    return show


def _print_report(result: Check) -> None:
    """One line a finding: folded and coloured on a terminal, as they are elsewhere."""
    console = Console(highlight=False)
    for finding in result.preflight.findings:
        console.print(finding_line(finding), soft_wrap=not console.is_terminal)
    console.print(Text(verdict_of(result)), soft_wrap=not console.is_terminal)
    sys.stdout.flush()


def finding_line(finding: Finding) -> Text:
    line = Text(f"{finding.verdict:<8} ", style=_STYLES[finding.verdict])
    return line.append(f"{finding.subject:<11} {' '.join(finding.message.split())}", style="default")


def verdict_of(result: Check) -> str:
    """The last line."""
    counts = [
        (verdict, sum(finding.verdict is verdict for finding in result.preflight.findings))
        for verdict in (Verdict.REFUSED, Verdict.WARNING)
    ]
    told = ", ".join(
        f"{count} {verdict}{'s' * (count > 1 and verdict is Verdict.WARNING)}" for verdict, count in counts if count
    )
    usable = "usable" if result.preflight.is_usable else "not usable"
    return f"{usable}: {told}" if told else usable


def report_as_json(result: Check) -> dict[str, Any]:
    """The report as plain values. Bytes, tokens, tokens a second, and drafting as multiples of plain decoding."""
    found = result.preflight
    candidates = {"target": found.target, "draft": found.draft}
    return {
        "usable": found.is_usable,
        "findings": [
            {"verdict": finding.verdict, "subject": finding.subject, "message": finding.message}
            for finding in found.findings
        ],
        "limits": None if found.limits is None else dataclasses.asdict(found.limits),
        "memory": {
            "needed": found.needed,
            "resident": found.resident if found.is_usable else None,
            "free": None if found.free is None else found.free.free,
            "beside": found.beside,
            "places": [dataclasses.asdict(place) for place in found.places],
            **{name: None if one is None else dataclasses.asdict(one.survey) for name, one in candidates.items()},
        },
        "fit": _fit_as_json(result.fit, found.limits),
        "rates": None if result.rates is None else dataclasses.asdict(result.rates),
        "prospects": [dataclasses.asdict(prospect) for prospect in result.prospects],
    }


def _fit_as_json(fit: Fit | None, limits: Limits | None) -> dict[str, Any] | None:
    if fit is None or limits is None:
        return None
    counts = {str(tokens): fit.requests(tokens) for tokens in (TOKENS_A_REQUEST, limits.n_ctx)}
    return dataclasses.asdict(fit) | {"longest": fit.longest, "requests": counts}
