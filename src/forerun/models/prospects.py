"""What drafting can bring on this machine, as findings: measured numbers in words, and as numbers for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.allocation import MARGIN
from forerun.core.costs import CostCurve
from forerun.core.forecast import DraftingProspect, Forecast
from forerun.models.findings import Finding, Verdict
from forerun.models.fit import Fit
from forerun.models.preflight import Preflight

ACCEPTANCES: Final = (1.0, 0.9, 0.7, 0.5)
"""What prospects are told for: everything accepted, and what drafts achieve on easy, ordinary and hard text."""
_CELLS: Final = 1000
"""Used cells that prospects are worked out for, where there are so many."""
_NOT_MEASURED: Final = "what drafting brings here is not known: costs are not measured (--measure does it)"


@dataclass(frozen=True, slots=True)
class Prospect:
    """One way of drafting on this machine, one sequence at a time."""

    method: str
    """"n-gram", "draft model" or "MTP"."""
    forecasts: tuple[Forecast, ...]
    """For each of ACCEPTANCES."""
    break_even: float | None
    """The acceptance from which on it is no slower than plain decoding; None: never."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second that measured costs make, without drafts."""

    alone: float
    """Of one answer."""
    together: float
    """Of as many answers at once as `requests`, or as many rows as were measured."""
    requests: int
    prompt: float
    """Of a prompt that is read, in the most rows that were measured; larger steps are a little faster."""


@dataclass(frozen=True, slots=True)
class Check:
    """A preflight, how much would fit, and how fast it would be where costs are known."""

    preflight: Preflight
    fit: Fit | None = None
    rates: Rates | None = None
    prospects: tuple[Prospect, ...] = ()


def judge_speed(
    found: Preflight, curves: Sequence[CostCurve | None], most_tokens: int, fit: Fit | None = None
) -> Check:
    """Add how fast it is, and what drafting at most `most_tokens` tokens brings, from the curves of target and, if
    loaded, draft."""
    target, draft = curves[0], curves[1] if len(curves) > 1 else None
    if target is None or found.target is None:
        found.findings.append(Finding(Verdict.NOTE, "speed", _NOT_MEASURED))
        return Check(found, fit)
    limits = found.usable_limits
    cells = min(_CELLS, limits.n_ctx)
    steps = [f"{rows} rows {target.predict(rows, cells):.1f}" for rows in (2, 4, 8, 16) if rows <= target.rows[-1]]
    measured = f"{found.target.name}: one row takes {target.predict(1, cells):.1f} ms here, {', '.join(steps)}"
    found.findings.append(Finding(Verdict.OK, "speed", f"{measured} ({cells} cells used)"))
    rates = rates_of(target, limits.max_num_seqs, cells)
    found.findings.append(Finding(Verdict.OK, "speed", _told(rates)))
    ways = [("n-gram", DraftingProspect(target, None, most_tokens, cells))]
    if found.draft is not None and draft is not None:
        one = f"{found.draft.name}: a drafted token takes {draft.predict(1, cells):.1f} ms here"
        found.findings.append(Finding(Verdict.OK, "speed", one))
        ways.append(("MTP" if found.with_mtp else "draft model", DraftingProspect(target, draft, most_tokens, cells)))
    elif found.draft is not None:
        found.findings.append(Finding(Verdict.NOTE, "speed", f"{found.draft.name}: {_NOT_MEASURED}"))
    prospects = [Prospect(method, tuple(map(one.at, ACCEPTANCES)), one.break_even()) for method, one in ways]
    found.findings += map(judge_prospect, prospects)
    return Check(found, fit, rates, tuple(prospects))


def rates_of(costs: CostCurve, running: int, cells: int) -> Rates:
    """What costs say about speed while `cells` cells are used."""
    most = costs.rows[-1]
    rows = min(running, most)
    alone, together = (1000 * count / costs.predict(count, cells) for count in (1, rows))
    return Rates(alone, together, rows, 1000 * most / costs.predict(most, cells, logits=1))


def _told(rates: Rates) -> str:
    together = f", {rates.together:.0f} for {rates.requests} together" if rates.requests > 1 else ""
    return (
        f"about {rates.alone:.0f} tokens a second for one answer{together}, and {rates.prompt:.0f} of a prompt, "
        "without drafts"
    )


def judge_prospect(prospect: Prospect) -> Finding:
    """A way of drafting that cannot be faster, or hardly, on this machine is told so."""
    best, *others = prospect.forecasts
    numbers = f"{_shown(best)} if every draft is accepted; " + "; ".join(
        f"{forecast.acceptance:.0%} accepted: {_shown(forecast)}" for forecast in others
    )
    if prospect.break_even is None:
        return Finding(
            Verdict.WARNING, "speed", f"{prospect.method} drafts can only be slower on this machine: {numbers}"
        )
    pays = f"{prospect.method} drafts pay from {prospect.break_even:.0%} acceptance on: {numbers}"
    return Finding(Verdict.OK if best.speedup >= MARGIN else Verdict.WARNING, "speed", pays)


def _shown(forecast: Forecast) -> str:
    return f"{forecast.speedup:.2f} times plain with {forecast.length} a step"
