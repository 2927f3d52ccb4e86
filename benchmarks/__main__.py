"""Run all benchmarks and write benchmarks/results/*.json: `make bench`, with nothing else running."""

from __future__ import annotations

import sys

from benchmarks import core, single_stream, speculation
from benchmarks.report import save, show

_ALL = {"core": core.run, "single_stream": single_stream.run, "speculation": speculation.run}


def main() -> None:
    for name in sys.argv[1:] or _ALL:
        figures = _ALL[name]()
        show(name, figures)
        save("-".join([name, *(str(figures[key]) for key in ("target", "draft") if figures.get(key))]), figures)


if __name__ == "__main__":
    main()
