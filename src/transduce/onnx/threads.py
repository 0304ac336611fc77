"""How many threads a session may use: what this process is allowed, not what the machine has.

In: the environment, the CPU affinity and the cgroup quota. Out: a number. onnxruntime's own default
counts the host's cores, which stalls containers and pins threads to CPUs they may not use.
"""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MOST_THREADS", "num_threads"]

MOST_THREADS = 256
"""More only cost memory and time; onnxruntime takes a minute to start a thousand."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def num_threads() -> int:
    """The user's OMP_NUM_THREADS, or the physical cores within affinity and quota; 1 to 256."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isdigit() and int(wanted) > 0:
        return min(int(wanted), MOST_THREADS)
    return max(1, min([_cores(_allowed_cpus()), *_quotas(), MOST_THREADS]))


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _cores(cpus: list[int]) -> int:
    """Cores behind logical CPUs: two hyper-threads multiply matrices no faster than one."""
    siblings = {_read(_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in cpus}
    return len(siblings)


def _quotas() -> Iterator[int]:
    """CPU limits of this process's cgroup and those above it, rounded up to whole CPUs."""
    for folder in _cgroup_folders():
        limit, _, period = _read(folder / "cpu.max").partition(" ")  # version 2
        if not limit:
            limit, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if limit.isdigit() and period.isdigit() and int(period) > 0:
            yield max(1, -(-int(limit) // int(period)))


def _cgroup_folders() -> Iterator[Path]:
    for line in _read(_OWN_CGROUP).splitlines():
        _, controllers, own = line.split(":", 2)
        root = _CGROUPS if not controllers else _CGROUPS / controllers
        folder = root / own.lstrip("/")
        yield from (folder, *(parent for parent in folder.parents if parent.is_relative_to(root)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
