"""What is read of a machine, from made-up files of Linux's."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.doctor.machine import can_be_written, free_on_disk, look_at_machine


def system(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_processor_memory_and_governor_are_read(tmp_path: Path) -> None:
    machine = look_at_machine(
        system(
            tmp_path,
            {
                "proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 fma\n\nmodel name : B\n",
                "proc/meminfo": "MemTotal: 8 kB\nMemAvailable: 4 kB\nSwapTotal: 3 kB\nSwapFree: 1 kB\nBroken\n",
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
                "dev/nvidia0": "",
                "dev/nvidiactl": "",
            },
        )
    )
    assert (machine.processor, machine.cpu_flags) == ("A CPU", frozenset({"fpu", "avx2", "fma"}))
    assert machine.free is not None
    assert (machine.memory, machine.free.free, machine.swapped) == (8192, 4096, 2048)
    assert (machine.governor, machine.gpus) == ("powersave", ("NVIDIA",))


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n2:memory:/m\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "1 0\n"}, None),
    ],
)
def test_the_least_of_all_control_groups_quotas_counts(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert look_at_machine(system(tmp_path, files)).quota == quota


def test_a_system_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    machine = look_at_machine(tmp_path)
    assert (machine.memory, machine.free, machine.quota, machine.governor, machine.gpus) == (None, None, None, None, ())
    assert machine.cores >= 1


def test_a_folder_that_does_not_exist_yet_is_judged_by_the_one_it_would_be_made_in(tmp_path: Path) -> None:
    assert can_be_written(tmp_path / "a/b/c")
    assert free_on_disk(tmp_path / "a/b/c") == pytest.approx(free_on_disk(tmp_path), rel=0.1)
    (tmp_path / "file").write_text("")
    assert not can_be_written(tmp_path / "file" / "below")
