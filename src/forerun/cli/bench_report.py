"""Results of `forerun bench` for people: a Markdown file, drawings, and a page that holds both."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from forerun.bench.ratios import Ratio, Verdict
from forerun.bench.results import Comparison, WorkloadResult, read_results
from forerun.cli.bench_plot import ratio_plot, workload_plot

MARKDOWN: Final = "report.md"
PAGE: Final = "report.html"
_STYLE: Final = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;color:#24292f}table{border-collapse:collapse}"
    "td,th{border:1px solid #d0d7de;padding:4px 8px;text-align:left}img,svg{max-width:100%}"
)


def report(folder: Path) -> Path:
    """Render what a folder holds; returns the page. Raises BenchmarkError, OSError."""
    return write_report(folder, read_results(folder))


def write_report(folder: Path, found: Comparison) -> Path:
    """Markdown, a drawing for each workload and one of all ratios, and the page. Raises OSError."""
    drawings = {_file(index, one): workload_plot(one) for index, one in enumerate(found.workloads) if _is_drawn(one)}
    if len(found.systems) > 1:
        drawings["ratios.svg"] = ratio_plot(found)
    for name, drawing in drawings.items():
        (folder / name).write_text(drawing, encoding="utf-8")
    (folder / MARKDOWN).write_text(markdown(found, list(drawings)), encoding="utf-8")
    page = folder / PAGE
    page.write_text(_page(found, list(drawings.values())), encoding="utf-8")
    return page


def markdown(found: Comparison, drawings: list[str]) -> str:
    """What was measured, a section for each workload."""
    lines = ["# forerun bench", "", _about(found), ""]
    lines += _table(_system_rows(found))
    if len(found.systems) > 1:
        lines += ["", f"## {found.subject} against the others", "", _HOW, ""]
        lines += _table(_ratio_rows(found))
    for one in found.workloads:
        lines += ["", f"## {one.title}", "", one.about, "", f"Sizes: {_sizes(one)}.", ""]
        lines += _table(_figure_rows(found, one))
    lines += ["", *(f"![{name.removesuffix('.svg')}]({name})" for name in drawings)]
    return "\n".join(lines).rstrip() + "\n"


_HOW: Final = (
    "How many times as good by the primary figure, above 1 better: median of the rounds' ratios (95% bootstrap "
    "interval). Where the interval holds 1 there is no difference that could be told from chance."
)


def _about(found: Comparison) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items() if value != "")
    return f"Machine: {machine}.  \nSettings: {settings}."


def _system_rows(found: Comparison) -> Iterator[list[str]]:
    yield ["server", "version", "start to first token, s", "memory then, MB"]
    for one in found.systems:
        yield [one.name, one.version, _number(one.start_to_first_token_s), _number(one.resident_mb)]


def _ratio_rows(found: Comparison) -> Iterator[list[str]]:
    others = [one.name for one in found.systems if one.name != found.subject]
    yield ["workload", "figure", *(f"against {name}" for name in others)]
    for one in found.workloads:
        yield [one.title, one.primary, *(ratio_text(one.ratio(found.subject, other)) for other in others)]


def ratio_text(found: Ratio | str) -> str:
    """`1.42 (1.31 to 1.55)`, with what may be said of it, or why there is none."""
    if isinstance(found, str):
        return f"none: {found}"
    says = "" if found.verdict in (Verdict.BETTER, Verdict.WORSE) else f", {found.verdict}"
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f}){says}"


def _figure_rows(found: Comparison, one: WorkloadResult) -> Iterator[list[str]]:
    names = [one.primary, *one.shown]
    yield ["server", *(name.replace("_", " ") for name in names)]
    for system in found.systems:
        if system.name in one.errors:
            yield [system.name, one.errors[system.name], *[""] * (len(names) - 1)]
            continue
        yield [system.name, *(_median(one.values(system.name, name)) for name in names)]


def _median(values: list[float]) -> str:
    return _number(statistics.median(values)) if values else ""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _sizes(one: WorkloadResult) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.sizes.items())


def _table(rows: Iterator[list[str]]) -> list[str]:
    heading, *others = (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    return [heading, f"|{'---|' * (heading.count('|') - 1)}", *others]


def _file(index: int, one: WorkloadResult) -> str:
    return f"{index + 1:02}-{one.title.replace(' ', '-')}.svg"


def _is_drawn(one: WorkloadResult) -> bool:
    return any(one.primary in round_.figures for both in one.rounds for round_ in both.values())


# --- the page ----------------------------------------------------------


def _page(found: Comparison, drawings: list[str]) -> str:
    """The Markdown's tables with all drawings in one file, which needs nothing else."""
    parts = [f"<p>{escape(_about(found)).replace('  ', '<br>')}</p>", _html_table(_system_rows(found))]
    if len(found.systems) > 1:
        parts += [f"<h2>{escape(found.subject)} against the others</h2><p>{escape(_HOW)}</p>"]
        parts += [_html_table(_ratio_rows(found))]
    for one in found.workloads:
        parts += [f"<h2>{escape(one.title)}</h2><p>{escape(one.about)}<br>Sizes: {escape(_sizes(one))}.</p>"]
        parts += [_html_table(_figure_rows(found, one))]
    head = f'<meta charset="utf-8"><title>forerun bench</title><style>{_STYLE}</style>'
    return "\n".join([f"<!doctype html>{head}<h1>forerun bench</h1>", *parts, *drawings])


def _html_table(rows: Iterator[list[str]]) -> str:
    heading, *others = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in others)
    return f"<table><tr>{head}</tr>{body}</table>"
