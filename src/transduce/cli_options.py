"""The options that several commands share, each spelled and explained once."""

from typing import Annotated, Literal, TypeAlias

import typer

from transduce.choice import Choice
from transduce.errors import DeviceError, UnsupportedModelError
from transduce.onnx.threads import MOST_THREADS
from transduce.pipeline import Vad

__all__ = [
    "Actors",
    "Address",
    "AsJson",
    "Backend",
    "CpusPerActor",
    "Decoder",
    "Device",
    "Engine",
    "GpusPerActor",
    "Head",
    "Manifest",
    "MaxSegment",
    "ModelName",
    "Offline",
    "Precision",
    "Quiet",
    "Threads",
    "Verbose",
    "VoiceActivity",
    "choice_of",
]

ModelName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="TRANSDUCE_MODEL",
        help="A file, a folder, a name (`transduce models` lists them), hf:OWNER/REPO, or `demo`.",
        show_default=True,
    ),
]
Head: TypeAlias = Annotated[
    str,
    typer.Option(envvar="TRANSDUCE_HEAD", help="For checkpoints with two heads: auto, rnnt, tdt or ctc."),
]
VoiceActivity: TypeAlias = Annotated[
    Vad,
    typer.Option(
        envvar="TRANSDUCE_VAD",
        help="Find pauses by voice activity: in long recordings (auto), in all (on), or not (off).",
    ),
]
MaxSegment: TypeAlias = Annotated[
    float | None,
    typer.Option(
        envvar="TRANSDUCE_MAX_SEGMENT",
        help="Longest stretch for one pass, in seconds.  [default: the model's]",
    ),
]
Device: TypeAlias = Annotated[str, typer.Option(envvar="TRANSDUCE_DEVICE", help="auto, cpu, cuda or cuda:N.")]
Precision: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="TRANSDUCE_PRECISION",
        help="Of the encoder: fp32 (exact), bf16, fp16, int8, or auto (may change numbers; says its choice).",
    ),
]
Backend: TypeAlias = Annotated[
    str, typer.Option(envvar="TRANSDUCE_BACKEND", help="The engine: auto, onnx, openvino or torch.")
]
Decoder: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="TRANSDUCE_DECODER",
        help="How torch decodes: auto, reference, eager or graph (CUDA). None changes a result.",
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(
        envvar="TRANSDUCE_THREADS",
        min=1,
        max=MOST_THREADS,
        help="Threads of the engine.  [default: the CPUs here]",
    ),
]
Offline: TypeAlias = Annotated[
    bool, typer.Option("--offline", envvar="TRANSDUCE_OFFLINE", help="Never open a connection.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", envvar="TRANSDUCE_QUIET", help="No progress and no warnings.")
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", envvar="TRANSDUCE_VERBOSE", help="Say what is being done.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", envvar="TRANSDUCE_JSON", help="As one JSON object.")
]

# Many recordings, many machines

Manifest: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="TRANSDUCE_MANIFEST",
        help='JSON lines that list recordings: {"path": "a.wav"}; paths may be addresses (s3://...).',
    ),
]
Engine: TypeAlias = Annotated[
    Literal["local", "ray"],
    typer.Option(
        envvar="TRANSDUCE_ENGINE",
        help="Where the work is done: in this process, or on a Ray cluster (needs -o DIR, and resumes).",
    ),
]
Address: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="TRANSDUCE_ADDRESS",
        help="Of the Ray cluster, or auto.  [default: RAY_ADDRESS, or else one is started here]",
    ),
]
Actors: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="TRANSDUCE_ACTORS",
        help="How many models the cluster holds: N, or MIN:MAX; without MAX as many as it has room for.",
    ),
]
CpusPerActor: TypeAlias = Annotated[
    float, typer.Option(envvar="TRANSDUCE_CPUS_PER_ACTOR", min=0, help="Cores, and threads, of each model.")
]
GpusPerActor: TypeAlias = Annotated[
    float,
    typer.Option(envvar="TRANSDUCE_GPUS_PER_ACTOR", min=0, help="GPUs of each model, or a share of one."),
]


def choice_of(
    backend: str = "auto",
    device: str = "auto",
    precision: str = "fp32",
    head: str = "auto",
    decoder: str = "auto",
    threads: int | None = None,
) -> Choice:
    """What the options ask for; a usage error for a word that is none."""
    try:
        return Choice(backend, device, precision, head, decoder, threads)
    except (DeviceError, UnsupportedModelError) as error:
        raise typer.BadParameter(str(error)) from error
