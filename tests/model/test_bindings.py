"""What of llama-cpp-python is loaded with Forerun, and what others find of it then."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.model


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_engine_loads_nothing_of_the_package_s_own_high_level_api() -> None:
    code = "import sys, forerun.native.runner, forerun.native.projector; print('llama_cpp.llama' in sys.modules)"
    assert run(code) == "False"


@pytest.mark.parametrize(
    "wanted",
    [
        "from llama_cpp import Llama",
        "import llama_cpp; Llama = llama_cpp.Llama",
        "from llama_cpp.llama import Llama",
        "from llama_cpp import *",
    ],
)
def test_whoever_wants_it_beside_forerun_has_it(wanted: str) -> None:
    code = f"import forerun.native.context as ours; {wanted}; import llama_cpp"
    assert run(f"{code}; print(Llama.__name__, llama_cpp.llama_cpp is ours.llama_cpp)") == "Llama True"
    assert run(f"{code}; print(llama_cpp.__version__)").count(".") == 2


def test_a_package_that_was_imported_before_stays_as_it_is() -> None:
    code = "import llama_cpp; before = llama_cpp; import forerun.native.runner, llama_cpp; print(llama_cpp is before)"
    assert run(code) == "True"


def test_a_name_that_it_does_not_have_is_an_error() -> None:
    asked = "hasattr(llama_cpp, 'nothing'), hasattr(llama_cpp, 'Llama')"
    assert run(f"import forerun.native, llama_cpp; print({asked})") == "False True"
