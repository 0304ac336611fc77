"""One way to transcribe, in the environment that has it: `peers.py` starts these and asks them in turns.

    python peer_worker.py WAY FOLDER THREADS

Reads "BATCH" lines; for each it recognises the folder's clips in batches of that size, and answers with one
line of JSON: seconds in all, in the decoder where that can be told, and the tokens of every clip. Seconds
are CPU time of the process where it has one thread. Whatever else a library prints goes to stderr.
It uses nothing of this project but in the ways `transduce:...` and `plain-loop`.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Result = tuple[list[list[str]], float]
"""Tokens of each clip, and seconds in the decoder (0: not told apart)."""


clock = time.perf_counter
"""With one thread `main` makes it CPU time of this process, so that other work on the machine counts less."""


def model_of(folder: Path, way: str) -> Path:
    return Path(json.loads((folder / "models.json").read_text())[way])


def onnx_asr(folder: Path, threads: int, way: str) -> Callable[[list[Any]], Result]:
    import onnx_asr as peer
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    path = model_of(folder, way)
    kind = json.loads((path / "config.json").read_text())["model_type"]
    name = "gigaam-v3-rnnt" if kind == "gigaam" else kind
    loaded = peer.load_model(name, path, sess_options=options, providers=["CPUExecutionProvider"])
    model, spent = loaded.with_timestamps(), [0.0]
    decoding = loaded.asr._decoding

    def timed(*arguments: Any, **keywords: Any) -> Any:
        started = clock()
        found = list(decoding(*arguments, **keywords))
        spent[0] += clock() - started
        return found

    loaded.asr._decoding = timed

    def run(clips: list[Any]) -> Result:
        spent[0] = 0.0
        found = model.recognize(clips, sample_rate=16000)
        return [list(each.tokens) for each in found], spent[0]

    return run


def gigaam_decoder(folder: Path, threads: int) -> Callable[[list[Any]], Result]:
    """GigaAM's own loop on encoder frames that are given; it takes one utterance after another."""
    import torch
    from gigaam.decoder import RNNTHead
    from gigaam.decoding import RNNTGreedyDecoding

    torch.set_num_threads(threads)
    arrays = np.load(folder / "head.npz")
    pieces = json.loads((folder / "pieces.json").read_text())
    hidden, width = arrays["pred_weight"].shape[0], arrays["enc_weight"].shape[1]
    decoder = {"pred_hidden": hidden, "pred_rnn_layers": 1, "num_classes": len(pieces) + 1}
    joint = {
        "enc_hidden": width,
        "pred_hidden": hidden,
        "joint_hidden": hidden,
        "num_classes": len(pieces) + 1,
    }
    head = RNNTHead(decoder=decoder, joint=joint).eval()
    names = {
        "decoder.embed.weight": "embedding",
        "decoder.lstm.weight_ih_l0": "weight_ih",
        "decoder.lstm.weight_hh_l0": "weight_hh",
        "decoder.lstm.bias_ih_l0": "bias",
        "joint.pred.weight": "pred_weight",
        "joint.pred.bias": "pred_bias",
        "joint.enc.weight": "enc_weight",
        "joint.enc.bias": "enc_bias",
        "joint.joint_net.1.weight": "out_weight",
        "joint.joint_net.1.bias": "out_bias",
    }
    state = {theirs: torch.from_numpy(arrays[ours]) for theirs, ours in names.items()}
    state["decoder.lstm.bias_hh_l0"] = torch.zeros_like(state["decoder.lstm.bias_ih_l0"])
    head.load_state_dict(state)
    decoding = RNNTGreedyDecoding(pieces, max_symbols_per_step=1)
    decoding.tokenizer.decode = lambda ids: [pieces[i] for i in ids]
    return on_frames(folder, lambda encoded, lengths: decoding.decode(head, encoded, lengths))


def plain_loop(folder: Path, threads: int) -> Callable[[list[Any]], Result]:
    """A loop over the frames of a whole batch in plain torch (`baselines.py`), on frames that are given."""
    import pickle
    from importlib.util import module_from_spec, spec_from_file_location

    import torch

    from transduce.types import TransducerWeights

    torch.set_num_threads(threads)
    spec: Any = spec_from_file_location("baselines", Path(__file__).with_name("baselines.py"))
    baselines = module_from_spec(spec)
    spec.loader.exec_module(baselines)
    with model_of(folder, "plain-loop").open("rb") as file:
        made = pickle.load(file)
    head, pieces = made.spec.head, made.tokenizer.pieces
    loop = baselines.PlainLoop(TransducerWeights.of(made.weights, head), head, torch.device("cpu"))

    def decode(encoded: Any, lengths: Any) -> list[list[str]]:
        return [[pieces[i] for i in labels] for labels in loop(encoded.transpose(1, 2), lengths)]

    return on_frames(folder, decode)


