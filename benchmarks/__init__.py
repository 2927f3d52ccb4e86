"""Benchmarks: figures belong here and in docs/benchmarks.md, never in timed tests."""

import forerun.native  # noqa: F401  # before anything loads llama_cpp: it sets libgomp up
