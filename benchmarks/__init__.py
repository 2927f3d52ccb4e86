"""Benchmarks: figures belong here and in docs/benchmarks.md, never in timed tests."""
