"""Turns: whose step it is among running requests with different adapters, and with that whose prompts go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forerun.core.adapters import AdapterSet
from forerun.core.planner import BatchPlanner


class AdapterTurns:
    """Sets of adapters that have running requests take turns, a step each; one that is new is last in line.

    Each has a planner of its own, so that among its prompts, too, the turn goes on where its last step ended.
    """

    def __init__(self, new_planner: Callable[[], BatchPlanner]) -> None:
        self._new_planner = new_planner
        self._planners: dict[AdapterSet, BatchPlanner] = {}
        """In order of turn."""

    def in_turn(self, running: Iterable[AdapterSet]) -> list[AdapterSet]:
        """The sets of running requests, the one that has waited longest first; all others are forgotten."""
        present = dict.fromkeys(running)
        self._planners = {one: planner for one, planner in self._planners.items() if one in present}
        for one in present:
            self.planner(one)
        return list(self._planners)

    def planner(self, adapters: AdapterSet) -> BatchPlanner:
        """The planner of a set."""
        planner = self._planners.get(adapters)
        if planner is None:
            planner = self._planners[adapters] = self._new_planner()
        return planner

    def served(self, adapters: AdapterSet) -> None:
        """A set had its step: it is last in line now."""
        self._planners[adapters] = self._planners.pop(adapters)

    def __repr__(self) -> str:
        return f"AdapterTurns({len(self._planners)} sets of adapters)"
