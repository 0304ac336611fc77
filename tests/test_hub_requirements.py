"""What an installation needs: every library that is imported is declared, with a lower bound and no pin.

Number 86 of the field bugs, as far as one environment can show it; the workflow `ci` installs the lowest and
the highest versions on every Python and system and runs everything in each.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support import ROOT

BROUGHT_BY = {
    "cuda": "cuda-bindings",
    "google": "onnx",  # protobuf, in which its files are written
    "prometheus_client": "prometheus-client",
    "pydantic": "fastapi",
    "starlette": "fastapi",
    "yaml": "pyyaml",
}
"""Libraries that come with a distribution of another name."""

GIVEN_BY_TRITON = {"triton_python_backend_utils"}
"""What a server has put into the process in which `triton/model.py` runs."""

LAZY = {"import_extra", "import_module", "library"}
"""Functions that import what their first argument names."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The package's metadata, as an installer sees them."""
    command = [sys.executable, "-m", "hatchling", "metadata"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=True)
    content: dict[str, Any] = json.loads(run.stdout)
    return content


def runtime_requirements(project: dict[str, Any]) -> list[str]:
    """Of the base install and of every extra but the one for developers."""
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(r for name, rs in extras.items() if name != "dev" for r in rs)]


def imported_libraries() -> set[str]:
    """The third-party libraries that any module imports, at its top or later."""
    trees = (
        ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src" / "transduce").rglob("*.py")
    )
    names = {name.partition(".")[0] for tree in trees for node in ast.walk(tree) for name in named_by(node)}
    return names - sys.stdlib_module_names - {"transduce"} - GIVEN_BY_TRITON


def named_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=aliases):
            yield from (alias.name for alias in aliases)
        case ast.ImportFrom(module=str(name), level=0):
            yield name
        case ast.Call(func=ast.Name(id=called), args=[ast.Constant(value=str(name)), *_]) if called in LAZY:
            yield name


def test_what_is_imported_is_declared(project: dict[str, Any]) -> None:
    declared = {re.split(r"[^\w.-]", requirement)[0] for requirement in runtime_requirements(project)}
    needed = {BROUGHT_BY.get(name, name) for name in imported_libraries()}
    assert needed <= declared
    assert {"numpy", "filelock"} <= needed


def test_requirements_have_a_lower_bound_and_no_pin(project: dict[str, Any]) -> None:
    """An upper bound that nobody tested makes two packages impossible together (numpy < 2, say)."""
    for requirement in runtime_requirements(project):
        if not requirement.startswith("transduce"):
            version = requirement.partition(";")[0]
            assert re.fullmatch(r"[\w.-]+(\[\w+\])?>=\d+(\.\d+)*", version.strip()), requirement


def test_other_pythons_are_refused_by_the_metadata(project: dict[str, Any]) -> None:
    assert sorted(project["requires-python"].split(",")) == ["<3.14", ">=3.10"]
    named = [
        text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r"Python :: 3\.\d+$", text)
    ]
    assert named == ["3.10", "3.11", "3.12", "3.13"]


def test_ci_installs_the_lowest_and_the_highest_on_each() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert 'python: ["3.10", "3.11", "3.12", "3.13"]' in workflow
    assert "resolution: [lowest-direct, highest]" in workflow
