"""`forerun models show | list | key`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forerun.cli.terminal import Terminal
from forerun.errors import ModelNotFoundError
from forerun.models.catalog import Catalog, load_catalog
from forerun.models.catalog_format import ListedModel, Method
from forerun.models.findings import size
from forerun.models.inspection import ModelDescription, describe
from forerun.models.listed import find_listed, listed_here, models_here
from forerun.models.package import bundle_of, package_of
from forerun.models.resolve import resolve_model
from forerun.models.store import StoredModel
from forerun.models.validate import read_model_header

_MOST_CHARACTERS: Final = 2_000
"""Of a line."""


def show_model(name: str, *, as_json: bool) -> None:
    """What a file says, what the catalog says of an id, or both."""
    listed = find_listed(name)
    try:
        found = describe(resolve_model(name))
    except ModelNotFoundError:
        if listed is None:
            raise
        found = None
    if as_json:
        listing = None if listed is None else msgspec.to_builtins(listed)
        _print_json({"catalog": listing, "file": None if found is None else _as_json(found)})
        return
    console = Console(highlight=False)
    for label, text in [*_listing(listed), *([] if found is None else _lines(found))]:
        console.print(Text(f"{label:<13} ", style="bold").append(_printable(text), style="not bold"), soft_wrap=True)


def _printable(text: str) -> str:
    """A line of its own, whatever a file has put into its texts."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_CHARACTERS])


def _listing(listed: ListedModel | None) -> Iterator[tuple[str, str]]:
    if listed is None:
        return
    yield "id", f"{listed.id}: {listed.name}"
    yield "from", listed.weights[0].source + (f" at {listed.revision}" if listed.revision else "")
    yield "download", f"{size(listed.size)}{' with its draft' if listed.draft else ''}"
    yield "licence", listed.licence
    yield "verified", "yes, these files ran here" if listed.verified else "no, not tried with Forerun yet"
    if listed.draft is not None:
        yield "draft", listed.draft.source
    elif listed.method is not None:
        yield "drafts", "its own MTP head" if listed.method is Method.MTP else "n-grams"
    missing = [one.source for one in listed.all_files if listed_here(one) is None]
    if missing:
        yield "not here", f"{', '.join(missing)}: run `forerun pull {listed.id}`"


def _lines(found: ModelDescription) -> Iterator[tuple[str, str]]:
    """A description for people: what the file says nothing of is left out."""
    yield "file", str(found.parts[0].path)
    yield "size", _sizes(found)
    yield "kind", found.kind + (f" for {found.base_model} models" if found.base_model else "")
    yield "architecture", _architecture(found)
    if found.name:
        yield "name", found.name
    if found.licence:
        yield "licence", found.licence
    if found.parameters:
        yield "parameters", f"{_count(found.parameters)}, {found.bits_per_parameter:.2f} bits each"
        yield "quantisation", _quantisation(found)
    if found.context_length:
        yield "context", _context(found)
    if found.vocabulary is not None:
        yield "vocabulary", _vocabulary(found)
        yield "template", _template(found)
    if found.layers and not found.base_model:
        yield "memory", found.memory
        yield "MTP head", "can draft" if found.why_no_mtp is None else f"none: {found.why_no_mtp}"
    if found.rope_base:
        yield "rope", _rope(found)
    if found.pooling:
        yield "pooling", found.pooling
    for part in found.missing:
        yield "missing", str(part)


def _sizes(found: ModelDescription) -> str:
    count = len(found.parts)
    return size(found.size) + (f" in {count - len(found.missing)} of {count} parts" if count > 1 else "")


def _architecture(found: ModelDescription) -> str:
    parts = [found.architecture or "not given"]
    if found.layers:
        parts.append(f"{found.layers} layers")
    if found.embedding_length:
        parts.append(f"width {found.embedding_length}")
    if found.heads:
        shared = f" ({_range(found.kv_heads)} for keys and values)" if found.kv_heads else ""
        parts.append(f"{found.heads} heads{shared}")
    if found.experts:
        parts.append(f"{found.experts_used} of {found.experts} experts")
    return ", ".join(parts)


