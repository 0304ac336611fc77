"""The package as a whole: which way imports point, what is public, how it is packed.

The source is read, not run: a rule about modules holds for every file of `src/transduce` there is.
"""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import BUNDLED, DEMO, MANIFEST, ROOT

import transduce

PACKAGE = ROOT / "src" / "transduce"
PATHS = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    {"errors", "types"},
    {"media", "memory", "mixing", "sources"},
    {"audio", "background", "batching", "features", "greedy", "guarded", "hub", "segmentation"},
    {"json_lines", "ledger", "remote", "tokenizer", "writers"},
    {"longform", "transcript", "words"},
    {"nn", "onnx", "recognizing"},
    {"checkpoints", "choice", "pipeline"},
    {"outputs", "synthetic", "transcriber"},
    {"cli_options", "cli_progress", "cluster", "doctor", "evaluate", "manifest", "server"},
    {"bench", "triton"},
    {"cli_export", "cli_models", "cli_serve", "cli_triton", "cli_work"},
    {"cli_bench", "cli_cluster", "cli_eval", "cli_request"},
    {"cli"},
    {"transduce", "__main__"},
)
"""The parts of the package from the bottom up; an import points to a lower line (or into its own part)."""

ONLY_IN = {"torch": "nn", "onnx": "onnx", "onnxruntime": "onnx", "openvino": "onnx", "ray": "cluster"}
"""Heavy libraries, each with the one part that may import it, even lazily."""

