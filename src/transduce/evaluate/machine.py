"""Where and when a figure was measured, so that it can stand beside others.

In: nothing. Out: the processor, what of it this process may use, and the versions of what computes.
"""

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe_machine", "now"]

LIBRARIES = ("transduce", "numpy", "onnxruntime", "onnxruntime-gpu", "torch", "openvino", "jiwer")


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 writes it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def describe_machine() -> dict[str, str]:
    """Processor, CPUs of this process, system, Python, and the libraries that are installed."""
    return {
        "cpu": _cpu_name(),
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        **_versions(),
    }


def _cpu_name() -> str:
    """What Linux calls the processor; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _versions() -> dict[str, str]:
    found = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
