"""`import forerun` is cheap, and gives what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import forerun


def test_every_public_name_is_there() -> None:
    assert sorted(forerun._HOME_OF) == sorted(forerun.__all__)
    for name in forerun.__all__:
        assert getattr(forerun, name).__module__.startswith("forerun.")
    assert set(forerun.__all__) <= set(dir(forerun))


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match="'forerun' has no attribute 'Motor'"):
        _ = forerun.Motor
    with pytest.raises(ImportError):
        from forerun import Motor  # noqa: F401


def test_what_is_not_used_is_not_loaded() -> None:
    code = "import sys, forerun; print(sorted({'numpy', 'llama_cpp', 'forerun.compose'} & sys.modules.keys()))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
