"""What holds for every test: a complete bundled set, and honest counts of what did not run.

Tests marked `shared` need `../shared`, tests marked `browser` need Chromium, tests marked `triton` what
`scripts/make_triton_env` makes, tests marked `ray` that library, tests marked `posix` and `linux` those
systems, tests marked `prove` run only under `scripts/prove`. Where they cannot run they are deselected,
counted and named in the summary; nothing is skipped.
"""

import hashlib
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pages
import pytest
from support import CHROMEDRIVER, CHROMIUM, MANIFEST, PROVE, ROOT, SHARED, TRITON_ENV, allow_shared

_DESELECTED = pytest.StashKey[Counter[str]]()


def _reasons() -> dict[str, str]:
    """Marker -> why its tests do not run here; empty where all of them do."""
    reasons = {} if SHARED.is_dir() else {"shared": f"{SHARED} is not there"}
    if sys.platform == "win32":
        reasons["posix"] = "Windows has no such links, limits, signals or terminals"
    if sys.platform != "linux":
        reasons["linux"] = "they look at /proc"
    if CHROMIUM is None or CHROMEDRIVER is None:
        reasons["browser"] = "there is no Chromium with its driver (Debian: chromium, chromium-driver)"
    if not (TRITON_ENV / "made").is_file():
        reasons["triton"] = "scripts/make_triton_env makes what they run against"
    if find_spec("ray") is None:
        reasons["ray"] = "ray is not installed (the extra ray)"
    return reasons if PROVE else reasons | {"prove": "scripts/prove runs them"}


def _incomplete() -> Iterator[str]:
    """The bundled files that are missing or not the ones the manifest names."""
    for line in MANIFEST.read_text(encoding="utf-8").splitlines():
        checksum, name = line.split("  ")
        path = ROOT / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
            yield name


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job ignores interrupts, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_DESELECTED] = Counter()


def pytest_sessionstart(session: pytest.Session) -> None:
    incomplete = [] if _is_worker(session.config) else list(_incomplete())
    if incomplete:
        raise pytest.UsageError(
            f"the bundled test data is incomplete; restore it from git ({MANIFEST.relative_to(ROOT)} lists "
            f"it): {', '.join(incomplete)}"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = _reasons()
    kept, dropped = [], []
    for item in items:
        marker = next((name for name in reasons if item.get_closest_marker(name)), None)
        if marker is None:
            kept.append(item)
        else:
            dropped.append(item)
            config.stash[_DESELECTED][marker] += 1
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    allow_shared(item.get_closest_marker("shared") is not None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _is_worker(session.config):
        session.config.workeroutput["deselected"] = dict(session.config.stash[_DESELECTED])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker of pytest-xdist collects the same tests, so the counts of any one are the counts."""
    node.config.stash[_DESELECTED].update(
        Counter(node.workeroutput.get("deselected", {})) - node.config.stash[_DESELECTED]
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for marker, count in config.stash[_DESELECTED].items():
        terminalreporter.write_line(f"{count} tests marked {marker!r} did not run: {_reasons()[marker]}")
    terminalreporter.write_line(pages.summary())
