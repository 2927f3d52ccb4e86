"""A store in a dictionary: as much as the native side needs of one."""

from __future__ import annotations

from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import SegmentHeader, StoreEvent, StoreEventKind


class DictStore:
    """Implements core.segment.SegmentStore. `persist` and `fetch` are done at once, or fail as told by `broken`."""

    def __init__(self) -> None:
        self.states: dict[str, PromptCheckpointState] = {}
        self.headers: dict[str, SegmentHeader] = {}
        self.disk: dict[str, PromptCheckpointState] = {}
        self.is_full = False
        self.waited: list[float] = []
        self._events: list[StoreEvent] = []

    def put(self, header: SegmentHeader, state: PromptCheckpointState) -> int:
        if self.is_full:
            return 0
        self.states[header.key], self.headers[header.key] = state, header
        return len(state.state)

    def get(self, key: str) -> PromptCheckpointState:
        return self.states[key]

    def drop(self, key: str) -> None:
        self.states.pop(key, None)

    def persist(self, key: str) -> None:
        self.disk[key] = self.states[key]
        self._events.append(StoreEvent(StoreEventKind.PERSISTED, key, len(self.disk[key].state)))

    def fetch(self, key: str) -> None:
        self.states[key] = self.disk[key]
        self._events.append(StoreEvent(StoreEventKind.FETCHED, key, len(self.states[key].state)))

    def remove(self, key: str) -> None:
        self.disk.pop(key, None)

    def take_events(self) -> list[StoreEvent]:
        events, self._events = self._events, []
        return events

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)

    def close(self) -> None:
        pass
