"""Writes docs/catalog.schema.json from the catalog's types: `python -m tools.catalog_schema`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import msgspec

from forerun.models.catalog_format import CatalogDocument

SCHEMA: Final = Path(__file__).resolve().parents[1] / "docs" / "catalog.schema.json"


def catalog_schema() -> str:
    """JSON Schema (2020-12) of a catalog's file."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A catalog of models for Forerun",
        **msgspec.json.schema(CatalogDocument),
    }
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(catalog_schema())
    sys.stderr.write(f"{SCHEMA} written\n")
