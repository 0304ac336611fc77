"""The track that every reader gives: float32 blocks, and an account of what is wrong with them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import AudioError, MissingExtraError
from transduce.types import FloatArray

__all__ = [
    "BLOCK_SAMPLES",
    "RATES",
    "Damage",
    "Track",
    "check_form",
    "check_track",
    "library",
    "to_float",
]

BLOCK_SAMPLES = 1 << 16
"""Samples of one channel in a block: seconds of audio, so that what a block costs does not matter."""
RATES = range(1000, 1_000_001)
"""Samples per second of any sound. What is outside would only make a recording of days, or of nothing."""
_MOST_CHANNELS = 64
"""Of a file. Memory and time go with it: a block of this many is 16 MiB."""


@dataclass(slots=True)
class Damage:
    """What is known to be wrong with a track, as far as it has been read."""

    declared_seconds: float | None = None
    """The length that the file claims; None where no claim can be relied on."""
    tolerance_seconds: float = 0.0
    """How much the claim may exceed the decoded length before it counts as damage."""
    decoded_seconds: float = 0.0
    at_end: bool = False
    num_lost_packets: int = 0
    num_gaps: int = 0
    gap_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def warnings(self) -> tuple[str, ...]:
        """One sentence with everything that is wrong and the decoded length, or nothing."""
        found = ", ".join(self._found())
        return (f"incomplete audio ({found}): decoded {self.decoded_seconds:.2f} s",) if found else ()

    def _found(self) -> Iterator[str]:
        yield from self.notes
        if self.num_lost_packets:
            yield f"damaged packets left out: {self.num_lost_packets}"
        if self.num_gaps:
            yield f"gaps filled with silence: {self.num_gaps} ({self.gap_seconds:.2f} s)"
        missing_seconds = (self.declared_seconds or 0.0) - self.decoded_seconds
        if self.at_end and missing_seconds > self.tolerance_seconds:
            yield f"the file declares {self.declared_seconds:.2f} s"


@dataclass(slots=True, eq=False)
class Track:
    """One audio track that is being read."""

    rate: int
    num_channels: int
    blocks: Iterator[FloatArray]
    """Each `[n, num_channels]`, n > 0; full scale is 1."""
    start_seconds: float = 0.0
    """When a player plays the first sample: above 0 where the audio starts late."""
    damage: Damage = field(default_factory=Damage)
    """Complete when the last block has been taken."""

    def __post_init__(self) -> None:
        self.blocks = self._counted(self.blocks)

    def _counted(self, blocks: Iterator[FloatArray]) -> Iterator[FloatArray]:
        num_samples = 0
        for block in blocks:
            num_samples += len(block)
            self.damage.decoded_seconds = num_samples / self.rate
            yield block
        self.damage.at_end = True


def check_track(name: str, track: int | None, num_tracks: int) -> None:
    """Refuse the number of a track that is not there."""
    if isinstance(track, bool) or not isinstance(track, (int, np.integer, type(None))):
        raise AudioError(f"track is a number from 0, not {track!r}")
    if track is not None and not 0 <= track < num_tracks:
        raise AudioError(f"{name} has no audio track {track}: there are {num_tracks}, from 0")


def check_form(name: str, rate: int, num_channels: int) -> None:
    """Refuse a header that no recording can have, before anything is done by it."""
    if rate not in RATES:
        raise AudioError(f"{name} declares {rate} samples a second: {RATES[0]} to {RATES[-1]} can be read")
    if num_channels > _MOST_CHANNELS:
        raise AudioError(f"{name} declares {num_channels} channels: up to {_MOST_CHANNELS} can be read")


def library(name: str) -> ModuleType:
    """Import one of the audio libraries; MissingExtraError where it is missing or broken."""
    try:
        return import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingExtraError(
            f"{name} could not be imported ({error}); install it with: pip install {name}"
        ) from error


def to_float(samples: npt.NDArray[Any]) -> FloatArray:
    """Integers by the full scale of their type (unsigned ones centred first), floats as they are."""
    if samples.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused later
            return samples.astype(np.float32)
    half = 2.0 ** (8 * samples.dtype.itemsize - 1)
    centred = samples.astype(np.float64) - (half if samples.dtype.kind == "u" else 0.0)
    return (centred / half).astype(np.float32)
