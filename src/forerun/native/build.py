"""Which llama.cpp this is."""

from __future__ import annotations

from importlib.metadata import version

from llama_cpp import llama_cpp


def library_build() -> str:
    """Version of the binding, and what its llama.cpp was compiled for: other builds may store KV differently."""
    return f"llama-cpp-python {version('llama-cpp-python')}, {llama_cpp.llama_print_system_info().decode()}"


def can_offload() -> bool:
    """Whether this llama.cpp was built for a GPU, and there is one."""
    return bool(llama_cpp.llama_supports_gpu_offload())
