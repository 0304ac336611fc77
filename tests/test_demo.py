"""The demo is one model in two forms: the checkpoint that torch reads, and a graph for onnxruntime."""

import subprocess
import sys

import pytest
from support import ROOT, golden, read_wav

from transduce import hub
from transduce.choice import Choice
from transduce.errors import UnsupportedModelError
from transduce.transcriber import load_model


@pytest.mark.parametrize(
    ("engines", "name"),
    [(("onnx", "torch"), "hybrid.nemo"), (("torch",), "hybrid.nemo"), (("onnx",), "onnx")],
)
def test_the_form_follows_the_installed_engines(engines: tuple[str, ...], name: str) -> None:
    """With both, the checkpoint: it has two heads, the graph has one."""
    assert hub.resolve("demo", engines=engines).name == name


def test_the_sizes_that_are_announced() -> None:
    entry = hub.find_model("demo", hub.catalogue())
    assert isinstance(entry, hub.Entry)
    for artefact in entry.artefacts:
        path = hub.resolve("demo", engines=artefact.engines)
        files = [path] if path.is_file() else list(path.iterdir())
        assert artefact.num_bytes == sum(file.stat().st_size for file in files)


def test_a_head_that_the_graph_has_not() -> None:
    """The checkpoint has a CTC head too; the graph must not answer in its place."""
    folder = hub.resolve("demo", engines=("onnx",))
    with pytest.raises(UnsupportedModelError, match="demo: has no ctc head; it has: tdt"):
        load_model(folder, head="ctc")


def test_the_graph_gives_upstreams_labels() -> None:
    with load_model("demo", Choice(backend="onnx")) as model:
        assert (model.spec.name, model.spec.head.kind) == ("demo", "tdt")
        assert model.describe()["engine"].startswith("onnxruntime")
        answers = golden("nemo-hybrid")["utterances"]
        found = model.backend.recognize([read_wav(answer["file"]) for answer in answers])
    for hypothesis, answer in zip(found, answers, strict=True):
        assert hypothesis.ids.tolist() == answer["ids"]
        assert hypothesis.frames.tolist() == answer["frames"]
        assert hypothesis.durations.tolist() == answer["durations"]


def test_the_graph_needs_no_torch() -> None:
    """Where torch cannot be imported the demo still runs; another process, for a clean slate."""
    program = (
        "import sys; sys.modules['torch'] = None; import transduce; "
        "print(transduce.load_model('demo').transcribe('examples/digits.wav').text)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "three seven five three six six three one six\n"
