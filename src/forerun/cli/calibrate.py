"""`forerun calibrate`: cost curves as a table and bars."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from forerun.cli.curve_plot import curve_plot
from forerun.cli.options import ModelOptions
from forerun.cli.terminal import Terminal
from forerun.compose import calibrate
from forerun.core.costs import CostCurve
from forerun.core.step_budget import default_target_ms
from forerun.simulation.machine import costs_as_json

_BAR = 40


def show_costs(options: ModelOptions, *, plot: Path | None, output: Path | None, verbose: bool) -> None:
    """Measure and print; draw, and write the curves, where files are named for it."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise typer.BadParameter(f"plots are SVG files: name it {plot.stem}.svg, got {plot.name!r}")
    terminal = Terminal(verbose=verbose)
    config = dataclasses.replace(options.config(), recalibrate=True)
    with terminal.waiting("measuring"):
        curves = calibrate(config)
    console = Console(highlight=False)
    for path, curve in curves:
        console.print(cost_table(path.name, curve))
    latency = default_target_ms(curves[0][1], config.max_num_batched_tokens)
    terminal.note(
        f"{curves[0][0].name}: a token every {latency:.0f} ms beside others' prompts, unless --target-itl-ms says"
    )
    if plot is not None:
        plot.write_text(curve_plot([(path.name, curve) for path, curve in curves]), encoding="utf-8")
        terminal.note(f"drawn: {plot}")
    if output is not None:
        content = costs_as_json([(path.name, curve) for path, curve in curves])
        output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def cost_table(title: str, curve: CostCurve) -> Table:
    """One curve. The bars show what a row costs, the first row as long as the table allows."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = _caption(curve)
    for heading in ("rows", "ms", "ms a row"):
        table.add_column(heading, justify="right")
    table.add_column("a row costs")
    dearest = max(ms / rows for rows, ms in zip(curve.rows, curve.ms, strict=True))
    for rows, ms in zip(curve.rows, curve.ms, strict=True):
        each = ms / rows
        table.add_row(str(rows), f"{ms:.1f}", f"{each:.2f}", "█" * max(1, round(_BAR * each / dearest)))
    return table


def _caption(curve: CostCurve) -> str:
    """Where it was measured, and what logits and further cells cost."""
    measured = f"behind {curve.cells} cells, with logits of all rows, {curve.logit_ms:.2f} ms each"
    if not curve.ms_per_kilocell:
        return f"{measured}; what more of them cost was not measured"
    more = zip(curve.rows, curve.ms_per_kilocell, strict=True)
    told = ", ".join(f"{slope:.1f} for {rows}" for rows, slope in more if rows in (1, 8, 64))
    return f"{measured}; 1,000 more cost so many ms more, by rows: {told}"
