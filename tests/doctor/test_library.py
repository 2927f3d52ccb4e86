"""The native library, asked in a process that may die."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.doctor.library import library_of, look_at_library


@pytest.mark.model
def test_the_library_of_this_machine_says_what_it_is() -> None:
    library = look_at_library()
    assert library.error is None
    assert library.version
    assert "CPU" in {device.name for device in library.devices}
    assert library.features


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "compiled for another one"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it died of signal 11"),
        ("import sys; sys.exit('libllama.so: cannot open')", "libllama.so: cannot open"),
        ("raise SystemExit(5)", "it ended with code 5"),
        ("", "its answer makes no sense"),
        ("print('{}')", "its answer makes no sense"),
        ("print('[]')", "its answer makes no sense"),
    ],
)
def test_a_library_that_dies_or_rambles_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, told: str
) -> None:
    child = tmp_path / "describe.py"
    child.write_text("import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + program)
    monkeypatch.setattr("forerun.doctor.library._CHILD", child)
    error = look_at_library().error
    assert error is not None
    assert told in error


def test_features_are_those_that_are_said_to_be_there() -> None:
    info = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | OPENMP = 1 | "
    device = {"name": "CUDA0", "description": "A GPU", "kind": "gpu", "free": 1, "total": 2}
    library = library_of("1", {"system_info": info, "gpu_offload": True, "devices": [device]})
    assert library.features == {"SSE3", "AVX2", "OPENMP"}
    assert library.devices[0].is_gpu
