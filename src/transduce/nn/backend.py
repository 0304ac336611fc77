"""The torch backend: features, encoder and decoding of a batch on a CPU or a CUDA device.

In: a ModelSpec and its weights. Out: a Backend. Features and everything after the encoder are fp32;
only the encoder runs in the precision asked for. It knows no files, no text and no seconds.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast, get_args

import numpy as np
import torch
from torch import Tensor

from transduce.errors import AudioError, DeviceError, ResourceError
from transduce.memory import limit_caches
from transduce.nn.decoder import Decoder
from transduce.nn.encoder import Encoder
from transduce.nn.features import LogMel
from transduce.nn.graphs import Want
from transduce.nn.labels import ctc_decode
from transduce.nn.transducer import TransducerHead
from transduce.types import FloatArray, Hypothesis, ModelSpec, TransducerWeights, Weights

__all__ = ["TorchBackend", "cuda_devices"]

_OVERFLOW = (
    "the encoder's output is not finite in {}: the samples are far beyond full scale, "
    "or this model needs fp32"
)

CPU_THREAD_SECONDS = 20.0
"""Audio that a CPU encodes at once, for each of its threads, padding counted. Batches of 160 s on one thread
took half as long again for a small encoder, no less for one of 109 million parameters, and more memory."""

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchBackend:
    """A model on one device; `recognize` may be called from several threads."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        device: str = "auto",
        precision: str = "fp32",
        decoder: str = "auto",
        threads: int | None = None,
    ) -> None:
        """`threads` is torch's, for the whole process. Raises DeviceError for what is not there."""
        limit_caches()
        if threads is not None:
            torch.set_num_threads(threads)
        self.spec = spec
        self.device = _device(device)
        self.precision = _precision(precision, self.device)
        self.is_auto = precision == "auto"
        self.features = _loaded(LogMel, weights, "features.", spec.features).to(self.device)
        self.encoder = _loaded(Encoder, weights, "encoder.", spec.encoder, spec.features.num_mels).to(
            self.device, PRECISIONS[self.precision]
        )
        if spec.head.kind == "ctc":
            self.ctc = [
                torch.from_numpy(weights[f"ctc.{name}"]).to(self.device) for name in ("weight", "bias")
            ]
        else:
            transducer = TransducerWeights.of(weights, spec.head)
            head = TransducerHead.from_weights(transducer, spec.head, self.device)
            self.decoder = Decoder(head, _driver(decoder))

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        """Decode waveforms `[n]` as one batch, in order.

        Raises ResourceError out of memory, AudioError where the encoder's numbers overflow.
        """
        lengths = [len(waveform) for waveform in waveforms]
        padded = np.zeros((len(waveforms), max(lengths, default=0)), np.float32)
        for row, waveform in zip(padded, waveforms, strict=True):
            row[: len(waveform)] = waveform
        try:
            encoded, frame_lengths = self.encode(padded, lengths)
            if not bool(encoded.isfinite().all()):
                raise AudioError(_OVERFLOW.format(self.precision))
            return self.decode(encoded, frame_lengths)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            seconds = padded.size / self.spec.features.sample_rate
            raise ResourceError(
                f"{self.device} ran out of memory on a batch of {len(waveforms)} items, {seconds:.0f} s "
                "with padding; use smaller batches or shorter segments"
            ) from error

    @torch.inference_mode()
    def stage_seconds(self, waveforms: Sequence[FloatArray]) -> Mapping[str, float]:
        """What one batch takes, stage by stage."""
        lengths = [len(waveform) for waveform in waveforms]
        padded = np.zeros((len(waveforms), max(lengths)), np.float32)
        for row, waveform in zip(padded, waveforms, strict=True):
            row[: len(waveform)] = waveform
        num_frames = torch.tensor([self.spec.features.num_frames(length) for length in lengths])
        times = [time.perf_counter()]
        self.features(
            torch.from_numpy(padded).to(self.device),
            torch.tensor(lengths).to(self.device),
            num_frames.to(self.device),
        )
        times.append(self._now())
        encoded = self.encode(padded, lengths)
        times.append(self._now())
        self.decode(*encoded)
        times.append(self._now())
        features, encoder, decoder = (b - a for a, b in pairwise(times))
        return {"features": features, "encoder": max(0.0, encoder - features), "decoder": decoder}

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @torch.inference_mode()
    def encode(self, padded: FloatArray, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Encoder frames `[B, T, D]` and their lengths; what lies behind a row's length is not read."""
        parts = [self._encode(padded[rows], lengths[rows]) for rows in self._slices(lengths)]
        longest = max(encoded.shape[1] for encoded, _ in parts)
        encoded = [torch.nn.functional.pad(rows, (0, 0, 0, longest - rows.shape[1])) for rows, _ in parts]
        return torch.cat(encoded), torch.cat([frame_lengths for _, frame_lengths in parts])

    def _slices(self, lengths: Sequence[int]) -> Iterator[slice]:
        """The rows to encode at once: all of them, or on a CPU as much audio as its caches like."""
        most_seconds = CPU_THREAD_SECONDS * torch.get_num_threads()
        most_samples = int(most_seconds * self.spec.features.sample_rate)
        first = 0
        if self.device.type == "cpu":
            for row in range(1, len(lengths)):
                if max(lengths[first : row + 1]) * (row + 1 - first) > most_samples:
                    yield slice(first, row)
                    first = row
        yield slice(first, len(lengths))

    def _encode(self, padded: FloatArray, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        waveforms = torch.from_numpy(padded[:, : max(lengths, default=0)]).to(self.device)
        sample_lengths = torch.tensor(lengths, dtype=torch.int64, device=self.device)
        num_frames = [self.spec.features.num_frames(length) for length in lengths]
        frame_lengths = torch.tensor(num_frames, dtype=torch.int64, device=self.device)
        features = self.features(waveforms, sample_lengths, frame_lengths)
        if features.shape[1] == 0:
            return features.new_zeros(len(lengths), 0, self.spec.encoder.width), frame_lengths
        encoded: tuple[Tensor, Tensor] = self.encoder(features, frame_lengths)
        return encoded

    @torch.inference_mode()
    def decode(self, encoded: Tensor, lengths: Tensor) -> list[Hypothesis]:
        """Labels of encoder frames `[B, T, D]` by the spec's head."""
        if self.spec.head.kind == "ctc":
            logits = torch.nn.functional.linear(encoded, *self.ctc)
            return ctc_decode(logits, lengths, self.spec.head.blank)
        return self.decoder.decode(encoded, lengths)

    def describe(self) -> Mapping[str, str]:
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        notes = {"engine": f"torch {torch.__version__}", "device": device, "precision": self.precision}
        if self.is_auto:
            has = "multiplies" if self.precision == "bf16" else "does not multiply"
            notes["why this precision"] = f"this {self.device.type} {has} bf16"
        if self.spec.head.kind != "ctc":
            notes["decoder"] = f"{self.decoder.choice.name} ({self.decoder.choice.reason})"
        return notes

    def close(self) -> None:
        """Drop the weights; the memory is free once nobody else holds the backend."""
        for name in ("features", "encoder", "ctc", "decoder"):
            self.__dict__.pop(name, None)


def _loaded(kind: type, weights: Weights, prefix: str, *arguments: object) -> torch.nn.Module:
    """A module of `kind` on the weights under `prefix`, which are shared, not copied."""
    with torch.device("meta"):
        module: torch.nn.Module = kind(*arguments)
    own = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    module.load_state_dict({key: torch.from_numpy(value) for key, value in own.items()}, assign=True)
    return module.eval().requires_grad_(False)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA's allocator has an error class of its own; the CPU's only says so in words."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def cuda_devices() -> str:
    """The GPUs that torch can use here, or why there are none."""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        return f"none: {'no driver or GPU' if built else 'torch is a CPU build'} (torch {torch.__version__})"
    return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise DeviceError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    if not available:
        raise DeviceError(
            f"device {name!r} was asked for, but torch {torch.__version__} sees no CUDA GPU here; "
            "use --device cpu, or install a CUDA build of torch and a driver"
        )
    if int(index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"device {name!r} was asked for, but there are {torch.cuda.device_count()} GPUs")
    return torch.device(kind, int(index or 0))


def _driver(name: str) -> Want:
    if name not in get_args(Want):
        raise DeviceError(f"unknown decoder {name!r}: use one of {', '.join(get_args(Want))}")
    return cast(Want, name)


def _precision(name: str, device: torch.device) -> str:
    if name == "auto":
        return "bf16" if _multiplies_bf16(device) else "fp32"
    if name not in PRECISIONS:
        raise DeviceError(f"precision {name!r} is not one of torch's: use {', '.join(PRECISIONS)} or auto")
    return name


def _multiplies_bf16(device: torch.device) -> bool:
    """Whether the device has bf16 products, which take half of fp32's time or less (docs/cpu.md)."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # Intel's AMX comes with it
    return probe is not None and bool(probe())
