"""The server of the streaming benchmark: prints its port, then serves until it is told to stop."""

from __future__ import annotations

import sys

from benchmarks.streaming import config, open_engine
from forerun.compose_models import ToServe
from forerun.compose_server import Announcements, serve
from forerun.server.settings import LogFormat, ServerSettings


def main(model: str) -> None:
    ports: list[str] = []
    told = Announcements(
        lambda address: ports.append(address.rpartition(":")[2]),
        lambda *_: None,
        lambda _: print(ports[0], flush=True),  # noqa: T201 (all that it says)
    )
    models = [ToServe(config(model), is_loaded_at_once=True)]
    serve(models, ServerSettings(port=0, log_format=LogFormat.OFF), told, opening=open_engine)


if __name__ == "__main__":
    main(sys.argv[1])
