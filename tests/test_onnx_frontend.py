"""The front end as operators against the numpy one, for whole batches with anything in the padding."""

import numpy as np
import numpy.typing as npt
import pytest
from support import read_wav

from transduce import features
from transduce.checkpoints.onnx_layouts import GIGAAM_V2, GIGAAM_V3, NEMO
from transduce.onnx.builder import FLOAT, INT64, Graph
from transduce.onnx.frontend import log_mel
from transduce.onnx.session import Session
from transduce.types import FeatureSpec, Weights

SPECS = {"nemo": NEMO, "gigaam-v2": GIGAAM_V2, "gigaam-v3": GIGAAM_V3}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)

Array = npt.NDArray[np.float32]


def weights_of(spec: FeatureSpec) -> Weights:
    window = features.hann_window(spec.window_samples, periodic=spec.periodic_window)
    return {"features.window": window, "features.filterbank": features.mel_filterbank(spec)}


def front_end(spec: FeatureSpec) -> Session:
    graph = Graph(17)
    waveforms = graph.add_input("waveforms", FLOAT, ["batch", "samples"])
    lengths = graph.add_input("lengths", INT64, ["batch"])
    values, counts = log_mel(graph, spec, weights_of(spec), waveforms, lengths)
    graph.add_output(values, FLOAT, None, "features")
    graph.add_output(counts, INT64, None, "counts")
    return Session.of_graph(graph, "features", threads=1)


def padded(clips: list[Array], spare: int, filler: np.random.Generator) -> Array:
    batch = filler.standard_normal((len(clips), max(map(len, clips)) + spare)).astype(np.float32)
    for row, clip in zip(batch, clips, strict=True):
        row[: len(clip)] = clip
    return batch


def clips() -> list[Array]:
    speech = read_wav("u01.wav")
    lengths = [len(speech), 40000, 16000, 3217, 641, 640, 400, 321, 320, 201, 161, 160, 2, 1]
    return [speech[3000 : 3000 + length] if length < 40000 else speech[:length] for length in lengths]


@every_spec
def test_values_and_counts(spec: FeatureSpec) -> None:
    """Where the mel power is above 1e-6 the logarithms agree to 1e-3; below, rounding decides."""
    batch = padded(clips(), 777, np.random.default_rng(0))
    lengths = np.array([len(clip) for clip in clips()])
    runner = front_end(spec)
    values, counts = runner.run(["features", "counts"], {"waveforms": batch, "lengths": lengths})
    assert counts.tolist() == [spec.num_frames(length) for length in lengths]
    assert values.shape[1:] == (spec.num_frames(batch.shape[1]), spec.num_mels)
    own = weights_of(spec)
    for row, clip in enumerate(clips()):
        expected = features.log_mel(clip, spec, own["features.window"], own["features.filterbank"])
        power = features.mel_power(clip, spec, own["features.window"], own["features.filterbank"])
        ours = values[row, : counts[row]]
        assert np.isfinite(values[row]).all()
        assert (values[row, counts[row] :] == 0).all()
        np.testing.assert_allclose(ours[power > 1e-6], expected[power > 1e-6], atol=1e-3)
        assert np.abs(ours - expected).max(initial=0) < 0.1


@every_spec
def test_padding_and_neighbours_change_nothing(spec: FeatureSpec) -> None:
    runner, names = front_end(spec), ["features"]
    lengths = np.array([len(clip) for clip in clips()])
    first, second = (
        runner.run(
            names, {"waveforms": padded(clips(), spare, np.random.default_rng(seed)), "lengths": lengths}
        )
        for spare, seed in ((0, 1), (5000, 2))
    )
    np.testing.assert_allclose(first[0], second[0][:, : first[0].shape[1]], atol=1e-4)
    for row, clip in enumerate(clips()):
        alone = runner.run(names, {"waveforms": clip[None], "lengths": lengths[row : row + 1]})[0]
        count = spec.num_frames(len(clip))
        np.testing.assert_allclose(alone[0, :count], first[0][row, :count], atol=1e-4)


@every_spec
def test_no_samples(spec: FeatureSpec) -> None:
    """Rows and whole batches without a sample: finite, and at least one frame for the encoder to stand on."""
    for size in (0, 1, 5000):
        feeds = {"waveforms": np.ones((2, size), np.float32), "lengths": np.array([0, 0])}
        (values,) = front_end(spec).run(["features"], feeds)
        assert values.shape[1] >= 1
        assert np.isfinite(values).all()


def test_loud_audio_stays_finite() -> None:
    """Field bug 40: samples far outside [-1, 1]."""
    clip = 30000 * read_wav("u00.wav")
    for spec in SPECS.values():
        (values,) = front_end(spec).run(
            ["features"], {"waveforms": clip[None], "lengths": np.array([len(clip)])}
        )
        assert np.isfinite(values).all()
