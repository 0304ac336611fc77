"""The options that several commands share, each spelled and explained once."""

from typing import Annotated, TypeAlias

import typer

from transduce.pipeline import Vad

__all__ = [
    "AsJson",
    "Backend",
    "Decoder",
    "Device",
    "Head",
    "MaxSegment",
    "ModelName",
    "Offline",
    "Precision",
    "Quiet",
    "Threads",
    "Verbose",
    "VoiceActivity",
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
    str, typer.Option(envvar="TRANSDUCE_BACKEND", help="The engine: auto, onnx or torch.")
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
    typer.Option(envvar="TRANSDUCE_THREADS", min=1, help="Threads of the engine.  [default: the CPUs here]"),
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
