"""The machine that is simulated: what decodes and copies cost on it, measured (`forerun calibrate`) or given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from forerun.core.costs import CostCurve
from forerun.core.segment import SegmentSizes
from forerun.errors import InvalidConfigError
from forerun.simulation.tables import Table, read_text, refusal

COSTS_FORMAT: Final = "forerun-costs-1"


@dataclass(frozen=True, slots=True)
class Machine:
    """What things cost. Rates in bytes a second."""

    target: CostCurve
    draft: CostCurve | None = None
    sizes: SegmentSizes = SegmentSizes()  # noqa: RUF009 (a value)
    copying: float = 4e9
    disk: float = 5e8
    overhead_ms: float = 0.0
    """What a step takes beside its decodes: Python, for instance."""


class CurveTable(Table):
    """A cost curve, as in core.costs.CostCurve."""

    rows: list[int]
    ms: list[float]
    ms_per_kilocell: list[float] = Field(default_factory=list)
    cells: int = 0
    logit_ms: float = 0.0

    def curve(self, field: str) -> CostCurve:
        """Raises InvalidConfigError naming `field`."""
        try:
            return CostCurve(tuple(self.rows), tuple(self.ms), tuple(self.ms_per_kilocell), self.cells, self.logit_ms)
        except ValueError as error:
            raise InvalidConfigError(field, str(error)) from None


class MachineTable(Table):
    """`[machine]` of a workload."""

    costs: str | None = None
    """A file that `forerun calibrate --output` wrote, beside the workload."""
    target: CurveTable | None = None
    draft: CurveTable | None = None
    kv_bytes_per_token: int = Field(default=0, ge=0, le=2**30)
    """What a token of the target and, where there is one, the draft takes in host memory and on disk."""
    copy_bytes_per_second: float = Field(default=4e9, gt=0)
    disk_bytes_per_second: float = Field(default=5e8, gt=0)
    overhead_ms: float = Field(default=0.0, ge=0, le=10_000)

    def machine(self, folder: Path, costs: Path | None = None) -> Machine:
        """`costs`: a file that stands in for `self.costs`, which lies in `folder`. Raises InvalidConfigError."""
        target, draft = read_costs(costs) if costs else self._curves(folder)
        sizes = SegmentSizes(per_token=self.kv_bytes_per_token)
        return Machine(target, draft, sizes, self.copy_bytes_per_second, self.disk_bytes_per_second, self.overhead_ms)

    def _curves(self, folder: Path) -> tuple[CostCurve, CostCurve | None]:
        if self.costs is not None:
            if self.target is not None:
                raise InvalidConfigError(
                    "machine.costs", "names a file, but machine.target is there too; leave one out"
                )
            return read_costs(folder / self.costs)
        if self.target is None:
            raise InvalidConfigError(
                "machine.costs",
                "is missing: name a file of `forerun calibrate MODEL --output FILE.json`, or give machine.target",
            )
        return self.target.curve("machine.target"), self.draft.curve("machine.draft") if self.draft else None


def costs_as_json(curves: Sequence[tuple[str, CostCurve]]) -> dict[str, Any]:
    """What `read_costs` reads: the curves of a target and, behind it, its draft, each with its name."""
    return {"format": COSTS_FORMAT, "curves": [{"model": name, **curve.as_json()} for name, curve in curves]}


def read_costs(path: Path) -> tuple[CostCurve, CostCurve | None]:
    """The target's and the draft's curve of a file. Raises InvalidConfigError."""
    try:
        read = _CostsFile.model_validate(json.loads(read_text(path)))
    except ValidationError as error:
        problem = refusal(error)
        raise InvalidConfigError(str(path), f"{problem.field}: {_reason(problem)}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(str(path), f"is no JSON: {error}") from None
    if read.format != COSTS_FORMAT:
        raise InvalidConfigError(str(path), f"has the format {read.format!r}, not {COSTS_FORMAT!r}")
    curves = [table.curve(f"{path}: curves[{index}]") for index, table in enumerate(read.curves)]
    return curves[0], curves[1] if len(curves) > 1 else None


class _NamedCurve(CurveTable):
    model: str


class _CostsFile(Table):
    format: str
    curves: list[_NamedCurve] = Field(min_length=1, max_length=2)


def _reason(problem: InvalidConfigError) -> str:
    return str(problem).removeprefix(f"{problem.field}: ")
