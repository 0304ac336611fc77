"""The same weights and audio through transduce and the peers that are installed, in turns.

    benchmarks/make_peers                          # their virtual environments, once
    python benchmarks/peers.py [--layers 16] [--seconds 20] [--clips 8] [--batch 8] [--threads 2] [--rounds 3]
    python benchmarks/peers.py --models model.nemo sherpas-folder onnx-asrs-folder --audio a.wav b.wav

A model of GigaAM v3's size with random weights (`transduce.synthetic`). `onnx-asr:upstream` reads it as
upstream's own exporter writes it (`peer_export.py`, in gigaam's environment), which is what users of onnx-asr
run; `onnx-asr:upstream-2025` as it wrote v3 first, without attention masks. `onnx-asr` and `sherpa-onnx` read
files with our encoder's operators, which are fewer.
Or trained weights: the first of `--models` is transduce's, all together are one model in the layouts of NeMo
(which reads nothing else), sherpa-onnx and onnx-asr.
Every way runs in a process of its own with the same threads, the others waiting; medians of the rounds after
one that does not count. Tokens are compared with those of transduce in fp32. sherpa-onnx has GigaAM v2's
front end and no limit of one label a frame, so on the random weights it finds other labels, and more.
The last line is JSON; `--plot` draws.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from transduce import synthetic
from transduce.audio import load
from transduce.checkpoints import Checkpoint
from transduce.evaluate import describe_machine, now
from transduce.onnx import encoder, graph, staged
from transduce.onnx.builder import FLOAT, INT32, INT64, Graph
from transduce.onnx.export import export
from transduce.onnx.precision import precision_named

OURS = (
    "transduce:openvino:fp32:rnnt",
    "transduce:openvino:fp32:ctc",
    "transduce:onnx:fp32:rnnt",
    "transduce:onnx:fp32:ctc",
    "transduce:openvino:bf16:rnnt",
    "transduce:openvino:bf16:ctc",
    "transduce:openvino:auto:rnnt",
    "transduce:openvino:auto:ctc",
    "transduce:onnx:auto:rnnt",
    "transduce:onnx:int8:rnnt",
    "transduce:onnx:int8:ctc",
    "transduce:openvino:int8:rnnt",
    "transduce:openvino:int8:ctc",
)
"""Engine, precision and head. int8 is an export that was calibrated, on other audio than is measured."""
TRAINED = (
    "transduce:onnx:fp32:auto",
    "transduce:openvino:fp32:auto",
    "transduce:onnx:auto:auto",
    "transduce:openvino:auto:auto",
)
"""Of a model that is there, with the head that is its own."""
DECODERS = ("gigaam-decoder", "plain-loop")
"""Ways that get encoder frames; the second, in plain torch, runs if it is asked for."""
PEERS = {
    "onnx-asr:upstream": "onnx-asr",
    "onnx-asr:upstream-2025": "onnx-asr",
    "onnx-asr": "onnx-asr",
    "gigaam-decoder": "gigaam",
    "sherpa-onnx": "sherpa-onnx",
    "nemo": "nemo",
}
"""Way -> its virtual environment."""
EXPORTS = {"onnx-asr:upstream": 8, "onnx-asr:upstream-2025": 1}
"""Way -> the batch that upstream's exporter traces for it."""

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transduce" / "peers"


# What everybody gets


def prepare_trained(folder: Path, models: list[Path], audio: list[str]) -> None:
    """Clips and a list of who reads what, from files that are there."""
    np.savez(folder / "clips.npz", *[load(path, rate=16000).samples for path in audio])
    found = {"transduce": models[0], **{reader_of(path): path for path in models}}
    write_models(folder, {way: path.resolve() for way, path in found.items()})


def reader_of(path: Path) -> str:
    """The peer whose layout this is."""
    if path.suffix == ".nemo":
        return "nemo"
    return "sherpa-onnx" if (path / "tokens.txt").exists() else "onnx-asr"


def write_models(folder: Path, paths: dict[str, Path]) -> None:
    """For the workers: way -> its file or folder."""
    (folder / "models.json").write_text(json.dumps({way: str(path) for way, path in paths.items()}))


