"""What of machine and library stands in the way, and what would make them faster. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.doctor.library import Library
from forerun.doctor.machine import Machine
from forerun.errors import ModelLoadError
from forerun.models.findings import Finding, Verdict, size

_BUSY: Final = 0.7
"""Cores that others may use before it is told: as many as cost measurements bear."""
_LITTLE_DISK: Final = 2 * 2**30
_SWAPPED: Final = 2**30

# Linux's flag of an instruction set -> the library's name for having been compiled with it (ggml-cpu.c).
_FEATURES: Final = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "avx_vnni": "AVX_VNNI",
    "amx_int8": "AMX_INT8",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
_GPU_FLAGS: Final = {"NVIDIA": "-DGGML_CUDA=on", "AMD": "-DGGML_HIP=on", "some": "-DGGML_VULKAN=on"}
_HIDING: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that Forerun writes to."""

    name: str
    """What it is for: "models", "measurements"."""
    folder: str
    free: int | None
    """Bytes of its disk."""
    is_writable: bool
    content: str = ""
    """What is in it, in words."""


def judge(machine: Machine, library: Library, places: list[Place], environment: Mapping[str, str]) -> list[Finding]:
    """A line each, in the order of what they build on."""
    return [
        *_machine(machine),
        *_cores(machine, environment),
        *_memory(machine),
        *_library(machine, library),
        *_gpus(machine, library, environment),
        *(_place(place) for place in places),
    ]


def _machine(machine: Machine) -> Iterator[Finding]:
    named = f", {machine.processor}" if machine.processor else ""
    yield Finding(Verdict.OK, "machine", f"{machine.system}, {machine.architecture}{named}")
    if machine.governor == "powersave":
        yield Finding(
            Verdict.WARNING,
            "machine",
            "the processor's frequency governor is powersave: `cpupower frequency-set -g performance` is faster",
        )


def _cores(machine: Machine, environment: Mapping[str, str]) -> Iterator[Finding]:
    cpus = f" ({machine.cpus} logical)" if machine.cpus != machine.cores else ""
    yield Finding(Verdict.OK, "threads", f"{machine.cores} physical cores{cpus}, a thread each unless --threads says")
    if machine.quota is not None and machine.quota < machine.cores:
        threads = max(1, int(machine.quota))
        yield Finding(
            Verdict.WARNING,
            "threads",
            f"this container is granted {machine.quota:g} CPUs' worth of time, and threads beyond that stop one "
            f"another: use --threads {threads}, or raise the limit",
        )
    if machine.load > _BUSY:
        yield Finding(
            Verdict.WARNING,
            "threads",
            f"programs kept {machine.load:.1f} threads running in the last minute, on {machine.cpus} CPUs: every step "
            "waits for its slowest thread, so end what else runs or give fewer --threads",
        )
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        yield Finding(
            Verdict.WARNING,
            "threads",
            "OMP_WAIT_POLICY=active lets threads spin while they wait: one other busy process then slows decoding "
            "manyfold; unset it (docs/decisions/0004-libgomp-spin.md)",
        )


def _memory(machine: Machine) -> Iterator[Finding]:
    if machine.free is None:
        yield Finding(
            Verdict.NOTE, "memory", "this system does not say how much is free: `forerun check` cannot judge it"
        )
        return
    total = "" if machine.memory is None else f" of {size(machine.memory)}"
    yield Finding(Verdict.OK, "memory", f"{size(machine.free.free)}{total} free on {machine.free.where}")
    if machine.swapped > _SWAPPED:
        yield Finding(
            Verdict.NOTE, "memory", f"{size(machine.swapped)} are swapped out: memory was short, and weights may be too"
        )


def _library(machine: Machine, library: Library) -> Iterator[Finding]:
    install = f"{_reinstall('-DGGML_NATIVE=on', library)}"
    if library.error is not None:
        named = "llama-cpp-python" + (f" {library.version}" if library.version else ", which is not installed")
        yield Finding.refused("library", ModelLoadError(f"{named}: {library.error}: {install}"))
        return
    known = ", ".join(sorted(library.features)) or "nothing in particular"
    yield Finding(Verdict.OK, "library", f"llama-cpp-python {library.version}, compiled with {known}")
    missing = sorted(
        name for flag, name in _FEATURES.items() if flag in machine.cpu_flags and name not in library.features
    )
    if missing:
        yield Finding(
            Verdict.WARNING,
            "library",
            f"the processor has {', '.join(missing)} and the library was compiled without: {install}",
        )
    if "OPENMP" not in library.features and machine.system.startswith("Linux"):
        yield Finding(Verdict.NOTE, "library", "compiled without OpenMP: threads are started and joined by ggml itself")


def _gpus(machine: Machine, library: Library, environment: Mapping[str, str]) -> Iterator[Finding]:
    if library.error is not None:
        return
    used = [device for device in library.devices if device.is_gpu]
    for device in used:
        memory = f", {size(device.free)} of {size(device.total)} free" if device.total else ""
        yield Finding(Verdict.OK, "gpu", f"{device.name}: {device.description}{memory}")
    hidden = [f"{name}={environment[name]}" for name in _HIDING if name in environment]
    if used:
        return
    if hidden:
        yield Finding(Verdict.NOTE, "gpu", f"none is used, and {', '.join(hidden)} may hide some")
    elif machine.gpus and not library.gpu_offload:
        maker = machine.gpus[0]
        named = "a GPU" if maker == "some" else f"a GPU of {maker}"
        advice = _reinstall(_GPU_FLAGS[maker], library)
        verdict = Verdict.NOTE if maker == "some" else Verdict.WARNING
        yield Finding(verdict, "gpu", f"{named} is here and the library was compiled without support for it: {advice}")
    else:
        yield Finding(Verdict.OK, "gpu", "none: all is computed by the processor")


def _place(place: Place) -> Finding:
    if not place.is_writable:
        return Finding(Verdict.WARNING, place.name, f"{place.folder} cannot be written: nothing is kept there")
    content = f"{place.content}, " if place.content else ""
    if place.free is None:
        return Finding(Verdict.NOTE, place.name, f"{place.folder}: {content}what its disk has free is not known")
    told = f"{place.folder}: {content}{size(place.free)} free"
    return Finding(Verdict.WARNING if place.free < _LITTLE_DISK else Verdict.OK, place.name, told)


def _reinstall(flag: str, library: Library) -> str:
    version = f"=={library.version}" if library.version else ""
    return f'CMAKE_ARGS="{flag}" pip install --force-reinstall --no-deps --no-cache-dir llama-cpp-python{version}'