AT_TOP = {
    "numpy": None,
    "yaml": {"checkpoints"},
    "torch": {"nn"},
    "typer": {
        "cli",
        "cli_bench",
        "cli_cluster",
        "cli_eval",
        "cli_export",
        "cli_models",
        "cli_options",
        "cli_request",
        "cli_serve",
        "cli_work",
        "cli_triton",
    },
    "rich": {"cli"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "pydantic": {"server"},
    "uvicorn": {"server"},
    "prometheus_client": {"server"},
    "triton_python_backend_utils": {"triton"},
}
"""What may stand among a module's first imports besides the standard library, and in which parts."""

MOST_MODULE_LINES = 400
MOST_FUNCTION_LINES = 60


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, its part (the name below `transduce`) and its syntax tree."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def part(self) -> str:
        return part_of(self.name)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def part_of(name: str) -> str:
    """`transduce.nn.lanes` -> `nn`; the package itself is the part `transduce`."""
    return name.split(".")[1] if "." in name else name


def read(path: Path) -> Module:
    names = path.relative_to(PACKAGE.parent).with_suffix("").parts
    name = ".".join(names[:-1] if names[-1] == "__init__" else names)
    return Module(path, name, ast.parse(path.read_text(encoding="utf-8"), path))


MODULES = [read(path) for path in PATHS]
NAMES = {m.name for m in MODULES}
every_module = pytest.mark.parametrize("module", MODULES, ids=lambda m: m.name)


def imported_by(node: ast.AST) -> Iterator[str]:
    """The full names that one syntax node imports, `import_extra("x", ...)` and its like included."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(source), names=names):
            for alias in names:
                full = f"{source}.{alias.name}"
                yield full if full in NAMES else source
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in {"import_extra", "import_module", "__import__"}:
                yield name


def imports(module: Module) -> set[str]:
    """Everything a module imports, at its top or inside its functions.

    A bare statement `import_extra("torch", "torch")` does not count: it asks whether the library is there.
    """
    nodes = list(ast.walk(module.tree))
    asked = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return {name for node in nodes if id(node) not in asked for name in imported_by(node)}


def top_imports(module: Module) -> set[str]:
    """What a module imports when it is imported: all but what its functions import."""

    def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for child in ast.iter_child_nodes(node):
                yield from outside_functions(child)

    return {name for node in outside_functions(module.tree) for name in imported_by(node)}


def own(names: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "transduce"}


def foreign(names: set[str]) -> set[str]:
    """The top-level names of third-party libraries among `names`."""
    return {name.split(".")[0] for name in names - own(names)} - sys.stdlib_module_names


# Which way imports point


@every_module
def test_imports_point_down(module: Module) -> None:
    rank = {part: index for index, parts in enumerate(LAYERS) for part in parts}
    assert module.part in rank, f"give {module.part!r} its place in LAYERS"
    for name in own(imports(module)):
        part = part_of(name)
        assert part == module.part or rank[part] < rank[module.part], f"{module.name} imports {name}"


def test_no_import_cycle_even_counting_lazy_imports() -> None:
    graph = {m.name: own(imports(m)) & NAMES for m in MODULES}
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"these modules are in a cycle, or lead into one: {sorted(graph)}"


@every_module
def test_heavy_libraries_have_one_home(module: Module) -> None:
    homes = {library: home for library, home in ONLY_IN.items() if library in foreign(imports(module))}
    assert set(homes.values()) <= {module.part}, f"{module.name} imports {sorted(homes)}"


@every_module
def test_top_imports_are_light(module: Module) -> None:
    allowed = {library for library, parts in AT_TOP.items() if parts is None or module.part in parts}
    assert foreign(top_imports(module)) <= allowed


def test_importing_the_package_loads_only_the_standard_library_and_numpy() -> None:
    program = "import sys; before = set(sys.modules); import transduce; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "transduce" in loaded
    assert loaded - sys.stdlib_module_names <= {"transduce", "numpy"}


# What a module looks like


@every_module
def test_module_opens_with_its_contract(module: Module) -> None:
    assert ast.get_docstring(module.tree) or not module.tree.body, f"{module.name} has no docstring"


@every_module
def test_module_is_short(module: Module) -> None:
    assert len(module.path.read_text(encoding="utf-8").splitlines()) <= MOST_MODULE_LINES
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.body[-1].end_lineno or 0) - node.body[0].lineno + 1
            assert lines <= MOST_FUNCTION_LINES, f"{module.name}.{node.name} has {lines} lines"


@every_module
def test_no_type_checking_block(module: Module) -> None:
    assert "TYPE_CHECKING" not in ast.dump(module.tree)


def test_no_module_is_called_utils() -> None:
    assert not [m.name for m in MODULES if m.name.split(".")[-1] in {"utils", "util", "helpers", "common"}]


def defined(module: Module) -> set[str]:
    """The public functions and classes that a module defines at its top level."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in module.tree.body if isinstance(node, kinds)}
    return {name for name in names if not name.startswith("_")}


def constants(module: Module) -> set[str]:
    """What a module assigns at its top level; it may be public, and need not."""
    assigned = (node for node in module.tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    return {n.id for node in assigned for n in ast.walk(node) if isinstance(n, ast.Name)}


def reexported(module: Module) -> set[str]:
    """The public names that a package's `__init__` takes from its own modules."""
    sources = (node for node in module.tree.body if isinstance(node, ast.ImportFrom))
    aliases = (a for node in sources if (node.module or "").startswith(f"{module.name}.") for a in node.names)
    return {a.asname or a.name for a in aliases if not (a.asname or a.name).startswith("_")}


def lazy(module: Module) -> set[str]:
    """The names that a package's `__getattr__` loads on first use; `test_public_names...` loads them all."""
    names = {node.name for node in module.tree.body if isinstance(node, ast.FunctionDef)}
    return set(declared(module)) if "__getattr__" in names else set()


def declared(module: Module) -> list[str]:
    """The content of `__all__`, a literal list."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


@every_module
def test_all_is_honest(module: Module) -> None:
    public = defined(module) | lazy(module) | (reexported(module) if module.is_package else set())
    assert public <= set(declared(module)) <= public | constants(module)
    assert len(declared(module)) == len(set(declared(module)))


@every_module
def test_public_definitions_have_docstrings(module: Module) -> None:
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module.name}.{node.name} has no docstring"


def test_public_names_can_be_imported() -> None:
    assert transduce.__all__
    for name in transduce.__all__:
        assert getattr(importlib.import_module("transduce"), name) is not None


# How it is packed


def project_version() -> str:
    """The version in pyproject.toml (tomllib is younger than the oldest Python here)."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    return str(version)


def test_version_is_the_projects() -> None:
    assert transduce.__version__ == importlib.metadata.version("transduce") == project_version()


def test_changelog_knows_the_version() -> None:
    assert f"## [{project_version()}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_wheel_holds_the_models_their_licences_and_the_type_marker(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("transduce/models/demo/hybrid.nemo") == DEMO.read_bytes()
    info = f"transduce-{project_version()}.dist-info"
    sources = {path.relative_to(PACKAGE.parent).as_posix() for path in PATHS}
    assert sources | {"transduce/py.typed", "transduce/models/demo/LICENSE"} <= names
    assert {"transduce/models/vad/silero_vad_16k.onnx", "transduce/models/vad/LICENSE"} <= names
    assert {"transduce/models/calibration/speech.flac", "transduce/models/calibration/LICENSE"} <= names
    licences = {"LICENSE", *(f"LICENSES/{path.name}" for path in (ROOT / "LICENSES").iterdir())}
    assert {f"{info}/licenses/{name}" for name in licences} <= names
    assert not [name for name in names if not name.startswith(("transduce/", info))]


def test_manifest_names_every_bundled_file() -> None:
    listed = {line.split("  ")[1] for line in MANIFEST.read_text(encoding="utf-8").splitlines()}
    about = {MANIFEST, BUNDLED / "CREDITS.md", BUNDLED / ".gitattributes"}
    files = {path for path in BUNDLED.rglob("*") if path.is_file()} - about
    assert {path.relative_to(ROOT).as_posix() for path in files} <= listed


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^pip install .+scripts/test$", readme, re.MULTILINE)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert command in ci.splitlines()
