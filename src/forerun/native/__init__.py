"""llama.cpp through llama-cpp-python's low-level bindings: the only package that imports them.

Importing this package prepares the process environment, so it comes before any import of `llama_cpp`.
"""

from forerun.native.environment import prepare_environment

prepare_environment()