def _range(numbers: tuple[int, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _quantisation(found: ModelDescription) -> str:
    total = max(1, sum(share.nbytes for share in found.tensors))
    shares = ", ".join(f"{share.type} {share.nbytes / total:.0%}" for share in found.tensors)
    return f"{found.file_type}: {shares}" if found.file_type else shares


def _context(found: ModelDescription) -> str:
    extended = found.original_context_length
    return f"{found.context_length} tokens" + (f", extended from {extended}" if extended else "")


def _vocabulary(found: ModelDescription) -> str:
    vocabulary = found.vocabulary
    if vocabulary is None:
        return ""
    pre = f", {vocabulary.pre}" if vocabulary.pre else ""
    return f"{vocabulary.kind}{pre}: {vocabulary.tokens} tokens, {vocabulary.merges} merges"


def _template(found: ModelDescription) -> str:
    if not found.template:
        return "none"
    return f"{found.template} characters, {'with' if found.template_has_tools else 'without'} tools"


def _rope(found: ModelDescription) -> str:
    sections = f", sections {' '.join(map(str, found.rope_sections))}" if found.rope_sections else ""
    return f"base {found.rope_base:.10g}{sections}{f', {found.rope_scaling}' if found.rope_scaling else ''}"


def _as_json(found: ModelDescription) -> dict[str, Any]:
    plain = dataclasses.asdict(found)
    plain["parts"] = [{"path": str(part.path), "size": part.size} for part in found.parts]
    return plain | {"size": found.size, "bits_per_parameter": found.bits_per_parameter, "memory": found.memory}


def list_models(*, only_here: bool, as_json: bool) -> None:
    catalog = load_catalog()
    rows = [_row(model, catalog) for model in catalog]
    rows += [_stored_row(one) for one in models_here() if one.id not in catalog.models]
    rows = [row for row in rows if row["here"] or not only_here]
    if as_json:
        _print_json({"models": rows})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "size", "context", "drafts", "verified", "here"):
        table.add_column(heading, justify="right" if heading in ("size", "context") else "left", no_wrap=True)
    for row in rows:
        told = ["" if row[name] is None else str(row[name]) for name in ("context_length", "method")]
        marks = ["yes" if row[name] else "" for name in ("verified", "here")]
        table.add_row(Text(row["id"]), size(row["size"]), *told, *marks)
    console = Console(highlight=False)
    console.print(table)
    console.print("sizes are with the draft; verified: these very files ran here; `forerun pull ID` fetches a model")


def _row(model: ListedModel, catalog: Catalog) -> dict[str, Any]:
    return {
        "id": model.id,
        "name": model.name,
        "size": model.size,
        "context_length": model.context_length,
        "licence": model.licence,
        "method": model.method,
        "verified": model.verified,
        "here": all(listed_here(one) is not None for one in model.all_files),
        "source": catalog.sources[model.id],
    }


def _stored_row(one: StoredModel) -> dict[str, Any]:
    """A model that was pulled and that no catalog lists."""
    return {
        "id": one.id,
        "name": one.path.name,
        "size": one.size,
        "context_length": None,
        "licence": None,
        "method": None,
        "verified": False,
        "here": True,
        "source": one.origin,
    }


def show_key(name: str, *, draft: str | None, has_mtp: bool, as_json: bool) -> None:
    if draft is not None and has_mtp:
        raise typer.BadParameter("--mtp: there is a --draft already; give one of the two")
    listed = find_listed(name)
    if listed is not None and draft is None and not has_mtp:
        draft = None if listed.draft is None else listed.draft.source
        has_mtp = listed.method is Method.MTP
    target = read_model_header(resolve_model(name))
    small = None if draft is None else read_model_header(resolve_model(draft))
    with Terminal(verbose=False).waiting("reading"):
        bundle = bundle_of(target, small, has_mtp=has_mtp)
    if not as_json:
        typer.echo(bundle.key)
        return
    files = [("target", target), *([] if small is None else [("draft", small)])]
    packages = {
        whose: {
            "package": (package := package_of(header)).id,
            "files": [{"role": one.role, "sha256": one.sha256} for one in package.files],
        }
        for whose, header in files
    }
    _print_json({"bundle": bundle.key, "method": bundle.method, **packages})


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False, indent=2))  # noqa: T201  # the product
