"""Free memory, on made-up systems."""

from __future__ import annotations

from pathlib import Path

from forerun.models.machine_memory import FreeMemory, default_cache_ram, free_memory

MIB = 1024 * 1024


def system(root: Path, files: dict[str, str]) -> Path:
    for name, content in {"proc/meminfo": "MemTotal: 9999 kB\nMemAvailable:    1048576 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_without_limits_it_is_what_the_machine_has_available(tmp_path: Path) -> None:
    unlimited = {
        "proc/self/cgroup": "4:memory:/a\n0::/\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "5",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1",
    }
    assert free_memory(system(tmp_path, unlimited)) == FreeMemory(1024 * MIB, "this machine")


def test_a_limit_of_a_group_above_ours_counts_and_page_cache_is_free(tmp_path: Path) -> None:
    limited = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/memory.max": str(600 * MIB),
        "sys/fs/cgroup/pod/memory.current": str(300 * MIB),
        "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {70 * MIB}\nactive_file {30 * MIB}\n",
        "sys/fs/cgroup/pod/box/memory.max": "max",
        "sys/fs/cgroup/pod/box/memory.current": "1",
    }
    assert free_memory(system(tmp_path, limited)) == FreeMemory(400 * MIB, "this control group (container)")


def test_version_1_groups_count_too(tmp_path: Path) -> None:
    limited = {
        "proc/self/cgroup": "5:cpu,memory:/a\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(100 * MIB),
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(130 * MIB),
        "sys/fs/cgroup/memory/a/memory.stat": f"total_inactive_file {50 * MIB}\n",
    }
    assert free_memory(system(tmp_path, limited)) == FreeMemory(20 * MIB, "this control group (container)")


def test_a_system_that_tells_nothing_is_none(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None


def test_prefixes_get_a_quarter_of_what_models_leave_within_16_mib_and_8_gib() -> None:
    free = FreeMemory(20 * 2**30, "this machine")
    assert default_cache_ram(free) == 5 * 2**30
    assert default_cache_ram(free, needed=12 * 2**30) == 2 * 2**30
    assert default_cache_ram(free, needed=30 * 2**30) == 2**24
    assert default_cache_ram(FreeMemory(2**40, "this machine")) == 8 * 2**30
    assert default_cache_ram(None) == 2**28
