"""What a machine and a library are told to lack, from facts that are made up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from forerun.doctor.judging import Place, judge
from forerun.doctor.library import Device, Library
from forerun.doctor.machine import Machine
from forerun.models.findings import Finding, Verdict
from forerun.models.machine_memory import FreeMemory

WELL = Machine(
    system="Linux 6.1",
    architecture="x86_64",
    processor="A CPU",
    cpu_flags=frozenset({"avx2", "fma"}),
    cores=4,
    cpus=8,
    quota=None,
    load=0.1,
    memory=16 * 2**30,
    free=FreeMemory(8 * 2**30, "this machine"),
    swapped=0,
    governor="performance",
    gpus=(),
)
CPU = Device("CPU", "A CPU", "cpu", 0, 0)
BUILT = Library("0.3.36", frozenset({"AVX2", "FMA", "OPENMP"}), devices=(CPU,))
HERE = Place("models", "/models", 2**40, is_writable=True, content="none pulled")


def told(
    machine: Machine = WELL,
    library: Library = BUILT,
    place: Place = HERE,
    environment: Mapping[str, str] | None = None,
) -> list[Finding]:
    """All that is not well."""
    found = judge(machine, library, [place], environment or {})
    return [finding for finding in found if finding.verdict is not Verdict.OK]


def test_a_machine_that_lacks_nothing_is_told_so_in_a_line_a_subject() -> None:
    assert told() == []
    assert [finding.subject for finding in judge(WELL, BUILT, [HERE], {})] == [
        "machine",
        "threads",
        "memory",
        "library",
        "gpu",
        "models",
    ]


@pytest.mark.parametrize(
    ("machine", "subject", "message"),
    [
        (replace(WELL, quota=1.5), "threads", "granted 1.5 CPUs' worth of time"),
        (replace(WELL, quota=0.5), "threads", "--threads 1,"),
        (replace(WELL, load=3.0), "threads", r"kept 3\.0 threads running in the last minute, on 8 CPUs"),
        (replace(WELL, governor="powersave"), "machine", "cpupower frequency-set -g performance"),
        (replace(WELL, swapped=2**31), "memory", "2.00 GiB are swapped out"),
        (replace(WELL, free=None), "memory", "does not say how much is free"),
        (
            replace(WELL, cpu_flags=WELL.cpu_flags | {"avx512_vnni"}),
            "library",
            "has AVX512_VNNI and .* compiled without",
        ),
        (replace(WELL, gpus=("NVIDIA",)), "gpu", "GPU of NVIDIA .*-DGGML_CUDA=on.*llama-cpp-python==0.3.36"),
        (replace(WELL, gpus=("AMD", "some")), "gpu", "-DGGML_HIP=on"),
        (replace(WELL, gpus=("some",)), "gpu", "a GPU is here .*-DGGML_VULKAN=on"),
    ],
)
def test_what_a_machine_lacks_is_told_with_what_to_do(machine: Machine, subject: str, message: str) -> None:
    (finding,) = told(machine)
    assert finding.subject == subject
    assert re.search(message, finding.message)


def test_a_quota_as_large_as_the_machine_is_none() -> None:
    assert told(replace(WELL, quota=4.0)) == []


def test_a_library_that_cannot_be_loaded_is_refused_with_how_to_install_it() -> None:
    broken = Library("0.3.36", error="it died of signal 11")
    (finding,) = told(replace(WELL, gpus=("NVIDIA",)), broken)
    assert finding.verdict is Verdict.REFUSED
    assert "llama-cpp-python 0.3.36: it died of signal 11: CMAKE_ARGS=" in finding.message
    (finding,) = told(library=Library(None, error="No module named 'llama_cpp'"))
    assert "which is not installed" in finding.message


def test_a_gpu_that_is_used_is_named_with_its_memory() -> None:
    gpu = Device("CUDA0", "A GPU", "gpu", 2**33, 2**34)
    library = replace(BUILT, gpu_offload=True, devices=(gpu, CPU))
    assert told(replace(WELL, gpus=("NVIDIA",)), library) == []
    found = judge(WELL, library, [], {})
    assert [f.message for f in found if f.subject == "gpu"] == ["CUDA0: A GPU, 8.00 GiB of 16.00 GiB free"]


def test_gpus_that_are_hidden_on_purpose_are_not_missed() -> None:
    (finding,) = told(replace(WELL, gpus=("NVIDIA",)), environment={"CUDA_VISIBLE_DEVICES": ""})
    assert (finding.verdict, finding.message) == (Verdict.NOTE, "none is used, and CUDA_VISIBLE_DEVICES= may hide some")


def test_threads_that_spin_are_warned_of() -> None:
    (finding,) = told(environment={"OMP_WAIT_POLICY": "ACTIVE"})
    assert "unset it" in finding.message
    assert told(environment={"OMP_WAIT_POLICY": "passive"}) == []


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (replace(HERE, is_writable=False), "/models cannot be written"),
        (replace(HERE, free=2**20), "/models: none pulled, 1.0 MiB free"),
        (replace(HERE, free=None), "what its disk has free is not known"),
    ],
)
def test_folders_that_cannot_take_much_are_told(place: Place, message: str) -> None:
    (finding,) = told(place=place)
    assert message in finding.message
