"""llama.cpp's own server as the package xllamacpp brings it, until SIGTERM.

python -m forerun.bench.xllamacpp_server SETTINGS, which are JSON.

The wheel is built for any x86-64, without AVX-512: it is slower than a llama-server that was built here.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib import import_module
from typing import Any


def main(settings: dict[str, Any]) -> None:
    """`settings`: model, port, n_ctx, sequences, threads, variant."""
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.hostnames, params.port = ["127.0.0.1"], settings["port"]
    params.n_ctx, params.n_parallel, params.kv_unified = settings["n_ctx"], settings["sequences"], True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.endpoint_metrics = True
    vary(xllamacpp, params, settings["variant"])
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # its threads leave them to this one
    server = xllamacpp.Server(params)
    signal.sigwait(ends)
    del server


def vary(xllamacpp: Any, params: Any, variant: str) -> None:
    """`batch/N`, or a kind of n-gram speculation with its sizes: `ngram-simple/N/M`.

    Raises AttributeError for others.
    """
    name, *sizes = variant.split("/")
    if name == "batch":
        params.n_batch = params.n_ubatch = int(sizes[0])
    elif name:
        kind = name.replace("-", "_")
        found = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind.upper()}")
        params.speculative.types = [found]
        for size, value in zip(("size_n", "size_m"), sizes, strict=False):
            setattr(getattr(params.speculative, kind), size, int(value))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
