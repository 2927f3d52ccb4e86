"""llama-cpp-python without what its package imports for its own high-level API: a third of a small engine's start.

`import llama_cpp` loads its class `Llama`, chat formats and a disk cache: 0.12 s and 11 MB in every process, none of it
used here. So the package is put in place as it is found, without running its `__init__`; that runs as soon as anybody
asks the package for a name, so that whoever wants `llama_cpp.Llama` beside Forerun has it.
"""

from __future__ import annotations

import sys
import threading
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_PACKAGE: Final = "llama_cpp"
_running = threading.RLock()


def prepare_bindings() -> None:
    """Have the package's modules imported alone, unless it was imported before. Raises nothing where there is none."""
    if _PACKAGE in sys.modules:
        return
    spec = find_spec(_PACKAGE)
    if spec is not None and spec.loader is not None:
        sys.modules[_PACKAGE] = _put_off(spec)


def _put_off(spec: ModuleSpec) -> ModuleType:
    """The package, whose own code runs with the first name that it is asked for and that is none of its modules."""
    package = module_from_spec(spec)

    def run_and_get(name: str) -> Any:
        with _running:
            if package.__dict__.get("__getattr__") is run_and_get:
                if find_spec(f"{_PACKAGE}.{name}") is not None:
                    raise AttributeError(name)  # then the import system imports that module
                del package.__dict__["__getattr__"]
                assert spec.loader is not None
                spec.loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = run_and_get
    return package
