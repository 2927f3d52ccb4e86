"""One hypothesis profile for the core: no clock in the verdict, moderate counts, the same examples on every CI run."""

import os

from hypothesis import settings

settings.register_profile("core", deadline=None, max_examples=40, derandomize="CI" in os.environ)
settings.load_profile("core")
