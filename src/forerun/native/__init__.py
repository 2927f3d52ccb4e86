"""llama.cpp through llama-cpp-python's low-level bindings: the only package that imports them.

Importing this package prepares the process environment and the bindings, so it comes before any import of `llama_cpp`.
"""

from forerun.native.bindings import prepare_bindings
from forerun.native.environment import prepare_environment

prepare_environment()
prepare_bindings()
