"""A look at the scheduler, as counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A look at the scheduler between two steps."""

    running: int
    waiting: int
    cached_prefixes: int
    used_cells: int
    total_cells: int
    host_bytes: int = 0
    """KV in host memory."""
    host_limit: int = 0
    disk_bytes: int = 0
    disk_limit: int = 0
    stored_segments: int = 0
    preemptions: int = 0
    """Running requests that had to give their cells back, so far."""
    parked: int = 0
    """Those among the waiting that did, and go on where they were."""
    paused: int = 0
    """Requests whose readers are behind."""
    quarantines: int = 0
    """Sequences whose content a failed step left unknown, so far."""
    evicted_prefixes: int = 0
    """Idle prefixes that left the KV memory, so far."""
