"""Another program on the same machine takes a core: how much of its speed a server keeps."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from forerun.bench.client import Client
from forerun.bench.workloads.streams import question
from forerun.bench.workloads.workload import Workload
from forerun.errors import BenchmarkError


@dataclass(frozen=True, slots=True)
class Disturbed(Workload):
    name = "disturbed"
    about = "One stream while another program burns a core here: the share it keeps of its undisturbed rate."
    primary = "kept_share"
    shown = ("undisturbed_per_s", "decode_per_s", "largest_gap_ms")
    tokens = frozenset({"output"})

    burners: int = 1
    output: int = 96

    async def run(self, client: Client, seed: int) -> None:
        if client.target.process is None:
            raise BenchmarkError("disturbed: the server has to run on this machine: name its process with --pid")
        alone = await client.ask([question(seed, "alone", 32)], self.output)
        async with client.measured() as figures:
            with _burning(self.burners):
                beside = await client.ask([question(seed, "beside", 32)], self.output)
        if alone.decode_rate and beside.decode_rate:
            figures["undisturbed_per_s"] = alone.decode_rate
            figures["kept_share"] = beside.decode_rate / alone.decode_rate


@contextlib.contextmanager
def _burning(count: int) -> Iterator[None]:
    """Programs that do nothing but compute."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