def on_frames(folder: Path, decode: Callable[[Any, Any], list[list[str]]]) -> Callable[[list[Any]], Result]:
    """Decoding alone, of the frames `[B, D, T]` of as many clips as are asked for, one after the other."""
    import torch

    encoded = torch.from_numpy(np.load(folder / "encoded.npy"))
    lengths = torch.full((len(encoded),), encoded.shape[2])
    first = 0

    def run(clips: list[Any]) -> Result:
        nonlocal first
        rows = slice(first, first + len(clips))
        first = rows.stop % len(encoded)
        started = clock()
        found = decode(encoded[rows], lengths[rows])
        return found, clock() - started

    return run


def sherpa_onnx(folder: Path, threads: int) -> Callable[[list[Any]], Result]:
    """Its encoder takes the batch, its greedy loop one utterance after another."""
    import sherpa_onnx as peer

    path = model_of(folder, "sherpa-onnx")
    parts = {part: str(path / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    recognizer = peer.OfflineRecognizer.from_transducer(
        **parts, tokens=str(path / "tokens.txt"), num_threads=threads, model_type="nemo_transducer"
    )

    def run(clips: list[Any]) -> Result:
        streams = [recognizer.create_stream() for _ in clips]
        for stream, clip in zip(streams, clips, strict=True):
            stream.accept_waveform(16000, clip)
        recognizer.decode_streams(streams)
        return [list(stream.result.tokens) for stream in streams], 0.0

    return run


def nemo(folder: Path, threads: int) -> Callable[[list[Any]], Result]:
    """Written after NeMo's documentation; this project's machines had no NeMo to run it with."""
    import torch
    from nemo.collections.asr.models import ASRModel

    torch.set_num_threads(threads)
    model = ASRModel.restore_from(str(model_of(folder, "nemo")), map_location="cpu").eval()

    def run(clips: list[Any]) -> Result:
        found = model.transcribe(clips, batch_size=len(clips), return_hypotheses=True, verbose=False)
        # Some releases give the best hypotheses and all of them.
        best = found[0] if isinstance(found, tuple) else found
        return [model.tokenizer.ids_to_tokens([int(i) for i in each.y_sequence]) for each in best], 0.0

    return run


class Timed:
    """A runner that adds up what its runs take."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.notes, self.spent = inner, inner.notes, 0.0

    def run(self, *arguments: Any) -> Any:
        started = clock()
        results = self.inner.run(*arguments)
        self.spent += clock() - started
        return results


def transduce(
    folder: Path, threads: int, backend: str, precision: str, head: str
) -> Callable[[list[Any]], Result]:
    import pickle
    from dataclasses import replace

    from transduce.bench import open_model
    from transduce.choice import Choice

    path = folder / f"int8-{head}" if precision == "int8" else model_of(folder, "transduce")
    made: Any = str(path)
    if path.suffix == ".pickle":
        with path.open("rb") as file:
            made = pickle.load(file)
    model = open_model(made, Choice(backend, precision=precision, head=head, threads=threads))
    recognizer: Any = model.backend
    pieces, decoder = model.tokenizer.pieces, None
    if backend == "openvino":
        decoder = Timed(recognizer._session.decoder)
        recognizer._session = replace(recognizer._session, decoder=decoder)

    def run(clips: list[Any]) -> Result:
        before = decoder.spent if decoder else 0.0
        found = recognizer.recognize(clips)
        after = decoder.spent if decoder else 0.0
        return [[pieces[i] for i in each.ids] for each in found], after - before

    return run


def main() -> None:
    # onnx.py beside this file is called like the library.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    global clock
    way, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if threads == 1:
        clock = time.process_time
    os.environ["OMP_NUM_THREADS"] = str(threads)
    makers: dict[str, Callable[[], Callable[[list[Any]], Result]]] = {
        "onnx-asr": lambda: onnx_asr(folder, threads, way),
        "gigaam-decoder": lambda: gigaam_decoder(folder, threads),
        "plain-loop": lambda: plain_loop(folder, threads),
        "sherpa-onnx": lambda: sherpa_onnx(folder, threads),
        "nemo": lambda: nemo(folder, threads),
        "transduce": lambda: transduce(folder, threads, *way.split(":")[1:]),
    }
    run = makers[way.partition(":")[0]]()
    clips = list(np.load(folder / "clips.npz").values())
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        size, started = int(line), clock()
        tokens: list[list[str]] = []
        decoder = 0.0
        for first in range(0, len(clips), size):
            found, spent = run(clips[first : first + size])
            tokens, decoder = tokens + found, decoder + spent
        seconds = clock() - started
        answer = {"seconds": seconds, "decoder": decoder, "tokens": tokens}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
