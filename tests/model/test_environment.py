"""Importing forerun.native keeps libgomp from spinning away the other processes' time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from forerun.native.environment import SPIN_COUNT

pytestmark = pytest.mark.model

PRINT = "import os; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=True
    )


def test_importing_native_sets_the_spin_count() -> None:
    process = run(f"import forerun.native; {PRINT}")
    assert process.stdout == f"{SPIN_COUNT} None\n"
    assert process.stderr == ""


@pytest.mark.parametrize(("variable", "shown"), [("GOMP_SPINCOUNT", "77 None\n"), ("OMP_WAIT_POLICY", "None 77\n")])
def test_a_users_own_setting_wins(variable: str, shown: str) -> None:
    assert run(f"import forerun.native; {PRINT}", **{variable: "77"}).stdout == shown


@pytest.mark.skipif(sys.platform != "linux", reason="loaded libraries are read from /proc")
def test_a_libgomp_that_is_loaded_already_is_warned_about() -> None:
    process = run("import logging; logging.basicConfig(); from llama_cpp import llama_cpp; import forerun.native")
    assert "WARNING:forerun.native:libgomp was loaded before" in process.stderr


def test_importing_forerun_loads_no_native_library() -> None:
    process = run("import sys, forerun, forerun.core.step; print('llama_cpp' in sys.modules)")
    assert process.stdout == "False\n"
