"""Single operations of Forerun's own code, timed by pytest-benchmark: `pytest benchmarks/micro -n 0`.

Not part of `make test`, and nothing here asserts a time: medians are compared with the budgets of docs/benchmarks.md by
whoever measures, with nothing else running (`--benchmark-json FILE` for a file).
"""
