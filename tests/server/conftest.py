"""Servers on the fake engine (tests/server/support.py makes others)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.support import ListeningServer, listening


@pytest.fixture(scope="module")
def listening_server() -> Iterator[ListeningServer]:
    """A server on a port, with the paced fake engine: at most 64 requests run."""
    with listening() as server:
        yield server