def prepare(folder: Path, arguments: argparse.Namespace) -> None:
    size = synthetic.SIZES["gigaam-v3-rnnt"]
    spec = replace(size.spec, encoder=replace(size.spec.encoder, num_layers=arguments.layers))
    made = synthetic.checkpoint(replace(size, spec=spec))
    # One recording from other places: a random encoder answers each noise in its own way.
    length = round(16000 * arguments.seconds)
    clip = synthetic.noise(length)
    clips = np.stack([np.roll(clip, row * length // arguments.clips) for row in range(arguments.clips)])
    made = synthetic.speaking(made, frames_of(made, clips[:1])[0])
    np.savez(folder / "clips.npz", *clips)
    np.save(folder / "encoded.npy", np.ascontiguousarray(frames_of(made, clips).transpose(0, 2, 1)))
    with (folder / "checkpoint.pickle").open("wb") as file:
        pickle.dump(made, file, protocol=5)
    pieces = list(made.tokenizer.pieces)
    (folder / "pieces.json").write_text(json.dumps(pieces))
    weights = made.weights
    np.savez(
        folder / "head.npz",
        embedding=weights["predictor.embed.weight"],
        weight_ih=weights["predictor.lstm.weight_ih_l0"],
        weight_hh=weights["predictor.lstm.weight_hh_l0"],
        bias=weights["predictor.lstm.bias_l0"],
        **{
            f"{n}_{kind}": weights[f"joint.{n}.{kind}"]
            for n in ("enc", "pred", "out")
            for kind in ("weight", "bias")
        },
    )
    other = [synthetic.noise(length, seed=1)]
    for head in made.spec.heads:
        if any(f":int8:{head.kind}" in way for way in ways_of(arguments)):
            spec, name = replace(made.spec, head=head), f"int8-{head.kind}"
            export(spec, weights, made.tokenizer, folder / name, precision="int8", calibration=other)
    write_for_peers(made, folder / "onnx-asr", folder / "sherpa")
    exported = export_upstream(made, folder, arguments)
    paths = dict.fromkeys(("transduce", "plain-loop"), "checkpoint.pickle") | {"gigaam-decoder": "head.npz"}
    paths |= {"onnx-asr": "onnx-asr", "sherpa-onnx": "sherpa", **exported}
    write_models(folder, {way: folder / name for way, name in paths.items()})


def write_for_peers(made: Checkpoint, upstream: Path, sherpa: Path) -> None:
    """The folders that onnx-asr and sherpa-onnx read; the encoder is the same file."""
    upstream.mkdir()
    sherpa.mkdir()
    hidden = made.weights["predictor.lstm.weight_hh_l0"].shape[1]
    notes = {
        "vocab_size": made.tokenizer.size,
        "normalize_type": "",
        "pred_rnn_layers": 1,
        "pred_hidden": hidden,
        "subsampling_factor": made.spec.encoder.subsampling_factor,
        "model_type": "EncDecRNNTBPEModel",
        "version": "v3",
        "is_giga_am": 1,
    }
    write(upstream_encoder(made), upstream / "v3_rnnt_encoder.onnx", notes)
    write(upstream_decoder(made), upstream / "v3_rnnt_decoder.onnx")
    write(upstream_joint(made), upstream / "v3_rnnt_joint.onnx")
    (sherpa / "encoder.onnx").symlink_to(upstream / "v3_rnnt_encoder.onnx")
    write(sherpa_decoder(made), sherpa / "decoder.onnx")
    (sherpa / "joiner.onnx").symlink_to(upstream / "v3_rnnt_joint.onnx")
    lines = [f"{piece} {index}" for index, piece in enumerate([*made.tokenizer.pieces, "<blk>"])]
    for path in (upstream / "v3_vocab.txt", sherpa / "tokens.txt"):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = {"model_type": "gigaam", "version": "v3", "subsampling_factor": 4, "max_tokens_per_step": 1}
    (upstream / "config.json").write_text(json.dumps(config))


def export_upstream(made: Checkpoint, folder: Path, arguments: argparse.Namespace) -> dict[str, str]:
    """Way -> the folder that upstream's exporter wrote for it, onnx-asr's vocabulary and config beside."""
    wanted = {way: batch for way, batch in EXPORTS.items() if way in ways_of(arguments)}
    if not wanted:
        return {}
    python = arguments.peers / "gigaam" / "bin" / "python"
    if not python.exists():
        print(f"{', '.join(wanted)}: gigaam is not installed ({python} is not there)", file=sys.stderr)
        return {}
    config, weights = folder / "gigaam.json", folder / "gigaam.npz"
    config.write_text(json.dumps(upstream_config(made)))
    np.savez(weights, **dict(upstream_weights(made)))
    for batch in wanted.values():
        path = folder / f"exported-{batch}"
        script = Path(__file__).with_name("peer_export.py")
        # Isolated, since onnx.py beside the script is called like the library.
        command = [python, "-I", script, config, weights, path, str(batch)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        for name in ("v3_vocab.txt", "config.json"):
            (path / name).symlink_to(folder / "onnx-asr" / name)
    return {way: f"exported-{batch}" for way, batch in wanted.items()}


def upstream_config(made: Checkpoint) -> dict[str, Any]:
    """The `cfg` of a checkpoint of GigaAM's, as far as gigaam 0.1.0 knows it."""
    front, sizes = made.spec.features, made.spec.encoder
    hidden = made.weights["predictor.lstm.weight_hh_l0"].shape[1]
    classes = made.spec.heads[0].num_classes
    encoder = {
        "_target_": "gigaam.encoder.ConformerEncoder",
        "feat_in": front.num_mels,
        "n_layers": sizes.num_layers,
        "d_model": sizes.width,
        "subs_kernel_size": sizes.subsampling_kernel,
        "subsampling_factor": sizes.subsampling_factor,
        "ff_expansion_factor": sizes.feed_forward_width // sizes.width,
        "self_attention_model": "rotary",
        "n_heads": sizes.num_heads,
        "pos_emb_max_len": int(sizes.rotary_base),
        "conv_kernel_size": sizes.conv_kernel,
    }
    decoder = {"pred_hidden": hidden, "pred_rnn_layers": 1, "num_classes": classes}
    joint = {
        "enc_hidden": sizes.width,
        "pred_hidden": hidden,
        "joint_hidden": hidden,
        "num_classes": classes,
    }
    return {
        "model_name": "v3_rnnt",
        "preprocessor": {
            "_target_": "gigaam.preprocess.FeatureExtractor",
            "sample_rate": front.sample_rate,
            "features": front.num_mels,
        },
        "encoder": encoder,
        "head": {"_target_": "gigaam.decoder.RNNTHead", "decoder": decoder, "joint": joint},
        "decoding": {
            "_target_": "gigaam.decoding.RNNTGreedyDecoding",
            "vocabulary": list(made.tokenizer.pieces),
        },
    }


def upstream_weights(made: Checkpoint) -> Iterator[tuple[str, Any]]:
    """Upstream's state dict of the RNN-T model, the inverse of what `transduce.checkpoints.gigaam` reads."""
    prefixes = {
        "encoder.": "encoder.",
        "predictor.": "head.decoder.",
        "joint.out.": "head.joint.joint_net.1.",
        "joint.": "head.joint.",
    }
    for name, array in made.weights.items():
        prefix = next((each for each in prefixes if name.startswith(each)), None)
        if prefix is None:  # the front end and the CTC head
            continue
        theirs = prefixes[prefix] + name.removeprefix(prefix)
        if ".pointwise_conv" in name and name.endswith("weight"):
            yield theirs, array[..., None]
        elif ".bias_l" in name:
            yield theirs.replace("bias_l", "bias_ih_l"), array
            yield theirs.replace("bias_l", "bias_hh_l"), np.zeros_like(array)
        else:
            yield theirs.replace("conv.layer_norm", "conv.batch_norm"), array


def write(graph: Graph, path: Path, notes: dict[str, Any] | None = None) -> None:
    """One file with its weights inside: sherpa-onnx hands its runtime bytes, which know no other file."""
    model = graph.model(path.stem)
    for key, value in (notes or {}).items():
        model.metadata_props.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())


def frames_of(made: Checkpoint, clips: Any) -> Any:
    """Encoder frames `[B, T, D]`."""
    whole = graph.build(made.spec, made.weights, precision_named("fp32"))
    mels = made.spec.features.num_mels
    session = staged.StagedSession.of_graph(whole, "frames", num_mels=mels, in_openvino=False)
    lengths = np.array([clips.shape[1]])
    return np.concatenate([session.encode(clip[None], lengths)[0] for clip in clips])


def upstream_encoder(made: Checkpoint) -> Graph:
    g = Graph(17)
    signal = g.add_input("audio_signal", FLOAT, ["batch", made.spec.features.num_mels, "time"])
    length = g.add_input("length", INT64, ["batch"])
    rows = g.op("Transpose", signal, perm=[0, 2, 1])
    encoded, counts = encoder.encode(
        g, made.spec.encoder, made.weights, precision_named("fp32"), rows, length
    )
    width = made.spec.encoder.width
    g.add_output(g.op("Transpose", encoded, perm=[0, 2, 1]), FLOAT, ["batch", width, None], "encoded")
    g.add_output(g.cast(counts, INT32), INT32, ["batch"], "encoded_len")
    return g


def upstream_decoder(made: Checkpoint) -> Graph:
    """`x [B, 1], h.1, c.1 -> dec [B, 1, H], h, c`, as GigaAM exports it."""
    g = Graph(17)
    x = g.add_input("x", INT64, ["batch", 1])
    rows, states = predicted(g, made, x)
    g.add_output(g.op("Transpose", rows, perm=[1, 0, 2]), FLOAT, ["batch", 1, None], "dec")
    add_states(g, states)
    return g


def sherpa_decoder(made: Checkpoint) -> Graph:
    """`x int32 [B, 1], x_len [B], h.1, c.1 -> dec [B, H, 1], dec_len, h, c`; dec goes into the joint."""
    g = Graph(17)
    x = g.add_input("x", INT32, ["batch", 1])
    length = g.add_input("x_len", INT32, ["batch"])
    rows, states = predicted(g, made, x)
    g.add_output(g.op("Transpose", rows, perm=[1, 2, 0]), FLOAT, ["batch", None, 1], "dec")
    g.add_output(g.op("Identity", length), INT32, ["batch"], "dec_len")
    add_states(g, states)
    return g


def predicted(g: Graph, made: Checkpoint, x: str) -> tuple[str, list[str]]:
    """Labels `[B, 1]` -> rows `[1, B, H]` and the new states, with onnxruntime's own LSTM."""
    weights = made.weights
    hidden = weights["predictor.lstm.weight_hh_l0"].shape[1]
    h, c = (g.add_input(name, FLOAT, [1, "batch", hidden]) for name in ("h.1", "c.1"))

    def ordered(name: str) -> Any:
        i, f, cell, o = np.split(weights[f"predictor.lstm.{name}_l0"], 4)
        return np.concatenate([i, o, f, cell])

    bias = np.concatenate([ordered("bias"), np.zeros_like(ordered("bias"))])
    arrays = {"W": ordered("weight_ih"), "R": ordered("weight_hh"), "B": bias}
    names = [g.weight(array[None], name) for name, array in arrays.items()]
    embedded = g.op("Gather", g.weight(weights["predictor.embed.weight"], "embed"), x, axis=0)
    rows = g.op("Transpose", embedded, perm=[1, 0, 2])
    y, *states = g.ops("LSTM", rows, *names, "", h, c, num_outputs=3, hidden_size=hidden)
    return g.squeeze(y, 1), states


def add_states(g: Graph, states: list[str]) -> None:
    for name, value in zip(("h", "c"), states, strict=True):
        g.add_output(value, FLOAT, [1, "batch", None], name)


def upstream_joint(made: Checkpoint) -> Graph:
    """`enc [B, D, 1], dec [B, H, 1] -> joint [B, 1, 1, C]`."""
    g, hidden = Graph(17), []
    for name, part, axis in (("enc", "joint.enc", 2), ("dec", "joint.pred", 1)):
        width = made.weights[f"{part}.weight"].shape[1]
        value = g.op("Transpose", g.add_input(name, FLOAT, ["batch", width, "time"]), perm=[0, 2, 1])
        value = g.op("MatMul", value, g.weight(made.weights[f"{part}.weight"].T, f"{part}.weight"))
        value = g.op("Add", value, g.weight(made.weights[f"{part}.bias"], f"{part}.bias"))
        hidden.append(g.unsqueeze(value, axis))
    value = g.op("Relu", g.op("Add", *hidden))
    value = g.op("MatMul", value, g.weight(made.weights["joint.out.weight"].T, "out.weight"))
    value = g.op("Add", value, g.weight(made.weights["joint.out.bias"], "out.bias"))
    classes = len(made.weights["joint.out.bias"])
    g.add_output(g.op("LogSoftmax", value, axis=-1), FLOAT, ["batch", None, None, classes], "joint")
    return g


# Who runs it


@dataclass
class Worker:
    way: str
    process: Any

    @classmethod
    def start(cls, way: str, folder: Path, arguments: argparse.Namespace) -> "Worker | None":
        """None where its environment is not there, the model is in no layout of its, or it cannot load it."""
        python = Path(sys.executable)
        if way in PEERS:
            python = arguments.peers / PEERS[way] / "bin" / "python"
        if not python.exists():
            print(f"{way}: not installed ({python} is not there)", file=sys.stderr)
            return None
        name = way if way in PEERS else way.partition(":")[0]
        if name not in json.loads((folder / "models.json").read_text()):
            print(f"{way}: the model is in no layout that it reads", file=sys.stderr)
            return None
        command = [
            str(python),
            str(Path(__file__).with_name("peer_worker.py")),
            way,
            str(folder),
            str(arguments.threads),
        ]
        worker = cls(way, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        if worker.process.stdout.readline().strip() == "ready":
            return worker
        print(f"{way}: could not be started", file=sys.stderr)
        return None

    def ask(self, batch: int) -> dict[str, Any]:
        self.process.stdin.write(f"{batch}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


def ways_of(arguments: argparse.Namespace) -> list[str]:
    return list(arguments.ways or [*(TRAINED if arguments.models else OURS), *PEERS])


def compare(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    workers = [worker for way in ways_of(arguments) if (worker := Worker.start(way, folder, arguments))]
    by_way: dict[str, list[dict[str, Any]]] = {worker.way: [] for worker in workers}
    for turn in range(arguments.rounds + 1):
        # Every other round backwards, so that nobody always comes after the same neighbour.
        for worker in workers[:: -1 if turn % 2 else 1]:
            answer = worker.ask(arguments.batch)
            if turn:
                by_way[worker.way].append(answer)
    for worker in workers:
        worker.stop()
    fp32 = next((way for way in by_way if ":fp32:" in way), None)
    expected = by_way[fp32][0]["tokens"] if fp32 else []
    rows = []
    for way, all_rounds in by_way.items():
        tokens = all_rounds[0]["tokens"]
        same = sum(plain(a) == plain(b) for a, b in zip(tokens, expected, strict=True)) if expected else 0
        rows.append(
            {
                "way": way,
                "seconds": median(each["seconds"] for each in all_rounds),
                "rounds": [round(each["seconds"], 3) for each in all_rounds],
                "decoder": median(each["decoder"] for each in all_rounds),
                "labels": sum(map(len, tokens)),
                "clips with the same tokens": f"{same}/{len(tokens)}",
            }
        )
    return rows


def plain(tokens: list[str]) -> list[str]:
    """onnx-asr and sherpa-onnx write the mark of a word's start as a space."""
    return [token.replace("▁", " ") for token in tokens]


def plot(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row["way"] not in DECODERS]
    figure, axes = pyplot.subplots(figsize=(8, 0.5 + 0.45 * len(shown)), layout="constrained")
    colours = ["tab:blue" if row["way"].startswith("transduce") else "tab:gray" for row in shown]
    bars = axes.barh([row["way"] for row in shown], [row["seconds"] for row in shown], color=colours)
    axes.bar_label(bars, fmt=" %.2f s")
    axes.invert_yaxis()
    axes.margins(x=0.12)  # room for the numbers
    axes.set_xlabel(title)
    figure.savefig(path, dpi=90)


def main() -> None:
    # onnx.py beside this file is called like the library.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", help=f"default: {' '.join([*OURS, *PEERS])}")
    parser.add_argument("--models", nargs="+", type=Path, help="trained weights instead, in several layouts")
    parser.add_argument("--audio", nargs="+", help="what they transcribe")
    parser.add_argument("--peers", type=Path, default=FOLDER, help="where make_peers put the environments")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if bool(arguments.models) != bool(arguments.audio):
        parser.error("--models and --audio belong together")
    with TemporaryDirectory(prefix="peers-") as folder:
        if arguments.models:
            prepare_trained(Path(folder), arguments.models, arguments.audio)
        else:
            prepare(Path(folder), arguments)
        rows = compare(Path(folder), arguments)
        audio = sum(map(len, np.load(Path(folder) / "clips.npz").values())) / 16000
    base = next((row["seconds"] for row in rows if row["way"].startswith("onnx-asr")), None)
    print(f"{'way':34} {'seconds':>8} {'decoder':>8} {'labels':>7} {'same':>6}  x onnx-asr")
    for row in rows:
        ratio = f"{base / row['seconds']:.2f}" if base and row["way"] not in DECODERS else "-"
        print(
            f"{row['way']:34} {row['seconds']:8.2f} {row['decoder']:8.3f} {row['labels']:7} "
            f"{row['clips with the same tokens']:>6}  {ratio}"
        )
    if arguments.plot:
        plot(
            rows,
            f"seconds for {audio:g} s of audio, batch {arguments.batch}, {arguments.threads} threads",
            arguments.plot,
        )
    names = ("batch", "threads", "rounds", *(() if arguments.models else ("layers", "seconds", "clips")))
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    if arguments.models:
        settings |= {"models": [path.name for path in arguments.models], "audio_seconds": round(audio, 1)}
    print(json.dumps({"date": now(), "machine": describe_machine(), "settings": settings, "results": rows}))


if __name__ == "__main__":
    main()
