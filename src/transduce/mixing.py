"""All channels of a recording as one.

In: blocks `[n, channels]` at the recording's rate. Out: blocks `[n, 1]`: the mean of the channels that
carry sound, or the loudest alone where they cancel each other. That is decided anew for every stretch of
some seconds, so a long recording needs no second pass and no more memory than a short one. Files, rates
and models are not known here.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from transduce.types import FloatArray

__all__ = ["STRETCH_SECONDS", "Mixer"]

STRETCH_SECONDS = 5
"""What is decided at once; up to twice as much at the end, so that no decision rests on a moment."""

_LEAST_SUM = 0.1
"""Less of the power than this left in the sum is cancellation. Unrelated channels leave all of it; two
of equal power fall below at a correlation of -0.9."""
_LEAST_ACTIVE = 1e-6
"""A channel with less than this part of the loudest one's power (-60 dB) carries no sound."""


class Mixer:
    """Mixes one recording, and remembers where its channels cancelled."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._num_samples = 0
        self._num_cancelled = 0
        self._cancelling: set[int] = set()
        self._used: set[int] = set()

    def mixed(self, blocks: Iterator[FloatArray]) -> Iterator[FloatArray]:
        """Mix blocks of any size."""
        for stretch in _stretches(blocks, STRETCH_SECONDS * self._rate):
            channels = self._chosen(_Balance.of(stretch))
            for block in stretch:
                yield block[:, channels].sum(axis=1, keepdims=True) / np.float32(len(channels))

    def warnings(self) -> tuple[str, ...]:
        """A sentence if channels cancelled anywhere; complete when the last block has been taken."""
        if not self._num_cancelled:
            return ()
        if self._num_cancelled < self._num_samples:
            seconds = (self._num_cancelled / self._rate, self._num_samples / self._rate)
            used = "for {:.0f} s of {:.0f} s only the loudest channel was used".format(*seconds)
        else:
            used = f"only channel {_listed(self._used)} was used"
        return (f"channels {_listed(self._cancelling)} cancel each other in a mix: {used}",)

    def _chosen(self, balance: "_Balance") -> list[int]:
        """The channels whose mean is the mix of a stretch."""
        self._num_samples += balance.num_samples
        if not balance.is_cancelled:
            return balance.active
        self._num_cancelled += balance.num_samples
        self._cancelling.update(balance.active)
        self._used.add(balance.loudest)
        return [balance.loudest]


def _listed(channels: set[int]) -> str:
    return ", ".join(map(str, sorted(channels)))


def _stretches(blocks: Iterator[FloatArray], size: int) -> Iterator[list[FloatArray]]:
    """The blocks in groups of `size` samples each, the last one of up to twice as many."""
    waiting: list[FloatArray] = []
    num_samples = 0
    for block in blocks:
        waiting.append(block)
        num_samples += len(block)
        while num_samples >= 2 * size:
            stretch, waiting = _split(waiting, size)
            num_samples -= size
            yield stretch
    if waiting:
        yield waiting


def _split(blocks: list[FloatArray], size: int) -> tuple[list[FloatArray], list[FloatArray]]:
    """The first `size` samples, and the rest."""
    first: list[FloatArray] = []
    for index, block in enumerate(blocks):
        if size <= len(block):
            return [*first, block[:size]], [block[size:], *blocks[index + 1 :]]
        first.append(block)
        size -= len(block)
    return first, []


class _Balance:
    """How the channels of a stretch go together."""

    def __init__(self, num_samples: int, covariance: npt.NDArray[np.float64]) -> None:
        self.num_samples = num_samples
        self._covariance = covariance  # [C, C]

    @classmethod
    def of(cls, blocks: list[FloatArray]) -> "_Balance":
        """The power of the sound, without constant offsets and what rounding leaves of them."""
        num_samples = sum(map(len, blocks))
        wide = [block.astype(np.float64) for block in blocks]
        means = sum(block.sum(axis=0) for block in wide) / num_samples
        powers = sum(block.T @ block for block in wide) / num_samples
        covariance = powers - np.outer(means, means)
        return cls(num_samples, np.where(np.abs(covariance) > 1e-9 * powers.trace(), covariance, 0.0))

    @property
    def is_cancelled(self) -> bool:
        """Whether the sum has lost the sound of the channels."""
        return bool(self._covariance.sum() < _LEAST_SUM * self._covariance.trace())

    @property
    def active(self) -> list[int]:
        """The channels that carry sound; all of them where none does."""
        powers = self._covariance.diagonal()
        return [int(index) for index in np.flatnonzero(powers >= _LEAST_ACTIVE * powers.max())]

    @property
    def loudest(self) -> int:
        """The channel with the most power."""
        return int(self._covariance.diagonal().argmax())
