"""Run benchmarks and write benchmarks/results/*.json, with nothing else running: `python -m benchmarks [NAME...]`.

Without names all of them run, about 35 minutes with SmolLM2. `plot` draws docs/speculation.svg from the results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import (
    again,
    behind,
    cache_sim,
    chaining,
    core,
    full,
    memory,
    overload,
    pictures,
    plot,
    replay,
    single_stream,
    speculation,
    stall,
    streaming,
    synthetic,
    tiers,
    together,
    ttft,
)
from benchmarks.report import Figures, save, show

BENCHMARKS: dict[str, Callable[[], Figures]] = {
    "core": core.run,
    "single_stream": single_stream.run,
    "together": together.run,
    "copy": speculation.copy,
    "verbatim": speculation.verbatim,
    "prose": speculation.prose,
    "mix": speculation.mix,
    "synthetic": synthetic.run,
    "full": full.run,
    "ttft": ttft.run,
    "again": again.run,
    "memory": memory.run,
    "turns": tiers.turns,
    "idle": tiers.idle,
    "chaining": chaining.run,
    "replay": replay.run,
    "cache_sim": cache_sim.run,
    "streaming": streaming.streaming,
    "overload_two_cores": overload.two_cores,
    "overload_gpu": overload.gpu,
    "stall": stall.run,
    "pictures": pictures.run,
    "behind": behind.run,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHMARKS and name != "plot"]
    if unknown:
        sys.exit(f"benchmarks: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}, and plot")
    for name in names or BENCHMARKS:
        if name == "plot":
            sys.stdout.write(f"{plot.draw_results()}\n")
            continue
        figures = BENCHMARKS[name]()
        show(name, figures)
        save("-".join([name, *(str(figures[key]) for key in ("target", "draft") if figures.get(key))]), figures)


if __name__ == "__main__":
    main(sys.argv[1:])
