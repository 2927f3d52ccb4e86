"""The servers of the stall benchmark: prints `port N`, then serves until it is told to stop.

python -m benchmarks.stall_server forerun MODEL TARGET_ITL_MS | llama MODEL BATCH
"""

from __future__ import annotations

import socket
import sys
import threading
from importlib import import_module
from typing import Any

from benchmarks.stall import config
from forerun.compose_models import ToServe
from forerun.compose_server import Announcements, serve
from forerun.models.resolve import resolve_model
from forerun.server.settings import LogFormat, ServerSettings


def forerun(model: str, target: str) -> None:
    ports: list[str] = []
    told = Announcements(
        lambda address: ports.append(address.rpartition(":")[2]),
        lambda *_: None,
        lambda _: _say(ports[0]),
    )
    models = [ToServe(config(model, float(target)), aliases=("any",), is_loaded_at_once=True)]
    serve(models, ServerSettings(port=0, log_format=LogFormat.OFF), told)


def llama(model: str, batch: str) -> None:
    """llama.cpp's own server, as the package xllamacpp brings it."""
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(resolve_model(model))
    params.n_ctx, params.n_parallel, params.kv_unified = 8192, 8, True
    params.n_batch, params.n_ubatch = int(batch), min(int(batch), 512)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        params.port = found.getsockname()[1]
    server = xllamacpp.Server(params)
    _say(server.listening_address.rpartition(":")[2])
    threading.Event().wait()


def _say(port: str) -> None:
    print("port", port, flush=True)  # noqa: T201 (all that it says)


if __name__ == "__main__":
    {"forerun": forerun, "llama": llama}[sys.argv[1]](*sys.argv[2:])
