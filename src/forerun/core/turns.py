"""Turns: whose step it is among running requests that cannot share one, and with that whose prompts go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from forerun.core.adapters import AdapterSet
from forerun.core.planner import BatchPlanner


class Turn(NamedTuple):
    """Who may share a step: requests with one set of adapters; suspects of a failed step among themselves."""

    adapters: AdapterSet = ()
    is_trial: bool = False


class Turns:
    """All that have running requests take turns, a step each; one that is new is last in line.

    Each has a planner of its own, so that among its prompts, too, the turn goes on where its last step ended.
    """

    def __init__(self, new_planner: Callable[[], BatchPlanner]) -> None:
        self._new_planner = new_planner
        self._planners: dict[Turn, BatchPlanner] = {}
        """In order of turn."""

    def in_turn(self, running: Iterable[Turn]) -> list[Turn]:
        """The turns of running requests, the one that has waited longest first; all others are forgotten."""
        present = dict.fromkeys(running)
        self._planners = {one: planner for one, planner in self._planners.items() if one in present}
        for one in present:
            self.planner(one)
        return list(self._planners)

    def planner(self, turn: Turn) -> BatchPlanner:
        """The planner of a turn."""
        planner = self._planners.get(turn)
        if planner is None:
            planner = self._planners[turn] = self._new_planner()
        return planner

    def served(self, turn: Turn) -> None:
        """One had its step: it is last in line now."""
        self._planners[turn] = self._planners.pop(turn)

    def __repr__(self) -> str:
        return f"Turns({len(self._planners)})"
